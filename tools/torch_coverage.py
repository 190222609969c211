"""What share of op calls aicf takes of PyTorch's models, and which ops it leaves: docs/results/coverage.md is written by this.

    python tools/torch_coverage.py [--only NAME] [--jobs N] [--write]

Small configurations of transformers, timm and torchvision with random weights, and models of PyTorch's own layers, forward and
backward on the CPU. Each is compared with eager PyTorch.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
ROOT = Path(__file__).resolve().parents[1]
TOO_SMALL, FASTER = (
    "alone among PyTorch's ops: too small to pay",
    "PyTorch's own is faster",
)  # as reports say it
BEGIN, END = "<!-- torch -->", "<!-- /torch -->"
sys.path.insert(0, str(ROOT))

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
        size = 224 if re.search("swin|levit|mixer|resmlp|coat|xcit|vit|deit", name) else 64
        return timm.create_model(name, num_classes=7), (torch.randn(2, 3, size, size),), {}

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


def run(make: Callable[[], Made]) -> tuple[list[Any], str]:
    """The reports of a model's graphs, and what is wrong with its numbers; "" if nothing is."""
    from aicf.frontends.torch import backend, graphs, reset

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, args, named = make()
    model.train()
    # An LSTM is traced as its cells' ops. On the CPU PyTorch would have oneDNN's own layer in it, which AOTAutograd can't train.
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    torch._dynamo.config.allow_rnn = recurrent
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    torch._dynamo.reset()
    reset()
    with torch.backends.mkldnn.flags(enabled=not recurrent):
        found = numbers(torch.compile(model, backend=backend), model, args, named)
    wanted = numbers(eager, eager, args, named)
    try:
        truth = numbers(exact, exact, [a.double() if a.is_floating_point() else a for a in args], named)
    except RuntimeError:  # it makes tensors of f32 itself
        truth = wanted
    most = max(float(t.abs().max()) for name, t in wanted.items() if name and t is not None)
    wrong = [far(name, found[name], wanted[name], truth[name], most if name else 0.0) for name in wanted]
    return graphs(), "; ".join(filter(None, wrong))


def numbers(call: Any, model: nn.Module, args: Any, named: Any) -> dict[str, torch.Tensor | None]:
    """The output, as "", and all gradients of a weighted sum of it."""
    torch.manual_seed(1)
    out = first(call(*args, **named))
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    (out * weights.to(out.dtype)).sum().backward()
    return {"": out.detach()} | {name: p.grad for name, p in model.named_parameters()}


def first(out: Any) -> torch.Tensor:
    if isinstance(out, torch.Tensor):
        return out
    return (
        out[0]
        if isinstance(out, (tuple, list))
        else next(v for v in out.values() if isinstance(v, torch.Tensor) and v.ndim)
    )


def far(name: str, got: Any, want: Any, truth: Any, most: float) -> str:
    """What is wrong with a tensor beside eager PyTorch's: more than its greatest element explains, or a thousandth of the greatest of
    all gradients, and more than eager PyTorch is off itself. A gradient of zeros may be none: results that no loss reads have such."""
    zeros = [t is None or not t.any() for t in (got, want)]
    if all(zeros):
        return ""
    if got is None or want is None:
        return f"gradient of {name}: only one side has one"
    scale = max(float(want.abs().max()), most / 1000)
    error, own = (float((t - truth).abs().max()) / scale for t in (got, want))
    return (
        ""
        if error < max(5e-4, 8 * own)
        else f"{name or 'output'} is off by {error:.1e}, eager PyTorch by {own:.1e}"
    )


@cache
def everything() -> dict[str, Callable[[], Made]]:
    """How to make each model, by its name."""
    return dict((*own(), *transformers_models(), *vision_models()))


def measured(name: str) -> tuple[int, Counter[tuple[str, str]], int, str, str, float]:
    """Of a model: calls taken, calls left, parts, what is wrong with its numbers, why it failed, seconds."""
    warnings.filterwarnings("ignore")
    started = time.perf_counter()
    try:
        graphs, wrong = run(everything()[name])
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return 0, Counter(), 0, "", f"{type(error).__name__}: {lines[0][:200]}", 0.0
    rest = sum((g.left for g in graphs), Counter())
    taken, parts = sum(g.taken.total() for g in graphs), sum(g.parts for g in graphs)
    return taken, rest, parts, wrong, "", time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="models whose name has this in it")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at once")
    parser.add_argument("--write", action="store_true", help="write docs/results/coverage.md")
    asked = parser.parse_args()
    rows, left, failed = [], Counter[tuple[str, str]](), []
    models = Counter[tuple[str, str]]()
    names = [name for name in everything() if asked.only in name]
    with ProcessPoolExecutor(asked.jobs, get_context("spawn"), max_tasks_per_child=8) as workers:
        for name, (taken, rest, parts, wrong, error, took) in zip(names, workers.map(measured, names)):
            if error:
                failed.append(f"{name}: {error}")
                print(f"FAILED {failed[-1]}", flush=True)
                continue
            left.update(rest)
            models.update(rest.keys())
            rows.append((name, taken, taken + rest.total(), parts, wrong))
            ops = ", ".join(f"{op.removeprefix('aten.')} {n} ({why})" for (op, why), n in rest.most_common())
            print(
                f"{name}: {taken} of {taken + rest.total()}, {parts} parts, {took:.0f} s {wrong} left: {ops}",
                flush=True,
            )
            if asked.write:  # after each, as many take long
                write(page(rows, left, models, failed))
    return int(bool(failed) or any(wrong for *_, wrong in rows))


def write(section: str) -> None:
    """Into the page, in the place of the section that was there; what other scripts wrote stays."""
    path = ROOT / "docs/results/coverage.md"
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    path.write_text(
        f"{before.rstrip()}\n\n{BEGIN}\n{section.rstrip()}\n{END}\n{rest.partition(END)[2].lstrip()}"
    )


def page(
    rows: list[Any], left: Counter[tuple[str, str]], models: Counter[tuple[str, str]], failed: list[str]
) -> str:
    taken, total = sum(r[1] for r in rows), sum(r[2] for r in rows)
    small = sum(n for (_, why), n in left.items() if why == TOO_SMALL)
    faster = sum(n for (_, why), n in left.items() if why == FASTER)
    lines = [
        "## PyTorch's models",
        "",
        f"Written by `python tools/torch_coverage.py --write`, with PyTorch {torch.__version__.partition('+')[0]} on the CPU: small "
        "configurations with random weights, forward and backward",
        'through `torch.compile(model, backend="aicf")`, compared with eager PyTorch. Ops that aicf lacks run in PyTorch, between parts that aicf',
        "computes. Views are not counted.",
        "",
        f"{len(rows)} models ran, {sum(not r[4] for r in rows)} of them with eager PyTorch's numbers; {len(failed)} failed. "
        f"aicf took {taken:,} of {total:,} op calls ({taken / max(total, 1):.1%}); of {sum(r[1] == r[2] for r in rows)} models all. "
        f"Of those left it can compute {small + faster:,}: {faster:,} ({faster / max(total, 1):.1%}) PyTorch computes faster, and {small:,} "
        f"({small / max(total, 1):.1%}) are cheap and alone among PyTorch's. {total - taken - small - faster:,} "
        f"({(total - taken - small - faster) / max(total, 1):.1%}) it lacks.",
        "",
        "### What was left, by calls",
        "",
        "| op | why | calls | models |",
        "|---|---|---|---|",
        *(f"| `{op}` | {why} | {count} | {models[op, why]} |" for (op, why), count in left.most_common()),
        "",
        "### Models",
        "",
        "| model | taken | op calls | share | parts | beside eager |",
        "|---|---|---|---|---|---|",
        *(
            f"| {name} | {a} | {b} | {a / max(b, 1):.0%} | {parts} | {wrong or 'same'} |"
            for name, a, b, parts, wrong in sorted(rows, key=lambda r: (-r[1] / max(r[2], 1), r[0]))
        ),
    ]
    if failed:
        lines += ["", "### Failed", "", *(f"- {text}" for text in failed)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
