"""What losses of elements and of pairs of vectors are made of, where other ops would not have their slope."""

from __future__ import annotations

import math

import numpy as np

from ..types import TensorSpec
from .arithmetic import unbroadcast
from .row_steps import along, narrow, wide
from .schema import ACCUMULATES, Float, Real, elementwise, op, require


@elementwise("xlogy", types=Real, continuous=True)
def xlogy(a, b):
    """a * log(b), and 0 where a is 0 and b is a number, be it what it may. There the gradient of both is 0."""
    return 0.0 if a == 0.0 and b == b else a * math.log(b)


@xlogy.reference
def _(a, b):
    return np.where((a == 0) & ~np.isnan(b), a.dtype.type(0), a * np.log(b))


@xlogy.gradient
def _(emit, dy, a, b):
    nothing = emit.equal(a, 0)
    da = emit.select(nothing, 0, emit.mul(dy, emit.log(b)))
    db = emit.select(nothing, 0, emit.mul(dy, emit.div(a, b)))
    return unbroadcast(emit, da, a), unbroadcast(emit, db, b)


@elementwise("binary_cross_entropy", continuous=True)
def binary_cross_entropy(p, t):
    """-(t * log(p) + (1 - t) * log(1 - p)), of probabilities p and t.

    As in PyTorch a log counts as -100 at least, and p * (1 - p), by which the slope is divided, as 1e-12."""
    hit, miss = math.log(p), math.log(1.0 - p)
    return -(t * (-100.0 if hit < -100.0 else hit) + (1.0 - t) * (-100.0 if miss < -100.0 else miss))


@binary_cross_entropy.reference
def _(p, t):
    hit, miss = np.maximum(np.log(p), p.dtype.type(-100)), np.maximum(np.log(1 - p), p.dtype.type(-100))
    return -(t * hit + (1 - t) * miss)


@binary_cross_entropy.gradient
def _(emit, dy, p, t):
    rest = emit.sub(1.0, p)
    dp = emit.div(emit.mul(dy, emit.sub(p, t)), emit.maximum(emit.mul(p, rest), 1e-12))
    logs = [emit.maximum(emit.log(x), -100.0) for x in (p, rest)]
    dt = emit.mul(dy, emit.sub(logs[1], logs[0]))
    return unbroadcast(emit, dp, p), unbroadcast(emit, dt, t)


@op("cosine_similarity", traits=(ACCUMULATES,))
def cosine_similarity(a: Float, b: Float, *, axis: int = -1, eps: float = 1e-8):
    """The cosine of the angle between vectors along an axis: sum(a * b) / (max(|a|, eps) * max(|b|, eps)).

    Shapes: a and b are alike, the result is without the axis. Halves are computed in f32.

    C1  axis is in [-rank(a), rank(a))
    C2  a and b have one shape
    C3  eps > 0
    """
    require(-a.rank <= axis < a.rank, "C1", f"axis {axis} is not in [-{a.rank}, {a.rank})")
    require(a.shape == b.shape, "C2", f"a has shape {a.shape}, b {b.shape}")
    require(eps > 0, "C3", f"eps is {eps}, expected more than 0")
    return TensorSpec(tuple([n for k, n in enumerate(a.shape) if k != axis % a.rank]), a.dtype, a.device)


cosine_similarity.normalizer(along)


@cosine_similarity.replaced_by
def _(emit, a, b, axis, eps):
    wides = wide(emit, a), wide(emit, b)
    units = [emit.l2_normalize(x, axis=axis, eps=eps) for x in wides]
    units = [u[0] if isinstance(u, tuple) else u for u in units]  # a graph gives what is public alone
    return narrow(emit, emit.reduce_sum(emit.mul(*units), axes=(axis,), keepdims=False), a)


@cosine_similarity.reference
def _(a, b, axis, eps):
    a, b = (x / np.maximum(np.sqrt(np.sum(np.square(x), axis, keepdims=True)), eps) for x in (a, b))
    return np.sum(a * b, axis)


def _shares(rng, shape, shapes):
    return rng.uniform(0.05, 0.95, shape)


xlogy.draws(a=(0.1, 2), b=(0.1, 2))
binary_cross_entropy.draws(p=_shares, t=_shares)
for _schema in (xlogy, binary_cross_entropy):
    for _shapes in (((4, 7), (4, 7)), ((4, 1), (3, 1, 7)), ((0, 3), (1, 3)), ((1025,), ())):
        _schema.samples(*_shapes)
cosine_similarity.samples((4, 7), (4, 7))
cosine_similarity.samples((2, 3, 5), (2, 3, 5), axis=1, eps=1e-3)
cosine_similarity.samples((7,), (7,))
cosine_similarity.samples((0, 3), (0, 3))
