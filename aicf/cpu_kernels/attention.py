"""Attention on the host: blocks of queries, each with the keys that its masks leave, by BLAS; scores of one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ops.attention import scale_of, visible
from ..registry.cost import one_launch, roofline
from ..registry.variant import HostCall, NumericClass, one_op, variant
from ..types import numel
from .blas import matmul, threads_for
from .reference import op_operands

SCORES = 2**17  # of a block, in f32: half of a core's L2 cache
ROWS = 64  # queries of a block at most, so that causal masks spare nearly half of the keys
EFFICIENCY = 0.4  # of the arithmetic peak that BLAS reaches on a block
CALL_US, BLOCK_US = 25.0, 25.0  # NumPy's calls, apart from their work
SCORE_US = 0.9e-3  # a score through maximum, exp and sum
CAP_US = 1.5e-3  # and through tanh


@dataclass(frozen=True)
class _Sizes:
    """Of attention with G query heads for each of `heads` heads of keys, batches and heads counted together.

    offset  the position of query 0
    """

    lead: tuple[int, ...]  # batches and heads of keys
    group: int
    queries: int
    keys: int
    d: int
    dv: int
    causal: bool
    window: int
    offset: int

    @property
    def heads(self) -> int:
        return numel(self.lead)

    @property
    def rows(self) -> int:
        """Queries of a block."""
        fit = SCORES // max(1, self.group * self.keys)
        return max(1, min(self.queries, ROWS, max(8, fit)))

    @property
    def heads_at_once(self) -> int:
        """More than one where a head is small: NumPy then calls BLAS for all of them in one call."""
        return max(1, min(self.heads, SCORES // max(1, self.group * self.rows * self.keys)))

    def blocks(self) -> Iterator[tuple[range, range]]:
        """(queries, keys that some of them may attend to)."""
        for first in range(0, self.queries, self.rows):
            last = min(first + self.rows, self.queries)
            low = max(0, first + self.offset - self.window + 1) if self.window else 0
            high = min(self.keys, last + self.offset) if self.causal else self.keys
            low = min(low, self.keys)
            yield range(first, last), range(low, max(high, low))

    def scores(self) -> int:
        """That are computed."""
        return self.heads * self.group * sum(len(rows) * len(keys) for rows, keys in self.blocks())

    def cost(self, region, device, products: int):
        """Of a kernel that multiplies so many times by d and by dv."""
        scores, calls = self.scores(), -(-self.heads // self.heads_at_once)
        cost = roofline(
            device, bytes=region.nbytes, flops=products * scores * (self.d + self.dv), efficiency=EFFICIENCY
        )
        blocks = calls * -(-self.queries // self.rows)
        each = SCORE_US * (products / 2) ** 0.5 + CAP_US * bool(region.attrs["softcap"])
        return cost.plus(call=CALL_US, blocks=BLOCK_US * products / 2 * blocks, scores=each * scores)


def _sizes(region, q, k, v) -> _Sizes:
    heads = k.shape[-3]
    return _Sizes(
        (*k.shape[:-3], heads), q.shape[-3] // max(heads, 1), q.shape[-2], k.shape[-2], k.shape[-1], v.shape[-1],
        region.attrs["causal"], region.attrs["window"], k.shape[-2] - q.shape[-2],
    )  # fmt: skip


class _Block:
    """Scores of one block of queries, of a range of heads, as (heads, G * queries, keys) in f32."""

    def __init__(self, sizes: _Sizes, attrs: Any, mask: np.ndarray | None, bias: np.ndarray | None) -> None:
        self.sizes = sizes
        self.scale, self.softcap = np.float32(scale_of(attrs["scale"], sizes.d)), np.float32(attrs["softcap"])
        self.mask, self.bias = self._of_scores(mask), self._of_scores(bias)

    def _of_scores(self, x: np.ndarray | None) -> np.ndarray | None:
        """A view, of whatever it is broadcast from."""
        if x is None:
            return None
        sizes = self.sizes
        heads = (*sizes.lead[:-1], sizes.lead[-1] * sizes.group)
        return _split(np.broadcast_to(x, (*heads, sizes.queries, sizes.keys)), sizes)

    def scaled(self, q: np.ndarray) -> np.ndarray:
        return np.multiply(q, self.scale, dtype=np.float32)

    def scores(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        scores = product(q, k.swapaxes(-1, -2))
        if self.softcap:
            scores /= self.softcap
            np.tanh(scores, out=scores)
            scores *= self.softcap
        return scores

    def biased(self, scores: np.ndarray, heads: range, rows: range, keys: range, kept: bool) -> np.ndarray:
        """What softmax sees. kept: whether scores must stay as they are."""
        if self.bias is None:
            return scores
        x = scores.copy() if kept else scores
        blocks = x.reshape(len(heads), self.sizes.group, len(rows), len(keys))
        for n, head in enumerate(heads):
            at = np.unravel_index(head, self.sizes.lead)
            blocks[n] += self.bias[at][:, rows.start : rows.stop, keys.start : keys.stop]
        return x

    def hide(self, x: np.ndarray, value: float, heads: range, rows: range, keys: range) -> None:
        """Puts a value where a query may not attend to a key."""
        sizes = self.sizes
        x = x.reshape(len(heads), sizes.group, len(rows), len(keys))
        if sizes.causal or sizes.window:
            seen = visible(rows, keys, sizes.offset, sizes.causal, sizes.window)
            if not seen.all():
                np.copyto(x, value, where=~seen)
        if self.mask is not None:
            for n, head in enumerate(heads):
                at = np.unravel_index(head, sizes.lead)
                seen = self.mask[at][:, rows.start : rows.stop, keys.start : keys.stop]
                np.copyto(x[n], value, where=~seen)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return matmul(a, b, None, threads_for(2 * a.shape[-2] * a.shape[-1] * b.shape[-1]))


def _split(x: np.ndarray, sizes: _Sizes) -> np.ndarray:
    """(..., H, rows, columns) as (..., H / G, G, rows, columns): a view, whatever the strides are."""
    heads, own = sizes.lead[-1], x.strides[-3]
    shape = (*x.shape[:-3], heads, sizes.group, *x.shape[-2:])
    strides = (*x.strides[:-3], own * sizes.group, own, *x.strides[-2:])
    return np.lib.stride_tricks.as_strided(x, shape, strides)


class _Heads:
    """A tensor by ranges of heads, batches and heads counted together: (heads, G * rows, columns)."""

    def __init__(self, x: np.ndarray, sizes: _Sizes, grouped: bool) -> None:
        x = _split(x, sizes) if grouped else x[..., None, :, :]
        self.lead, self.group = sizes.lead, x.shape[-3]
        dense = x.flags.c_contiguous or not x.size or len(self.lead) == 1
        self.flat = x.reshape(sizes.heads, *x.shape[-3:]) if dense else None
        self.x = x

    def read(self, heads: range, rows: range) -> np.ndarray:
        """In f32; a copy only where it must be."""
        if self.flat is not None:
            part = self.flat[heads.start : heads.stop, :, rows.start : rows.stop]
        else:
            at = [np.unravel_index(head, self.lead) for head in heads]
            part = np.stack([self.x[n][:, rows.start : rows.stop] for n in at])
        return np.asarray(part, np.float32).reshape(len(heads), self.group * len(rows), self.x.shape[-1])

    def write(self, values: np.ndarray, heads: range, rows: range) -> None:
        values = values.reshape(len(heads), self.group, len(rows), self.x.shape[-1])
        if self.flat is not None:
            self.flat[heads.start : heads.stop, :, rows.start : rows.stop] = values
        else:
            for n, head in enumerate(heads):
                self.x[np.unravel_index(head, self.lead)][:, rows.start : rows.stop] = values[n]


def _ranges(count: int, step: int) -> Iterator[range]:
    return (range(first, min(first + step, count)) for first in range(0, count, step))


def _call(region, run: Callable[..., None]) -> HostCall:
    """`run(attrs, *operands, *results)`: operands as the op declares them, None where one is left out."""
    positions, attrs = op_operands(region), dict(region.attrs)

    def call(operands, results):
        with np.errstate(all="ignore"):  # NaN and Inf are values here, not warnings
            run(region, attrs, *(None if p is None else operands[p] for p in positions), results=results)

    return HostCall(call)


@variant("attention", id="cpu.attention_blas.v2", strided=True)
class AttentionBlas:
    """Two products for each block of queries, and a softmax of all their scores in between, in f32.

    Blocks are of up to 64 queries, of all heads that share keys, and of the keys that causal masks and windows leave; small heads
    are taken several at a time. Parallel inside BLAS, by size. Memory beside operands and results: two blocks of scores.
    """

    def accepts(region):
        yield one_op(region)

    least = one_launch

    def cost(region, device):
        q, k, v = _shapes(region)[:3]
        return _sizes(region, q, k, v).cost(region, device, 2)

    def numerics(region, device):
        sizes = _sizes(region, *_shapes(region)[:3])
        by = f"in BLAS' order, of blocks of {sizes.rows} queries"
        return NumericClass("attention, sgemm in f32", sizes.keys, by)

    def build(region, device):
        return _call(region, _attend)


def _shapes(region):
    return [None if p is None else region.operands[p] for p in op_operands(region)]


def _each(region, q, k, v, mask, lengths, bias, rows, columns):
    """Problems that kernels take: (sizes, q, k, v, mask, bias, others of a row for each query, others of a row for each key).

    Of ragged lengths each entry of the batch is one, of the keys that it has; else there is one in all.
    """
    sizes = _sizes(region, q, k, v)
    if lengths is None:
        yield sizes, q, k, v, mask, bias, rows, columns
        return
    batch, (heads,) = sizes.lead[:-1], sizes.lead[-1:]
    of_scores = [x if x is None else np.broadcast_to(x, (*q.shape[:-1], sizes.keys)) for x in (mask, bias)]
    for at in np.ndindex(*batch):
        length = int(lengths[at])
        keys = min(max(length, 0), sizes.keys)
        own = replace(sizes, lead=(heads,), keys=keys, offset=length - sizes.queries)
        yield (
            own, q[at], k[at][:, :keys], v[at][:, :keys], *(x if x is None else x[at][..., :keys] for x in of_scores),
            [x[at] for x in rows], [x[at][:, :keys] for x in columns],
        )  # fmt: skip


def _attend(region, attrs, q, k, v, mask=None, lengths=None, bias=None, *, results):
    out, lse = results
    for sizes, *given, rows, _ in _each(region, q, k, v, mask, lengths, bias, [out, lse[..., None]], []):
        _attend_one(sizes, attrs, *given, *rows)


def _attend_one(sizes, attrs, q, k, v, mask, bias, out, lse):
    block = _Block(sizes, attrs, mask, bias)
    queries, out, lse = (_Heads(x, sizes, True) for x in (q, out, lse))
    keys_of, values_of = _Heads(k, sizes, False), _Heads(v, sizes, False)
    for heads in _ranges(sizes.heads, sizes.heads_at_once):
        k32, v32 = (x.read(heads, range(sizes.keys)) for x in (keys_of, values_of))
        for rows, keys in sizes.blocks():
            span = slice(keys.start, keys.stop)
            s = block.scores(block.scaled(queries.read(heads, rows)), k32[:, span])
            block.biased(s, heads, rows, keys, False)
            block.hide(s, -np.inf, heads, rows, keys)
            most = s.max(-1, keepdims=True, initial=-np.inf)
            most[most == -np.inf] = 0
            s -= most
            np.exp(s, out=s)
            sums = s.sum(-1, keepdims=True)
            o, nothing = product(s, v32[:, span]), sums == 0
            o /= sums
            if nothing.any():
                np.copyto(o, 0, where=nothing)
            out.write(o, heads, rows)
            lse.write(most + np.log(sums), heads, rows)


@variant("attention_grad", id="cpu.attention_grad_blas.v2", strided=True)
class AttentionGradBlas:
    """Five products for each block of queries; dk and dv of a head grow by each of its blocks in turn, in f32.

    Blocks are those of cpu.attention_blas. Memory beside operands and results: three blocks of scores, and dk and dv of the heads
    at hand in f32.
    """

    def accepts(region):
        yield one_op(region)

    least = one_launch

    def cost(region, device):
        _, q, k, v = _shapes(region)[:4]
        return _sizes(region, q, k, v).cost(region, device, 5)

    def build(region, device):
        return _call(region, _differentiate)


def _differentiate(region, attrs, dout, q, k, v, out, lse, mask=None, lengths=None, bias=None, *, results):
    dq, dk, dv = results
    if lengths is not None:
        dk[:], dv[:] = 0, 0  # of keys that do not exist
    of_queries, of_keys = [dout, out, lse[..., None], dq], [dk, dv]
    for sizes, *given, rows, columns in _each(region, q, k, v, mask, lengths, bias, of_queries, of_keys):
        _differentiate_one(sizes, attrs, *given, *rows, *columns)


def _differentiate_one(sizes, attrs, q, k, v, mask, bias, dout, out, lse, dq, dk, dv):
    dqs, dks, dvs = _Heads(dq, sizes, True), _Heads(dk, sizes, False), _Heads(dv, sizes, False)
    block, every = _Block(sizes, attrs, mask, bias), range(sizes.keys)
    for heads, k32, steps in _weighed(block, q, k, v, dout, out, lse):
        sum_k, sum_v = np.zeros_like(k32), np.zeros((*k32.shape[:-1], sizes.dv), np.float32)
        for rows, keys, scaled, g, s, p, ds in steps:
            span = slice(keys.start, keys.stop)
            sum_v[:, span] += product(p.swapaxes(-1, -2), g)
            if block.softcap:
                ds *= _slope(s, block.softcap)
            sum_k[:, span] += product(ds.swapaxes(-1, -2), scaled)
            dqs.write(product(ds, k32[:, span]) * block.scale, heads, rows)
        dks.write(sum_k, heads, every)
        dvs.write(sum_v, heads, every)


def _weighed(block, q, k, v, dout, out, lse):
    """(heads, their keys in f32, blocks): and of each block its queries and keys; its rows of q, scaled, and of dout; scores, weights, and
    gradients of what softmax sees."""
    sizes = block.sizes
    queries, given, made, logs = (_Heads(x, sizes, True) for x in (q, dout, out, lse))
    keys_of, values_of, every = _Heads(k, sizes, False), _Heads(v, sizes, False), range(sizes.keys)

    def steps(heads, k32, v32):
        for rows, keys in sizes.blocks():
            span = slice(keys.start, keys.stop)
            scaled, g = block.scaled(queries.read(heads, rows)), given.read(heads, rows)
            s = block.scores(scaled, k32[:, span])
            seen, log_sum = block.biased(s, heads, rows, keys, bool(block.softcap)), logs.read(heads, rows)
            p = np.exp(seen - np.where(log_sum == -np.inf, np.inf, log_sum))
            block.hide(p, 0, heads, rows, keys)
            ds = product(g, v32[:, span].swapaxes(-1, -2))
            ds -= (g * made.read(heads, rows)).sum(-1, keepdims=True)
            ds *= p
            yield rows, keys, scaled, g, s, p, ds

    for heads in _ranges(sizes.heads, sizes.heads_at_once):
        k32, v32 = keys_of.read(heads, every), values_of.read(heads, every)
        yield heads, k32, steps(heads, k32, v32)


def _slope(capped: np.ndarray, softcap: np.float32) -> np.ndarray:
    """Of softcap * tanh(score / softcap), from itself."""
    capped /= softcap
    np.square(capped, out=capped)
    return np.subtract(np.float32(1), capped, out=capped)


@variant("attention_bias_grad", id="cpu.attention_bias_grad_blas.v2", strided=True)
class AttentionBiasGradBlas:
    """Two products for each block of queries, whose slopes are added up over what the bias is repeated along, in f32, head by head.

    Blocks are those of cpu.attention_blas. Memory beside operands and results: three blocks of scores, and the bias in f32.
    """

    def accepts(region):
        yield one_op(region)

    least = one_launch

    def cost(region, device):
        _, q, k, v = _shapes(region)[:4]
        return _sizes(region, q, k, v).cost(region, device, 2)

    def build(region, device):
        return _call(region, _differentiate_bias)


def _differentiate_bias(region, attrs, dout, q, k, v, out, lse, bias, mask=None, lengths=None, *, results):
    shape = (1,) * (q.ndim - bias.ndim) + bias.shape
    sums, batch = np.zeros(shape, np.float32), range(q.ndim - 3)
    ragged = iter(np.ndindex(*q.shape[:-3])) if lengths is not None else None
    of_queries = [dout, out, lse[..., None]]
    for sizes, *given, rows, _ in _each(region, q, k, v, mask, lengths, bias, of_queries, []):
        own = sums
        if ragged is not None:
            at = next(ragged)
            own = sums[tuple(at[i] if shape[i] > 1 else 0 for i in batch)][..., : sizes.keys]
        _add_slopes(own, sizes, attrs, *given, *rows)
    results[0][...] = sums.reshape(bias.shape)


def _add_slopes(sums, sizes, attrs, q, k, v, mask, bias, dout, out, lse):
    """To sums, of bias's shape with all axes of scores."""
    for heads, _, steps in _weighed(_Block(sizes, attrs, mask, bias), q, k, v, dout, out, lse):
        for rows, keys, *_, ds in steps:
            ds = ds.reshape(len(heads), sizes.group, len(rows), len(keys))
            for own, head in zip(ds, heads):
                *at, first = np.unravel_index(head, sizes.lead)
                to = sums[tuple(i if n > 1 else 0 for i, n in zip(at, sums.shape))]
                if len(to) > 1:
                    to = to[first * sizes.group : (first + 1) * sizes.group]
                else:
                    own = own.sum(0, keepdims=True)
                to[:, rows.start : rows.stop, keys.start : keys.stop] += own
