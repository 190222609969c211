"""Attention over sequences, rotary positions, and the block of a transformer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CacheError, TypeInferenceError, VerifyError
from ..ir import Initializer, Value
from ..types import f32, f64
from . import checks
from .layer import Layer
from .layers import Dropout, LayerNorm, Linear
from .rope_scaling import LinearScaling, Llama3Scaling

Scaling = LinearScaling | Llama3Scaling


@dataclass(frozen=True)
class _Turns:
    """Of each position and pair i, with the angle position * theta^(-2 i / size): its cosine; or minus its sine, and its sine.

    Computed in double precision. `axis` is that of the pair's two elements: 1, or 2 where they are neighbours.
    """

    theta: float
    axis: int
    sine: bool
    scaling: Scaling | None

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        pairs = shape[3 - self.axis]
        frequencies = self.theta ** (-np.arange(pairs) / max(pairs, 1))
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        angles = np.arange(shape[0])[:, None] * frequencies
        made = [-np.sin(angles), np.sin(angles)] if self.sine else [np.cos(angles)]
        return np.stack(made, self.axis)


class RoPE(Layer):
    """Rotary positions: pair i of row t is turned by the angle (offset + t) * theta^(-2 i / size) (Su et al. 2021).

    Shapes: x and y (..., T, size), of a float; size is even. Angles are exact to f32 at any position.

    theta        10,000 in GPT-NeoX and Llama, 500,000 in Llama 3
    interleaved  whether pairs are neighbours, as in GPT-J; else elements i and i + size / 2, as in GPT-NeoX and Llama
    scaling      of the frequencies theta^(-2 i / size): an nn.LinearScaling or an nn.Llama3Scaling
    """

    def __init__(
        self, size: int, theta: float = 10_000.0, *, interleaved: bool = False, scaling: Scaling | None = None
    ) -> None:
        self.size = checks.whole("RoPE: size", size)
        if self.size % 2:
            raise VerifyError(f"RoPE: size={size!r}", expected="an even number: elements are turned in pairs")
        self.theta = checks.positive("RoPE: theta", theta)
        self.interleaved = checks.yes_or_no("RoPE: interleaved", interleaved)
        if scaling is not None and not isinstance(scaling, Scaling):
            raise VerifyError(
                f"RoPE: scaling={scaling!r}", expected="None, an nn.LinearScaling or an nn.Llama3Scaling"
            )
        self.scaling = scaling

    def emit(self, ctx: Any, x: Value, offset: int = 0) -> Value:
        if x.rank < 2 or x.shape[-1] != self.size:
            raise TypeInferenceError(
                f"RoPE: x does not have rows of {self.size}", expected=f"shape (..., T, {self.size})", got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        first = checks.whole("RoPE: offset", offset)
        pairs, wide = self.size // 2, f64 if x.dtype is f64 else f32
        pair = x.reshape(*x.shape[:-1], *((pairs, 2) if self.interleaved else (2, pairs))).astype(wide)
        turns = self._turns
        if ctx.sequences is not None:
            turns = self._turns_of_each
            ctx.sequences.check("RoPE: x", x)
        cos, sin = (turns(ctx, sine, first, x.shape[-2], wide) for sine in (False, True))
        axis = pair.rank - (1 if self.interleaved else 2)
        turned = pair * cos + ctx.reverse(pair, dims=(axis,)) * sin
        return turned.astype(x.dtype).reshape(x.shape)

    def _turns(self, ctx: Any, sine: bool, first: int, rows: int, dtype: Any) -> Value:
        """What these rows are multiplied by."""
        name, table = self._table(ctx, sine, first + rows, dtype)

        def read() -> Value:
            rows_of: Value = table()[first : first + rows]
            return rows_of

        made: Value = ctx.once((name, first, rows), read)
        return made

    def _turns_of_each(self, ctx: Any, sine: bool, first: int, rows: int, dtype: Any) -> Value:
        """The same of sequences (batch, heads, rows, size), each of which stands at a place of its own."""
        name, table = self._table(ctx, sine, first + ctx.sequences.places, dtype)

        def read() -> Value:
            places = ctx.positions(rows)
            found: Value = ctx.gather(table(), places + first if first else places)
            return found.reshape(found.shape[0], 1, *found.shape[1:])

        made: Value = ctx.once((name, first, rows, "of each"), read)
        return made

    def _table(self, ctx: Any, sine: bool, rows: int, dtype: Any) -> tuple[str, Callable[[], Value]]:
        """Its name, and what emits it. Tables have a power of two of rows, so that a model of many lengths has few."""
        places, pairs, both = max(64, 1 << max(rows - 1, 0).bit_length()), self.size // 2, 1 + sine
        shape = (places, pairs, both) if self.interleaved else (places, both, pairs)
        init = _Turns(self.theta, 2 if self.interleaved else 1, sine, self.scaling)
        by = f"{self.theta!r}" if self.scaling is None else f"{self.theta!r}.{self.scaling!r}"
        name = f"rope.{'sin' if sine else 'cos'}.{by}.{'x'.join(map(str, shape))}.{dtype}"
        return name, lambda: ctx.table(name, shape, init, dtype)


@dataclass(frozen=True)
class _Slopes:
    """Of each head, minus the slope times how far a key lies from a query, by their places."""

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        heads, queries, keys = shape
        far = np.abs(np.arange(queries)[:, None] - np.arange(keys))
        return -alibi_slopes(heads)[:, None, None] * far


def alibi_slopes(heads: int) -> np.ndarray:
    """Of so many heads, as published: 2^(-8 i / heads), i = 1, 2, ...; unless heads is a power of two, those of the power below, then
    every other one of twice as many."""
    power = 1 << heads.bit_length() - 1
    own = 2.0 ** (-8 / power * np.arange(1, power + 1))
    return np.concatenate([own, 2.0 ** (-4 / power * np.arange(1, 2 * power, 2))])[:heads]


class ALiBi(Layer):
    """A bias of attention that grows with distance: -slope * |query - key|, with a slope for each head (Press et al. 2022).

    `alibi(x)` of x (..., T, size) is (heads, T, T), of f32: a table, which is not learned and costs no gradient. The layer it is handed to
    has no other positions: attention(x, bias=alibi(x)).
    """

    def __init__(self, heads: int) -> None:
        self.heads = checks.whole("ALiBi: heads", heads, 1)

    def emit(self, ctx: Any, x: Value) -> Value:
        if x.rank < 2:
            raise TypeInferenceError(
                "ALiBi: x is no sequence", expected="shape (..., T, size)", got=str(x.spec), where=ctx.here()
            )
        rows, shape = x.shape[-2], (self.heads, x.shape[-2], x.shape[-2])
        name = f"alibi.{self.heads}x{rows}"
        made: Value = ctx.once((name,), lambda: ctx.table(name, shape, _Slopes()))
        return made


class MultiHeadAttention(Layer):
    """out(attention(q, k, v)) with q, k, v = qkv(x): self-attention of the rows of a sequence, with dropout behind it.

    Shapes: x and y (..., T, size), of a float; mask, a Value of bools, broadcasts to (..., heads, T, T) and is true where a row may
    attend; bias, of a float, broadcasts alike and is added to scores, such as an nn.ALiBi's result. Weights: qkv.weight ((heads + 2 kv_heads) * head_size, size), the queries' rows first, then the keys', then the values';
    out.weight (size, heads * head_size); and their biases.

    out_bias     whether `out` has a bias; by default as `bias` says, which is qkv's
    kv_heads     of keys and values; heads / kv_heads heads in a row share one (grouped queries). By default `heads`
    head_size    size / heads unless it is given
    causal       whether a row attends to none behind it
    window       a row attends to none that is `window` or more before it; None is no limit
    rope         a RoPE(head_size), or its theta: queries and keys are turned by their positions
    scale        of scores; None is 1 / sqrt(head_size)
    dropout      the rate of it
    weight_init, out_init   of qkv.weight and of out.weight, which is initialised as the former unless it is given; as Linear's
    """

    def __init__(
        self,
        size: int,
        heads: int,
        kv_heads: int | None = None,
        head_size: int | None = None,
        *,
        bias: bool = True,
        out_bias: bool | None = None,
        causal: bool = True,
        window: int | None = None,
        rope: RoPE | float | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        weight_init: Initializer | None = None,
        out_init: Initializer | None = None,
    ) -> None:
        name = "MultiHeadAttention"
        self.size = checks.whole(f"{name}: size", size, 1)
        self.heads = checks.whole(f"{name}: heads", heads, 1)
        self.kv_heads = self.heads if kv_heads is None else checks.whole(f"{name}: kv_heads", kv_heads, 1)
        if self.heads % self.kv_heads:
            raise VerifyError(f"{name}: kv_heads={kv_heads!r}", expected=f"a divisor of heads={heads}")
        if head_size is None and self.size % self.heads:
            raise VerifyError(
                f"{name}: heads={heads!r}", expected=f"a divisor of size={size}", hint="or give each head a size: head_size=64"
            )  # fmt: skip
        self.head_size = (
            self.size // self.heads if head_size is None else checks.whole(f"{name}: head_size", head_size, 1)
        )
        self.causal = checks.yes_or_no(f"{name}: causal", causal)
        self.window = None if window is None else checks.whole(f"{name}: window", window, 1)
        self.scale = None if scale is None else checks.positive(f"{name}: scale", scale)
        self.rope = rope if rope is None or isinstance(rope, RoPE) else RoPE(self.head_size, rope)
        if self.rope is not None and self.rope.size != self.head_size:
            raise VerifyError(f"{name}: rope={rope!r}", expected=f"RoPE({self.head_size}), as the heads are")
        rows, inner = (self.heads + 2 * self.kv_heads) * self.head_size, self.heads * self.head_size
        self.qkv = Linear(self.size, rows, bias, weight_init=weight_init)
        out_bias = bias if out_bias is None else out_bias
        self.out = Linear(inner, self.size, out_bias, weight_init=out_init or weight_init)
        self.dropout = Dropout(dropout)

    def emit(self, ctx: Any, x: Value, mask: Value | None = None, bias: Value | None = None) -> Value:
        if x.rank < 2:
            raise TypeInferenceError(
                "MultiHeadAttention: x is no sequence", expected=f"shape (..., T, {self.size})", got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        joined = self.qkv(x)
        q, k, v = (self._heads(joined, first, count) for first, count in self._parts())
        if self.rope is not None:
            q, k = self.rope(q), self.rope(k)
        lengths = None
        if ctx.sequences is not None:
            k, v, lengths = self._cached(ctx, k, v, mask, bias)
        y = ctx.attention(
            q, k, v, mask, lengths, bias, scale=self.scale, causal=self.causal, window=self.window or 0
        )
        together = _exchanged(y).reshape(*x.shape[:-1], self.heads * self.head_size)
        return self.dropout(self.out(together))

    def _cached(
        self, ctx: Any, k: Value, v: Value, mask: Value | None, bias: Value | None
    ) -> tuple[Value, Value, Value | None]:
        """All keys and values so far, and how many each sequence has."""
        if not self.causal or mask is not None or bias is not None:
            what = "of causal=False" if not self.causal else "under a mask" if bias is None else "with a bias"
            raise CacheError(
                f"MultiHeadAttention {what} can't keep its keys",
                expected="causal=True without mask and bias: what was computed of a token stays as it is when others follow", where=ctx.here(),
            )  # fmt: skip
        found: tuple[Value, Value, Value | None] = ctx.sequences.cached(k, v)
        return found

    def _parts(self) -> tuple[tuple[int, int], ...]:
        """(first head, number of heads) of q, k and v among the heads of qkv."""
        return (0, self.heads), (self.heads, self.kv_heads), (self.heads + self.kv_heads, self.kv_heads)

    def _heads(self, joined: Value, first: int, count: int) -> Value:
        """(..., T, all heads * d) to (..., heads, T, d) of some of them."""
        d = self.head_size
        own = joined[..., first * d : (first + count) * d]
        return _exchanged(own.reshape(*own.shape[:-1], count, d))


def _exchanged(x: Value) -> Value:
    """(..., a, b, d) to (..., b, a, d)."""
    *batch, a, b, d = range(x.rank)
    return x.transpose(*batch, b, a, d)


class TransformerBlock(Layer):
    """x = x + attn(norm1(x)), then x + mlp(norm2(x)): a pre-norm block of a transformer.

    Shapes: x and y (..., T, size), of a float.

    attn, mlp  layers from size to size
    norm       makes a norm of a size: nn.LayerNorm, nn.RMSNorm

        GPT-2:  TransformerBlock(768, MultiHeadAttention(768, 12), MLP(768))
        Llama:  TransformerBlock(4096, MultiHeadAttention(4096, 32, 8, bias=False, rope=500_000.0), SwiGLU(4096, 14336), RMSNorm)

    `block(x, mask=mask)`, with whatever else `attn` takes, hands that on to it.
    """

    def __init__(self, size: int, attn: Layer, mlp: Layer, norm: Callable[[int], Layer] = LayerNorm) -> None:
        if not callable(norm) or isinstance(norm, Layer):
            raise VerifyError(
                f"TransformerBlock: norm={norm!r}", expected="what makes a norm of a size, such as nn.RMSNorm",
                hint="norm=lambda size: nn.LayerNorm(size, eps=1e-6)",
            )  # fmt: skip
        self.norm1, self.attn = checks.layer(norm(size)), checks.layer(attn)
        self.norm2, self.mlp = checks.layer(norm(size)), checks.layer(mlp)

    def emit(self, ctx: Any, x: Value, **more: Any) -> Value:
        x = x + ctx.layer(self.attn, "attn", ctx.layer(self.norm1, "norm1", x), **more)
        return x + ctx.layer(self.mlp, "mlp", ctx.layer(self.norm2, "norm2", x))
