"""GPT-2 (Radford et al. 2019), of the layers in aicf.nn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import nn
from ..errors import TypeInferenceError, VerifyError
from ..ir import Value
from ..types import DType, f32
from .config import Fields, preset
from .files import HEAD
from .published import Published

ACTIVATIONS: dict[str, Callable[[], nn.Layer]] = {
    "gelu_new": nn.GELU, "gelu_pytorch_tanh": nn.GELU, "gelu": partial(nn.GELU, approximate=False), "relu": nn.ReLU,
    "silu": nn.SiLU, "swish": nn.SiLU,
}  # fmt: skip


@dataclass(frozen=True)
class GPT2Config:
    """The sizes of a GPT-2; the defaults are those of the smallest, "gpt2" (124M).

    words, places   entries of the embeddings: of tokens, and of positions, which is how long a sequence can be
    size, depth, heads   of a row, how many blocks, how many heads of attention in each
    hidden      of the MLP; None is 4 * size
    eps         of the norms
    activation  of the MLP, by its published name: "gelu_new" is GELU in its tanh form
    tied        whether the head has the weight of the tokens' embedding
    published   config.json, as it was read; what is not a size goes back into the one that is written
    """

    words: int = 50257
    places: int = 1024
    size: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int | None = None
    eps: float = 1e-5
    activation: str = "gelu_new"
    tied: bool = True
    published: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise VerifyError(f"GPT2Config: activation={self.activation!r}", expected=", ".join(ACTIVATIONS))

    @classmethod
    def preset(cls, name: str) -> GPT2Config:
        """The sizes of a published model: "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl"."""
        return preset(PRESETS, name)

    @classmethod
    def of_json(cls, config: Mapping[str, Any]) -> GPT2Config:
        """From config.json. VerifyError where it lacks a size, or asks for what is not built here."""
        read = Fields(config)
        read.must_be(
            scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False
        )
        return cls(
            words=read.whole("vocab_size"), places=read.whole("n_positions"), size=read.whole("n_embd"),
            depth=read.whole("n_layer"), heads=read.whole("n_head"), hidden=read.whole("n_inner", None),
            eps=read.number("layer_norm_epsilon", 1e-5),
            activation=read.one_of("activation_function", ACTIVATIONS, "gelu_new"),
            tied=read.yes_or_no("tie_word_embeddings", True), published=dict(config),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """What config.json says of it."""
        return {
            **self.published, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": self.words,
            "n_positions": self.places, "n_embd": self.size, "n_layer": self.depth, "n_head": self.heads, "n_inner": self.hidden,
            "layer_norm_epsilon": self.eps, "activation_function": self.activation, "tie_word_embeddings": self.tied,
        }  # fmt: skip


PRESETS = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(size=1024, depth=24, heads=16),
    "gpt2-large": GPT2Config(size=1280, depth=36, heads=20),
    "gpt2-xl": GPT2Config(size=1600, depth=48, heads=25),
}


class GPT2(nn.Layer):
    """Logits (batch, T, words) of tokens (batch, T), integers. T is at most config.places. It has no dropout.

    dtype  of the weights and of what is computed
    """

    prefix = "transformer."  # of the published names; files of the part without a head leave it out
    block = r"transformer\.h\.(\d{1,9})\."
    ignored = r"transformer\.h\.\d+\.attn\.(bias|masked_bias)"  # masks

    def __init__(self, config: GPT2Config, dtype: Any = f32) -> None:
        start, last = nn.init.normal(0.02), nn.init.normal(0.02 / math.sqrt(2 * max(config.depth, 1)))
        size, norm, dtype = config.size, partial(nn.LayerNorm, eps=config.eps), DType.of(dtype)
        how: dict[str, Any] = {"weight_init": start, "out_init": last}

        def block() -> nn.TransformerBlock:
            activation = ACTIVATIONS[config.activation]()
            attn = nn.MultiHeadAttention(size, config.heads, **how)
            return nn.TransformerBlock(size, attn, nn.MLP(size, config.hidden, activation, **how), norm)

        self.config = config
        self.embed = nn.Embedding(config.words, size, dtype, weight_init=start)
        self.place = nn.Embedding(config.places, size, dtype, weight_init=start)
        self.blocks = [block() for _ in range(config.depth)]
        self.norm = norm(size)
        tied = self.embed if config.tied else None
        self.head = nn.Linear(size, config.words, bias=False, weight=tied, weight_init=start)

    def emit(self, ctx: Any, tokens: Value) -> Value:
        rows, last = tokens.shape[-1], self.config.places
        most = rows if ctx.sequences is None else ctx.sequences.places  # of a KV cache
        if most > last:
            raise TypeInferenceError(
                f"GPT2: {most} tokens, and {last} positions", expected=f"tokens (batch, T) with T <= {last}",
                got=str(tokens.spec), where=ctx.here(), hint="its table of positions has no more rows: feed the last tokens",
            )  # fmt: skip
        x = self.embed(tokens) + self.place(ctx.positions(rows))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def published(self) -> dict[str, Published]:
        """Of each weight its published name. Those of products are stored transposed."""
        top = {
            "embed.weight": "wte.weight",
            "place.weight": "wpe.weight",
            "norm.weight": "ln_f.weight",
            "norm.bias": "ln_f.bias",
        }
        names = {ours: Published((self.prefix + theirs,)) for ours, theirs in top.items()}
        for n in range(self.config.depth):
            for ours, theirs, transposed in BLOCK:
                stored = f"{self.prefix}h.{n}.{theirs}"
                names[f"blocks.{n}.{ours}.weight"] = Published((f"{stored}.weight",), transposed=transposed)
                names[f"blocks.{n}.{ours}.bias"] = Published((f"{stored}.bias",))
        return names if self.config.tied else {**names, "head.weight": Published((HEAD,))}


BLOCK = (  # (ours, published, whether a weight is stored transposed)
    ("norm1", "ln_1", False), ("attn.qkv", "attn.c_attn", True), ("attn.out", "attn.c_proj", True),
    ("norm2", "ln_2", False), ("mlp.up", "mlp.c_fc", True), ("mlp.down", "mlp.c_proj", True),
)  # fmt: skip
