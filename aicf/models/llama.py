"""Llama (Touvron et al. 2023) and what has its shape, Mistral and Qwen 2, of the layers in aicf.nn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import nn
from ..errors import VerifyError
from ..ir import Value
from ..types import DType, f32
from .config import Fields, preset
from .files import HEAD
from .published import Published

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama; the defaults are those of Llama 2 7B.

    words       entries of the embedding of tokens
    places      tokens of the longest sequences that it was trained on; longer ones run
    size, hidden, depth   of a row, of the feed-forward part, how many blocks
    heads, kv_heads, head_size   of attention; None are `heads`, and size / heads
    theta, scaling   of the rotary positions, as nn.RoPE has them
    eps         of the norms
    qkv_bias, out_bias, mlp_bias   which products have a bias
    window      of attention; None is no limit
    tied        whether the head has the weight of the embedding
    model_type  "llama", "mistral" or "qwen2"
    published   config.json, as it was read; what is not a size goes back into the one that is written
    """

    words: int = 32000
    places: int = 4096
    size: int = 4096
    hidden: int = 11008
    depth: int = 32
    heads: int = 32
    kv_heads: int | None = None
    head_size: int | None = None
    theta: float = 10_000.0
    scaling: nn.LinearScaling | nn.Llama3Scaling | None = None
    eps: float = 1e-5
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    window: int | None = None
    tied: bool = False
    model_type: str = "llama"
    published: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.head_size is None and self.size % max(self.heads, 1):
            raise VerifyError(
                f"LlamaConfig: heads={self.heads!r}",
                expected=f"a divisor of size={self.size}, or a head_size",
            )
        if self.model_type not in ARCHITECTURES:
            raise VerifyError(
                f"LlamaConfig: model_type={self.model_type!r}", expected=", ".join(ARCHITECTURES)
            )

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.size // max(self.heads, 1) if self.head_size is None else self.head_size

    @property
    def shared(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @classmethod
    def preset(cls, name: str) -> LlamaConfig:
        """The sizes of a published model: "llama-2-7b", "llama-3-8b", "llama-3.1-8b", "llama-3.2-1b" or "tinyllama-1.1b"."""
        return preset(PRESETS, name)

    @classmethod
    def of_json(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """From config.json. VerifyError where it lacks a size, or asks for what is not built here."""
        read = Fields(config)
        kind = read.one_of("model_type", ARCHITECTURES, "llama")
        read.must_be(hidden_act="silu")
        theta, scaling = _rotary(read)
        qwen, bias = kind == "qwen2", kind == "llama" and read.yes_or_no("attention_bias", False)
        if qwen:
            read.must_be(use_sliding_window=False)
        heads = read.whole("num_attention_heads")
        # what other kinds have where nothing is said is not `heads`
        kv_heads = read.whole("num_key_value_heads", *([heads] if kind == "llama" else []))
        return cls(
            words=read.whole("vocab_size"), places=read.whole("max_position_embeddings", 2048), size=read.whole("hidden_size"),
            hidden=read.whole("intermediate_size"), depth=read.whole("num_hidden_layers"), heads=heads, kv_heads=kv_heads,
            head_size=read.whole("head_dim", None), theta=theta, scaling=scaling, eps=read.number("rms_norm_eps", 1e-6),
            qkv_bias=bias or qwen, out_bias=bias, mlp_bias=kind == "llama" and read.yes_or_no("mlp_bias", False),
            window=_window(read) if kind == "mistral" else None, tied=read.yes_or_no("tie_word_embeddings", False),
            model_type=kind, published=dict(config),
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """What config.json says of it. VerifyError where it has no words for a size, as for biases of queries alone in "llama"."""
        own = {
            "model_type": self.model_type, "architectures": [ARCHITECTURES[self.model_type]], "vocab_size": self.words,
            "max_position_embeddings": self.places, "hidden_size": self.size, "intermediate_size": self.hidden,
            "num_hidden_layers": self.depth, "num_attention_heads": self.heads, "num_key_value_heads": self.shared,
            "rms_norm_eps": self.eps, "hidden_act": "silu",
            "tie_word_embeddings": self.tied, **_rotary_json(self.theta, self.scaling),
        }  # fmt: skip
        if self.head_size is not None:
            own |= {"head_dim": self.head_size}
        if self.model_type == "llama":
            own |= {"attention_bias": self.out_bias, "mlp_bias": self.mlp_bias}
        if self.model_type == "mistral":
            own |= {"sliding_window": self.window}
        said = {**{k: v for k, v in self.published.items() if k != "rope_parameters"}, **own}
        if self.of_json(said) != replace(self, kv_heads=self.shared):
            raise VerifyError(
                f"no config.json of {self.model_type!r} says {self}", expected=str(self.of_json(said))
            )
        return said


def _window(read: Fields) -> int | None:
    """Mistral's: null is no limit, and nothing said is 4096."""
    return None if read.config.get("sliding_window", 4096) is None else read.whole("sliding_window", 4096)


def _rotary(read: Fields) -> tuple[float, nn.LinearScaling | nn.Llama3Scaling | None]:
    """theta and scaling: in fields of their own, or, since transformers 5, together in `rope_parameters`."""
    together, theta = read.part("rope_parameters"), read.number("rope_theta", 10_000.0)
    if together is not None:
        theta = together.number("rope_theta", theta)
    stretch = read.part("rope_scaling") if together is None else together
    read.must_be(partial_rotary_factor=1.0)
    if stretch is None:
        return theta, None
    stretch.must_be(partial_rotary_factor=1.0)
    named = "rope_type" if "rope_type" in stretch.config else "type"
    kind = stretch.one_of(named, ("default", "linear", "llama3"), "default")
    if kind == "linear":
        return theta, nn.LinearScaling(stretch.number("factor"))
    if kind == "llama3":
        ends = stretch.number("low_freq_factor"), stretch.number("high_freq_factor")
        places = stretch.whole("original_max_position_embeddings")
        return theta, nn.Llama3Scaling(stretch.number("factor"), *ends, places)
    return theta, None


def _rotary_json(theta: float, scaling: Any) -> dict[str, Any]:
    said: dict[str, Any] | None = None
    if isinstance(scaling, nn.LinearScaling):
        said = {"rope_type": "linear", "factor": scaling.factor}
    elif isinstance(scaling, nn.Llama3Scaling):
        said = {
            "rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": scaling.low, "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.positions,
        }  # fmt: skip
    return {"rope_theta": theta, "rope_scaling": said}


_3 = LlamaConfig(words=128256, places=8192, hidden=14336, kv_heads=8, theta=500_000.0)
PRESETS = {
    "llama-2-7b": LlamaConfig(kv_heads=32),
    "llama-3-8b": _3,
    "llama-3.1-8b": replace(_3, places=131072, scaling=nn.Llama3Scaling()),
    "llama-3.2-1b": replace(
        _3, places=131072, size=2048, hidden=8192, depth=16, head_size=64, scaling=nn.Llama3Scaling(32.0), tied=True
    ),
    "tinyllama-1.1b": LlamaConfig(places=2048, size=2048, hidden=5632, depth=22, kv_heads=4),
}  # fmt: skip


class Llama(nn.Layer):
    """Logits (batch, T, words) of tokens (batch, T), integers.

    dtype  of the weights and of what is computed
    """

    prefix = "model."  # of the published names; files of the part without a head leave it out
    block = r"model\.layers\.(\d{1,9})\."
    ignored = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # follows from the config

    def __init__(self, config: LlamaConfig, dtype: Any = f32) -> None:
        start, size, norm = nn.init.normal(0.02), config.size, partial(nn.RMSNorm, eps=config.eps)

        def block() -> nn.TransformerBlock:
            attn = nn.MultiHeadAttention(
                size, config.heads, config.kv_heads, config.head_size, bias=config.qkv_bias, out_bias=config.out_bias,
                window=config.window, rope=nn.RoPE(config.head, config.theta, scaling=config.scaling), weight_init=start,
            )  # fmt: skip
            mlp = nn.SwiGLU(size, config.hidden, bias=config.mlp_bias, weight_init=start)
            return nn.TransformerBlock(size, attn, mlp, norm)

        self.config = config
        self.embed = nn.Embedding(config.words, size, DType.of(dtype), weight_init=start)
        self.blocks = [block() for _ in range(config.depth)]
        self.norm = norm(size)
        tied = self.embed if config.tied else None
        self.head = nn.Linear(size, config.words, bias=False, weight=tied, weight_init=start)

    def emit(self, ctx: Any, tokens: Value) -> Value:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def published(self) -> dict[str, Published]:
        """Of each weight its published names. Queries, keys and values have a product each there, and one here."""
        config = self.config
        rows = tuple(heads * config.head for heads in (config.heads, config.shared, config.shared))
        top = {"embed.weight": "embed_tokens.weight", "norm.weight": "norm.weight"}
        names = {ours: Published((self.prefix + theirs,)) for ours, theirs in top.items()}
        for n in range(config.depth):
            for ours, theirs, biased in BLOCK:
                for part in ("weight", "bias") if biased and getattr(config, biased) else ("weight",):
                    stored = tuple(f"{self.prefix}layers.{n}.{name}.{part}" for name in theirs)
                    names[f"blocks.{n}.{ours}.{part}"] = Published(stored, rows if len(stored) > 1 else ())
        return names if config.tied else {**names, "head.weight": Published((HEAD,))}


BLOCK = (  # (ours, published, the field that says whether there is a bias)
    ("norm1", ("input_layernorm",), ""),
    ("attn.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "qkv_bias"),
    ("attn.out", ("self_attn.o_proj",), "out_bias"),
    ("norm2", ("post_attention_layernorm",), ""),
    ("mlp.gate", ("mlp.gate_proj",), "mlp_bias"), ("mlp.up", ("mlp.up_proj",), "mlp_bias"),
    ("mlp.down", ("mlp.down_proj",), "mlp_bias"),
)  # fmt: skip
