"""The softmax family: ops over rows, each made of maps and reductions along one axis. Statistics are f32, whatever the rows are.

None of them has StableHLO's definition; the rules are aicf's own.
"""

from __future__ import annotations

import math

import numpy as np

from ..types import TensorSpec
from .row_steps import ROWS, check_axis, enrol, narrow, over, wide
from .schema import ACCUMULATES, Float, op, require


def _check_gradient(dy: TensorSpec, y: TensorSpec, axis: int) -> TensorSpec:
    check_axis(y, axis)
    require(dy.shape == y.shape, "C2", f"dy has shape {dy.shape}, y has {y.shape}")
    return y


@op("softmax", core=ROWS, flops=20, traits=(ACCUMULATES,))
def softmax(x: Float, *, axis: int = -1):
    """exp(x - max) / sum(exp(x - max)) along an axis. A row that is -inf throughout, or has +inf or a NaN, gives NaN.

    Shapes: y is x's.

    C1  axis is in [-rank(x), rank(x))
    """
    check_axis(x, axis)
    return x


@softmax.expands
def _(emit, x, axis):
    x32 = wide(emit, x)
    e = emit.exp(emit.sub(x32, over(emit, "max", x32, axis)))
    return narrow(emit, emit.mul(e, emit.div(1.0, over(emit, "sum", e, axis))), x)


@softmax.reference
def _(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


@softmax.gradient
def _(emit, dy, y, axis):
    return emit.softmax_grad(dy, y, axis=axis)


@op("softmax_grad", results=("dx",), core=ROWS, flops=6, traits=(ACCUMULATES,))
def softmax_grad(dy: Float, y: Float, *, axis: int = -1):
    """(dy - sum(dy * y)) * y along an axis: softmax's gradient, of its result.

    Shapes: dx is y's.

    C1  axis is in [-rank(y), rank(y))
    C2  dy has the shape of y
    """
    return _check_gradient(dy, y, axis)


@softmax_grad.expands
def _(emit, dy, y, axis):
    g, p = wide(emit, dy), wide(emit, y)
    return narrow(emit, emit.mul(emit.sub(g, over(emit, "sum", emit.mul(g, p), axis)), p), y)


@softmax_grad.reference
def _(dy, y, axis):
    return (dy - (dy * y).sum(axis, keepdims=True)) * y


@op("log_softmax", core=ROWS, flops=20, traits=(ACCUMULATES,))
def log_softmax(x: Float, *, axis: int = -1):
    """x - max - log(sum(exp(x - max))) along an axis.

    Shapes: y is x's.

    C1  axis is in [-rank(x), rank(x))
    """
    check_axis(x, axis)
    return x


@log_softmax.expands
def _(emit, x, axis):
    x32 = wide(emit, x)
    shifted = emit.sub(x32, over(emit, "max", x32, axis))
    return narrow(emit, emit.sub(shifted, emit.log(over(emit, "sum", emit.exp(shifted), axis))), x)


@log_softmax.reference
def _(x, axis):
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@log_softmax.gradient
def _(emit, dy, y, axis):
    return emit.log_softmax_grad(dy, y, axis=axis)


@op("log_softmax_grad", results=("dx",), core=ROWS, flops=16, traits=(ACCUMULATES,))
def log_softmax_grad(dy: Float, y: Float, *, axis: int = -1):
    """dy - exp(y) * sum(dy) along an axis: log_softmax's gradient, of its result.

    Shapes: dx is y's.

    C1  axis is in [-rank(y), rank(y))
    C2  dy has the shape of y
    """
    return _check_gradient(dy, y, axis)


@log_softmax_grad.expands
def _(emit, dy, y, axis):
    g = wide(emit, dy)
    return narrow(emit, emit.sub(g, emit.mul(emit.exp(wide(emit, y)), over(emit, "sum", g, axis))), y)


@log_softmax_grad.reference
def _(dy, y, axis):
    return dy - np.exp(y) * dy.sum(axis, keepdims=True)


@op("logsumexp", core=ROWS, flops=16, traits=(ACCUMULATES,))
def logsumexp(x: Float, *, axis: int = -1):
    """max + log(sum(exp(x - max))) along an axis, which stays with size 1. A row that is -inf throughout, or has +inf, gives that infinity.

    Shapes: y is x's with 1 in the axis' place.

    C1  axis is in [-rank(x), rank(x))
    """
    check_axis(x, axis)
    kept = [1 if i == axis % x.rank else d for i, d in enumerate(x.shape)]
    return TensorSpec(tuple(kept), x.dtype, x.device)


@logsumexp.expands
def _(emit, x, axis):
    x32 = wide(emit, x)
    most = over(emit, "max", x32, axis)
    # inf - inf is NaN; without a shift exp and log keep infinities
    most = emit.select(emit.is_inf(most), 0.0, most)
    return narrow(emit, emit.add(emit.log(over(emit, "sum", emit.exp(emit.sub(x32, most)), axis)), most), x)


@logsumexp.reference
def _(x, axis):
    most = x.max(axis, keepdims=True, initial=-np.inf)
    most = np.where(np.isinf(most), 0, most)
    return most + np.log(np.exp(x - most).sum(axis, keepdims=True))


@logsumexp.gradient
def _(emit, dy, x, y, axis):
    y = emit.select(emit.equal(y, -math.inf), 0.0, y)  # a row of -inf has no gradient: exp(x) is 0
    return emit.mul(emit.exp(emit.sub(x, y)), dy)


for _schema, _operands in (
    (softmax, 1),
    (softmax_grad, 2),
    (log_softmax, 1),
    (log_softmax_grad, 2),
    (logsumexp, 1),
):
    enrol(_schema, _operands)
