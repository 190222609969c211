"""Attention: softmax(scale * q k^T) v over heads, with the masks that transformers have, and its gradient.

StableHLO has no attention; the rules are aicf's own. A kernel never needs all scores at once: it goes over blocks of keys
with a running maximum and sum of each query, as FlashAttention does.
"""

from __future__ import annotations

import math

import numpy as np

from ..types import DType, TensorSpec
from .arithmetic import unbroadcast
from .row_steps import narrow, wide
from .schema import ACCUMULATES, F32, I32, Bool, Float, FloatOwn, op, require
from .unsized import broadcast


def scale_of(scale: float | None, d: int) -> float:
    """What scores are multiplied by: None stands for 1 / sqrt(d)."""
    return 1 / math.sqrt(max(d, 1)) if scale is None else scale


def visible(queries: range, keys: range, offset: int | np.ndarray, causal: bool, window: int) -> np.ndarray:
    """[query, key]: whether the masks that follow from positions let a query attend to a key.

    offset  the position of query 0: as many keys as there are, less as many queries; or several, as (..., 1, 1)
    """
    at, key = np.arange(queries.start, queries.stop)[:, None] + offset, np.arange(keys.start, keys.stop)
    seen = np.ones((*at.shape[:-1], len(keys)), np.bool_)
    if causal:
        seen &= key <= at
    if window:
        seen &= key > at - window
    return seen


def _check_lengths(q: TensorSpec, lengths: TensorSpec | None, constraint: str) -> None:
    shape = None if lengths is None else lengths.shape
    batch = q.shape[:-3]
    require(
        shape in (None, batch), constraint, f"lengths has shape {shape}, expected that of q's batch, {batch}"
    )


def _spreads(x, scores) -> bool:
    try:
        return broadcast([x, scores]) == scores
    except ValueError:
        return False


def check_spreads(name: str, x: TensorSpec | None, q: TensorSpec, k: TensorSpec, constraint: str) -> None:
    scores = (*q.shape[:-1], k.shape[-2])
    require(
        x is None or _spreads(x.shape, scores),
        constraint,
        f"{name} has shape {x and x.shape}, which does not broadcast to {scores}",
    )


def check(
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    mask: TensorSpec | None,
    scale: float | None,
    window: int,
    softcap: float,
) -> None:
    """C1 to C9."""
    require(q.rank >= 3, "C1", f"q has rank {q.rank}, expected 3 or more: (..., heads, queries, d)")
    for name, x in (("k", k), ("v", v)):
        require(x.rank == q.rank, "C2", f"{name} has rank {x.rank}, q has {q.rank}")
        require(
            x.shape[:-3] == q.shape[:-3], "C3", f"the batch of {name} is {x.shape[:-3]}, of q {q.shape[:-3]}"
        )
    require(
        k.shape[-1] == q.shape[-1], "C4", f"rows of k have length {k.shape[-1]}, those of q {q.shape[-1]}"
    )
    require(
        v.shape[-3:-1] == k.shape[-3:-1],
        "C5",
        f"v has {v.shape[-3]} heads of {v.shape[-2]} keys, k has {k.shape[-3]} of {k.shape[-2]}",
    )
    heads, groups = q.shape[-3], k.shape[-3]
    require(
        heads == groups or (groups != 0 and heads % groups == 0),
        "C6",
        f"q has {heads} heads, expected a multiple of the {groups} of k",
    )
    check_spreads("mask", mask, q, k, "C7")
    require(scale is None or math.isfinite(scale), "C8", f"scale is {scale}, expected a finite number")
    require(window >= 0, "C9", f"window is {window}, expected 0 or more")
    require(0 <= softcap < math.inf, "C10", f"softcap is {softcap}, expected a finite number, 0 or more")


@op("attention", results=("out", "lse"), flops=20, version=2, traits=(ACCUMULATES,), public=1)
def attention(
    q: Float,
    k: Float,
    v: Float,
    mask: Bool = None,
    lengths: I32 = None,
    bias: FloatOwn = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
):
    """softmax(scale * q k^T) v for each head: every query attends to the keys that the masks leave it.

    Shapes: q (..., H, T, d), k (..., H / G, S, d), v (..., H / G, S, dv), out (..., H, T, dv). G query heads in a row share a head
    of k and v (grouped queries). lse (..., H, T), of f32, is log(sum(exp(score))), which the gradient reads.

    scale None is 1 / sqrt(d); of scale 0 all keys that a query sees have one weight. softcap c > 0 makes c * tanh(score / c) of a scaled score. Query i stands at position i + S - T, so
    that the last query stands at the last key, as with a cache of keys. causal: it attends to no key behind its position.
    window w > 0: nor to one w or more positions before it. mask, which broadcasts to (..., H, T, S): only where it is true.

    bias, of any float, broadcasts to (..., H, T, S) and is added to scores behind scale and softcap, as ALiBi and T5 have it: what softmax
    sees is c * tanh(scale * q k^T / c) + bias. Where it is -inf a query does not attend. It has a gradient, which costs nothing unless
    something asks for it.

    lengths (...), one for each entry of the batch: of its S keys only the first `length` exist, and its query i stands at position
    i + length - T. Keys behind them are never read, whatever they hold, and have gradients of 0. A length beyond S says where queries
    stand, and all keys exist.

    Scores and sums are f32. A query that may attend to no key, or whose scores are all -inf, has zeros, and an lse of -inf; one with a NaN or
    +inf among its scores has NaN. A masked key is multiplied by 0, or not read: it must be finite.

    C1   q has rank 3 or more
    C2   k and v have the rank of q
    C3   k and v have the batch of q
    C4   k has the d of q
    C5   v has the heads and keys of k
    C6   the heads of q are a multiple of those of k
    C7   mask broadcasts to (..., H, T, S)               (NumPy's rule)
    C8   scale is finite
    C9   window is not negative
    C10  softcap is finite and not negative
    C11  lengths has the shape of the batch of q
    C12  bias broadcasts to (..., H, T, S)               (NumPy's rule)
    """
    check(q, k, v, mask, scale, window, softcap)
    _check_lengths(q, lengths, "C11")
    check_spreads("bias", bias, q, k, "C12")
    out = TensorSpec((*q.shape[:-1], v.shape[-1]), q.dtype, q.device)
    return out, TensorSpec(q.shape[:-1], DType.f32, q.device)


def _grouped(x: np.ndarray, heads: int) -> np.ndarray:
    """(..., H, T, d) as (..., H / G, G, T, d)."""
    return x.reshape(*x.shape[:-3], heads, x.shape[-3] // max(heads, 1), *x.shape[-2:])


def existing(x, lengths):
    """Keys or values, with zeros in the place of those that do not exist."""
    if lengths is None:
        return x
    return np.where((np.arange(x.shape[-2]) < lengths[..., None])[..., None, :, None], x, x.dtype.type(0))


def scores_of(q, k, mask, lengths, bias, scale, causal, window, softcap):
    """(scores, capped; what is added to them; which of them count), each (..., H / G, G, T, S)."""
    t, s, heads = q.shape[-2], k.shape[-2], k.shape[-3]
    scores = scale_of(scale, q.shape[-1]) * (_grouped(q, heads) @ k[..., None, :, :].swapaxes(-1, -2))
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if lengths is None:
        seen = visible(range(t), range(s), s - t, causal, window)
    else:
        here = np.asarray(lengths, np.int64)[..., None, None]
        seen = visible(range(t), range(s), here - t, causal, window) & (np.arange(s) < here)
        seen = seen[..., None, None, :, :]
    if mask is not None:
        seen = seen & _grouped(np.broadcast_to(mask, (*q.shape[:-1], s)), heads)
    if bias is None:
        return scores, scores.dtype.type(0), np.broadcast_to(seen, scores.shape)
    return (
        scores,
        _grouped(np.broadcast_to(bias, (*q.shape[:-1], s)), heads),
        np.broadcast_to(seen, scores.shape),
    )


@attention.reference
def _(q, k, v, mask=None, lengths=None, bias=None, *, scale, causal, window, softcap):
    k, v = existing(k, lengths), existing(v, lengths)
    scores, added, seen = scores_of(q, k, mask, lengths, bias, scale, causal, window, softcap)
    scores = np.where(seen, scores + added, -np.inf)
    most = scores.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(most == -np.inf, 0, most))
    sums = e.sum(-1, keepdims=True)
    out = np.where(sums == 0, 0, e @ v[..., None, :, :] / sums)
    lse = np.where(sums == 0, -np.inf, most + np.log(sums))
    return out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


@attention.gradient
def _(emit, dout, q, k, v, mask, lengths, bias, out, lse, scale, causal, window, softcap):
    asked = {"scale": scale, "causal": causal, "window": window, "softcap": softcap}
    grads = emit.attention_grad(dout, q, k, v, out, lse, mask, lengths, bias, **asked)
    if bias is None:
        return *grads, None, None, None
    spread = _along_scores(emit, bias, q.shape[-2], k.shape[-2])
    dbias = emit.attention_bias_grad(dout, q, k, v, out, lse, spread, mask, lengths, **asked)
    if spread is not bias:
        dbias = narrow(emit, unbroadcast(emit, dbias, bias), bias)
    return *grads, None, None, dbias


def _along_scores(emit, bias, queries, keys):
    """A bias that goes along queries and keys: itself, or itself repeated along them, in f32."""
    if bias.shape[-2:] == (queries, keys):
        return bias
    shape = (*bias.shape[:-2], queries, keys)
    return emit.broadcast_in_dim(
        wide(emit, bias), shape=shape, dims=tuple(range(len(shape) - bias.rank, len(shape)))
    )


@op("attention_grad", results=("dq", "dk", "dv"), flops=20, version=2, traits=(ACCUMULATES,))
def attention_grad(
    dout: Float,
    q: Float,
    k: Float,
    v: Float,
    out: Float,
    lse: F32,
    mask: Bool = None,
    lengths: I32 = None,
    bias: FloatOwn = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: int = 0,
    softcap: float = 0.0,
):
    """attention's gradients of q, k and v, from its results: scores are computed again, none is kept.

    With p = exp(score + bias - lse), 0 where masked, and ds = p * (dout v^T - sum(dout * out)), times 1 - (score / softcap)^2 if there is a
    softcap: dq = scale * ds k, dk = scale * ds^T q, dv = p^T dout. Each element is added up in one order: equal calls have equal bits.

    Shapes: dout and out (..., H, T, dv), lse (..., H, T); dq, dk and dv are as q, k and v.

    C1   q has rank 3 or more
    C2   k and v have the rank of q
    C3   k and v have the batch of q
    C4   k has the d of q
    C5   v has the heads and keys of k
    C6   the heads of q are a multiple of those of k
    C7   mask broadcasts to (..., H, T, S)               (NumPy's rule)
    C8   scale is finite
    C9   window is not negative
    C10  softcap is finite and not negative
    C11  dout and out have the shape of attention's result
    C12  lse has the shape of q without d
    C13  lengths has the shape of the batch of q
    C14  bias broadcasts to (..., H, T, S)               (NumPy's rule)
    """
    check(q, k, v, mask, scale, window, softcap)
    check_results(dout, q, v, out, lse, lengths)
    check_spreads("bias", bias, q, k, "C14")
    return q, k, v


def check_results(dout, q, v, out, lse, lengths) -> None:
    """C11 to C13."""
    _check_lengths(q, lengths, "C13")
    shape = (*q.shape[:-1], v.shape[-1])
    for name, x in (("dout", dout), ("out", out)):
        require(x.shape == shape, "C11", f"{name} has shape {x.shape}, expected {shape}")
    require(lse.shape == q.shape[:-1], "C12", f"lse has shape {lse.shape}, expected {q.shape[:-1]}")


def slopes(dout, k, v, out, lse, scores, added, seen):
    """(weights; gradients of what softmax sees), each (..., H / G, G, T, S)."""
    g, o, log_sum = (_grouped(x, k.shape[-3]) for x in (dout, out, lse[..., None]))
    p = np.where(seen, np.exp(scores + added - np.where(log_sum == -np.inf, np.inf, log_sum)), 0)
    return p, p * (g @ v[..., None, :, :].swapaxes(-1, -2) - (g * o).sum(-1, keepdims=True))


@attention_grad.reference
def _(dout, q, k, v, out, lse, mask=None, lengths=None, bias=None, *, scale, causal, window, softcap):
    heads, factor = k.shape[-3], scale_of(scale, q.shape[-1])
    k, v = existing(k, lengths), existing(v, lengths)
    found = scores_of(q, k, mask, lengths, bias, scale, causal, window, softcap)
    p, ds = slopes(dout, k, v, out, lse, *found)
    if softcap:
        ds = ds * (1 - (found[0] / softcap) ** 2)
    ds = factor * ds
    dq = ds @ k[..., None, :, :]
    dk, dv = ((x.swapaxes(-1, -2) @ _grouped(y, heads)).sum(-3) for x, y in ((ds, q), (p, dout)))
    return dq.reshape(q.shape), dk, dv


def work(products: int, q, k, v) -> int:
    """Of so many products with d and with dv, and of all scores: masks spare a kernel some of it."""
    return math.prod(q.shape[:-1]) * k.shape[-2] * (products * (q.shape[-1] + v.shape[-1]) + 24)


@attention.counts
def _(q, k, v, *others, **attrs):
    return work(2, q, k, v)


@attention_grad.counts
def _(dout, q, k, v, *others, **attrs):
    return work(5, q, k, v)


# --- samples ------------------------------------------------------------------------------------------------------------


def drawn_lse(rng, shape, shapes):
    return rng.uniform(0, 1, shape) + math.log(max(shapes[2][-2], 1))


def drawn_lengths(keys):
    """From none to one more than there are keys."""
    return lambda rng, shape, shapes: rng.integers(0, shapes[keys][-2] + 2, shape)


attention.draws(lengths=drawn_lengths(1))
attention_grad.draws(lse=drawn_lse, lengths=drawn_lengths(2))


def _sample(q, k, dv=None, mask=None, ragged=False, bias=None, **attrs):
    v = k if dv is None else (*k[:-1], dv)
    out, lengths = (*q[:-1], v[-1]), q[:-3] if ragged else None
    more = [mask, lengths, bias]
    while more and more[-1] is None:
        more.pop()
    attention.samples(q, k, v, *more, **attrs)
    attention_grad.samples(out, q, k, v, out, q[:-1], *more, **attrs)


_sample((2, 3, 5, 4), (2, 3, 5, 4))
_sample((2, 5, 4), (2, 5, 4), causal=True, scale=None)
_sample((4, 3, 5), (2, 7, 5), dv=3, causal=True)
_sample((2, 7, 4), (2, 3, 4), causal=True, scale=0.3)
_sample((1, 9, 4), (1, 9, 4), causal=True, window=3)
_sample((2, 2, 5, 4), (2, 1, 7, 4), mask=(5, 7), causal=True, scale=0.0)
_sample((1, 5, 4), (1, 9, 4), window=2, softcap=1.5)
_sample((2, 2, 3, 4), (2, 1, 5, 4), mask=(2, 1, 3, 5))
_sample((2, 3, 4), (2, 5, 4), mask=(5,), softcap=3.0, causal=True)
_sample((2, 0, 4), (2, 3, 4))
_sample((2, 3, 4), (2, 0, 4), dv=2)
_sample((0, 2, 3, 4), (0, 1, 3, 4), causal=True)
_sample((0, 3, 4), (0, 3, 4))
_sample((2, 70, 5), (1, 131, 5), causal=True, window=40)
_sample((3, 2, 4, 5), (3, 1, 7, 5), ragged=True, causal=True)
_sample((2, 2, 1, 4), (2, 2, 9, 4), ragged=True, window=3, mask=(9,))
_sample((2, 3, 4), (2, 5, 4), ragged=True)
_sample((0, 2, 3, 4), (0, 2, 5, 4), ragged=True)
_sample((2, 3, 5, 4), (2, 3, 7, 4), bias=(3, 5, 7), causal=True)
_sample((2, 4, 3, 5), (2, 2, 6, 5), dv=3, bias=(2, 1, 3, 6), mask=(2, 4, 1, 6), softcap=1.5)
_sample((4, 5, 4), (2, 7, 4), bias=(5, 7), window=3, scale=0.3)
_sample((2, 2, 3, 4), (2, 2, 6, 4), bias=(2, 1, 1, 6), ragged=True, causal=True)
_sample((2, 2, 3, 4), (2, 1, 6, 4), bias=(2, 2, 3, 6), ragged=True)
_sample((2, 3, 4), (2, 5, 4), bias=(3, 1))
_sample((0, 2, 3, 4), (0, 1, 3, 4), bias=(2, 3, 3))
_sample((2, 3, 4), (2, 0, 4), bias=(2, 3, 0))
