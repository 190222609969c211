"""The models that torch_coverage.py runs: small configurations of transformers and timm, and models of PyTorch's own layers, with random
weights."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]  # a model, and what it is called with

TEXT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_key_value_heads": 2,
}
# Configurations of transformers whose arguments are called otherwise.
OWN: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gptj": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8},
    "codegen": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8},
    "gpt_neo": {"vocab_size": 97, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    "bloom": {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "opt": {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 64, "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    "mpt": {"vocab_size": 97, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    "t5": {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    "bart": {"vocab_size": 97, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64},
    "distilbert": {"vocab_size": 97, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64},
    "xlnet": {"vocab_size": 97, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "mamba": {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8},
    "albert": TEXT | {"embedding_size": 16},
    "llama": TEXT | {"num_key_value_heads": 2},
    "mixtral": TEXT | {"num_key_value_heads": 2, "num_local_experts": 4},
    "gemma": TEXT | {"num_key_value_heads": 2, "head_dim": 8},
    "gemma2": TEXT | {"num_key_value_heads": 2, "head_dim": 8},
    "qwen3": TEXT | {"num_key_value_heads": 2, "head_dim": 8},
    "phi3": TEXT | {"pad_token_id": 0},
    "deberta-v2": TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "mobilebert": TEXT | {"embedding_size": 32, "intra_bottleneck_size": 32},
    "openai-gpt": {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "squeezebert": TEXT | {"embedding_size": 32},
}  # fmt: skip
PLAIN = """
    bert roberta electra llama mistral qwen2 qwen3 gemma gemma2 phi phi3 stablelm falcon gpt_neox gpt_bigcode
    persimmon starcoder2 olmo cohere ernie roformer mpnet layoutlm camembert megatron-bert convbert nystromformer
    rembert squeezebert
""".split()  # noqa: SIM905
VISION = """
    resnet18 resnet50 vit_tiny_patch16_224 deit_tiny_patch16_224 convnext_atto mobilenetv2_100
    mobilenetv3_small_100 efficientnet_b0 regnetx_002 densenet121 mixer_s32_224 swin_tiny_patch4_window7_224 vgg11
    ghostnet_100 repvgg_a0 resmlp_12_224 xcit_nano_12_p16_224 poolformer_s12 levit_128s coat_tiny resnext26ts
    regnety_002 gmlp_ti16_224 mnasnet_050 lcnet_050 tinynet_e mobilevit_xxs pvt_v2_b0
""".split()  # noqa: SIM905


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(97, 16),
            nn.LSTM(16, 24, 2, batch_first=True),
            nn.Linear(24, 97),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


class Patches(nn.Module):
    """A ConvMixer of two blocks: patches, each channel by itself, each point by itself."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, width, 4, 4), nn.Linear(width, 5)
        self.across = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(2))
        self.within = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.patches(x))
        for across, within in zip(self.across, self.within):
            x = F.gelu(within(x + F.gelu(across(x))))
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """Two levels down and up, with what is kept of each level beside it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.SiLU())

        self.first, self.down, self.middle = (
            block(3, width),
            block(width, 2 * width),
            block(2 * width, 2 * width),
        )
        self.up, self.last = block(3 * width, width), nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        b = self.middle(self.down(nn.functional.avg_pool2d(a, 2)))
        return self.last(self.up(torch.cat([nn.functional.interpolate(b, scale_factor=2), a], 1)))


def own() -> Iterator[tuple[str, Callable[[], Made]]]:
    tokens = torch.randint(0, 97, (2, 12))
    image = torch.randn(2, 3, 16, 16)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    models: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
        "mlp": lambda: (nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 5)), torch.randn(6, 20)),
        "lstm": lambda: (LSTM(), tokens),
        "unet": lambda: (UNet(), image),
        "convmixer": lambda: (Patches(), image),
        "transformer decoder": lambda: (nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True), (torch.randn(2, 9, 32), torch.randn(2, 5, 32))),
        "cnn": lambda: (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 5)), image),
        "transformer encoder": lambda: (nn.TransformerEncoder(layer, 2), torch.randn(2, 9, 32)),
    }  # fmt: skip
    for name, make in models.items():
        yield name, lambda make=make: _called(*make())  # type: ignore[misc]


def _called(model: nn.Module, args: Any) -> Made:
    return model, args if isinstance(args, tuple) else (args,), {}


def transformers_models() -> Iterator[tuple[str, Callable[[], Made]]]:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    def made(kind: str) -> Made:
        config = AutoConfig.for_model(kind, **OWN.get(kind, TEXT))
        for name in ("dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob",
                     "dropout_rate", "attention_dropout", "hidden_dropout", "activation_dropout", "summary_last_dropout"):  # fmt: skip
            if hasattr(config, name):
                setattr(config, name, 0.0)
        config.use_cache = False
        try:
            model = AutoModelForCausalLM.from_config(config)
        except ValueError:
            model = AutoModel.from_config(config)
        ids = torch.randint(2, 97, (2, 12))
        more = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
        return model, (ids,), more

    for kind in dict.fromkeys((*OWN, *PLAIN)):
        yield f"transformers {kind}", lambda kind=kind: made(kind)  # type: ignore[misc]


def vision_models() -> Iterator[tuple[str, Callable[[], Made]]]:
    declare_missing("torchvision")
    import timm

    def made(name: str) -> Made:
        size = 224 if re.search("swin|levit|mixer|resmlp|gmlp|coat|xcit|vit|deit", name) else 64
        random = {"drop_path_rate": 0.0} if name.startswith("swin") else {"drop_rate": 0.0}
        return timm.create_model(name, num_classes=7, **random), (torch.randn(2, 3, size, size),), {}

    for name in VISION:
        yield f"timm {name}", lambda name=name: made(name)  # type: ignore[misc]


def declare_missing(package: str) -> None:
    """The names of the package's own ops, where its binary is of another build of PyTorch's and did not load. None of them is called."""
    found = next(
        (Path(p) / package / "_meta_registrations.py" for p in sys.path if (Path(p) / package).is_dir()), None
    )
    if found is None or hasattr(declare_missing, "library"):
        return
    names = re.findall(r'register_(?:fake|meta)\("(?:\w+::)?(\w+)"\)', found.read_text())
    declare_missing.library = torch.library.Library(package, "FRAGMENT")  # type: ignore[attr-defined]
    for name in dict.fromkeys(names):
        try:
            declare_missing.library.define(f"{name}(Tensor x) -> Tensor")  # type: ignore[attr-defined]
        except RuntimeError:
            return


@cache
def everything() -> dict[str, Callable[[], Made]]:
    """How to make each model, by its name."""
    return dict((*own(), *transformers_models(), *vision_models()))
