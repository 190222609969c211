"""Softmax and norms: ops over rows, each made of maps and reductions along one axis. Statistics are f32, whatever the rows are.

None of them has StableHLO's definition; the rules are aicf's own.
"""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec, f32
from .arithmetic import check_dtype
from .schema import F32, Float, FloatOwn, is_integer, op, require

ROWS = "rows"


# --- parts of expansions ----------------------------------------------------------------------------------------------


def _wide(emit, x):
    return x if x.dtype is f32 else emit.convert(x, dtype=f32)


def _narrow(emit, y, like):
    return y if like.dtype is f32 else emit.convert(y, dtype=like.dtype)


def _over(emit, how, x, axis):
    return getattr(emit, f"reduce_{how}")(x, axes=(axis,), keepdims=True)


def _check_axis(x: TensorSpec, axis: int) -> None:
    require(-x.rank <= axis < x.rank, "C1", f"axis {axis} is not in [-{x.rank}, {x.rank})")


def _along(specs, attrs):
    """A negative axis counts from the end."""
    rank, axis = specs[0].rank, attrs.get("axis", -1)
    return {**attrs, "axis": axis % rank} if is_integer(axis) and -rank <= axis < rank else attrs


def _enrol(schema, operands=1, **attrs):
    schema.normalizer(_along)
    for shape, axis in [
        ((4, 7), -1),
        ((4, 7), 0),
        ((2, 3, 5), 1),
        ((3, 1025), -1),
        ((1, 1), 1),
        ((0, 3), -1),
        ((3, 0), 1),
    ]:
        schema.samples(*[shape] * operands, axis=axis, **attrs)


# --- the softmax family -----------------------------------------------------------------------------------------------


@op("softmax", core=ROWS, flops=20)
def softmax(x: Float, *, axis: int = -1):
    """exp(x - max) / sum(exp(x - max)) along an axis. A row that is -inf throughout, or has +inf or a NaN, gives NaN.

    Shapes: y is x's.

    C1  axis is in [-rank(x), rank(x))
    """
    _check_axis(x, axis)
    return x


@softmax.expands
def _(emit, x, axis):
    wide = _wide(emit, x)
    e = emit.exp(emit.sub(wide, _over(emit, "max", wide, axis)))
    return _narrow(emit, emit.mul(e, emit.div(1.0, _over(emit, "sum", e, axis))), x)


@softmax.reference
def _(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


@softmax.gradient
def _(emit, dy, y, axis):
    return emit.softmax_grad(dy, y, axis=axis)


@op("softmax_grad", results=("dx",), core=ROWS, flops=6)
def softmax_grad(dy: Float, y: Float, *, axis: int = -1):
    """(dy - sum(dy * y)) * y along an axis: softmax's gradient, of its result.

    Shapes: dx is y's.

    C1  axis is in [-rank(y), rank(y))
    C2  dy has the shape of y
    """
    _check_axis(y, axis)
    require(dy.shape == y.shape, "C2", f"dy has shape {dy.shape}, y has {y.shape}")
    return y


@softmax_grad.expands
def _(emit, dy, y, axis):
    g, p = _wide(emit, dy), _wide(emit, y)
    return _narrow(emit, emit.mul(emit.sub(g, _over(emit, "sum", emit.mul(g, p), axis)), p), y)


@softmax_grad.reference
def _(dy, y, axis):
    return (dy - (dy * y).sum(axis, keepdims=True)) * y


@op("log_softmax", core=ROWS, flops=20)
def log_softmax(x: Float, *, axis: int = -1):
    """x - max - log(sum(exp(x - max))) along an axis.

    Shapes: y is x's.

    C1  axis is in [-rank(x), rank(x))
    """
    _check_axis(x, axis)
    return x


@log_softmax.expands
def _(emit, x, axis):
    wide = _wide(emit, x)
    shifted = emit.sub(wide, _over(emit, "max", wide, axis))
    return _narrow(emit, emit.sub(shifted, emit.log(_over(emit, "sum", emit.exp(shifted), axis))), x)


@log_softmax.reference
def _(x, axis):
    shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


@log_softmax.gradient
def _(emit, dy, y, axis):
    return emit.log_softmax_grad(dy, y, axis=axis)


@op("log_softmax_grad", results=("dx",), core=ROWS, flops=16)
def log_softmax_grad(dy: Float, y: Float, *, axis: int = -1):
    """dy - exp(y) * sum(dy) along an axis: log_softmax's gradient, of its result.

    Shapes: dx is y's.

    C1  axis is in [-rank(y), rank(y))
    C2  dy has the shape of y
    """
    _check_axis(y, axis)
    require(dy.shape == y.shape, "C2", f"dy has shape {dy.shape}, y has {y.shape}")
    return y


@log_softmax_grad.expands
def _(emit, dy, y, axis):
    g = _wide(emit, dy)
    return _narrow(emit, emit.sub(g, emit.mul(emit.exp(_wide(emit, y)), _over(emit, "sum", g, axis))), y)


@log_softmax_grad.reference
def _(dy, y, axis):
    return dy - np.exp(y) * dy.sum(axis, keepdims=True)


@op("logsumexp", core=ROWS, flops=16)
def logsumexp(x: Float, *, axis: int = -1):
    """max + log(sum(exp(x - max))) along an axis, which stays with size 1.

    Shapes: y is x's with 1 in the axis' place.

    C1  axis is in [-rank(x), rank(x))
    """
    _check_axis(x, axis)
    kept = [1 if i == axis % x.rank else d for i, d in enumerate(x.shape)]
    return TensorSpec(tuple(kept), x.dtype, x.device)


@logsumexp.expands
def _(emit, x, axis):
    wide = _wide(emit, x)
    most = _over(emit, "max", wide, axis)
    return _narrow(
        emit, emit.add(emit.log(_over(emit, "sum", emit.exp(emit.sub(wide, most)), axis)), most), x
    )


@logsumexp.reference
def _(x, axis):
    most = x.max(axis, keepdims=True, initial=-np.inf)
    return most + np.log(np.exp(x - most).sum(axis, keepdims=True))


@logsumexp.gradient
def _(emit, dy, x, y, axis):
    return emit.mul(emit.exp(emit.sub(x, y)), dy)


for _schema, _operands in (
    (softmax, 1),
    (softmax_grad, 2),
    (log_softmax, 1),
    (log_softmax_grad, 2),
    (logsumexp, 1),
):
    _enrol(_schema, _operands)


# --- norms of the last axis -------------------------------------------------------------------------------------------


def _check_vector(x: TensorSpec, v: TensorSpec | None, name: str, constraint: str) -> None:
    if v is not None:
        require(v.shape == x.shape[-1:], constraint, f"{name} has shape {v.shape}, expected {x.shape[-1:]}")


def _check_eps(eps: float, constraint: str) -> None:
    require(eps >= 0 and np.isfinite(eps), constraint, f"eps is {eps}, expected a finite number >= 0")


def _column(x: TensorSpec) -> TensorSpec:
    return TensorSpec((*x.shape[:-1], 1), DType.f32, x.device)


def _times(emit, h, weight):
    return h if weight is None else emit.mul(h, _wide(emit, weight))


def _summed(emit, g, like):
    """A gradient of the rows added up to that of a vector."""
    axes = tuple(range(g.rank - 1))
    return _narrow(emit, emit.reduce_sum(g, axes=axes, keepdims=False) if axes else g, like)


@op("layer_norm", results=("y", "mean", "rstd"), core=ROWS, flops=12, public=1)
def layer_norm(x: Float, weight: FloatOwn = None, bias: FloatOwn = None, *, eps: float = 1e-5):
    """(x - mean) * rstd * weight + bias along the last axis, with rstd = 1 / sqrt(mean((x - mean)^2) + eps).

    Shapes: x and y (..., N), weight and bias (N,); mean and rstd (..., 1), of f32, which the gradient reads.

    C1  x has rank 1 or more
    C2  weight has shape (N,)
    C3  bias has shape (N,)
    C4  eps is finite and not negative
    """
    require(x.rank >= 1, "C1", f"x has rank {x.rank}, expected 1 or more")
    _check_vector(x, weight, "weight", "C2")
    _check_vector(x, bias, "bias", "C3")
    _check_eps(eps, "C4")
    return x, _column(x), _column(x)


@layer_norm.expands
def _(emit, x, weight, bias, eps):
    wide = _wide(emit, x)
    mean = _over(emit, "mean", wide, -1)
    centred = emit.sub(wide, mean)
    rstd = emit.div(1.0, emit.sqrt(emit.add(_over(emit, "mean", emit.square(centred), -1), eps)))
    y = _times(emit, emit.mul(centred, rstd), weight)
    return _narrow(emit, y if bias is None else emit.add(y, _wide(emit, bias)), x), mean, rstd


@layer_norm.reference
def _(x, weight=None, bias=None, *, eps):
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    y = (x - mean) * rstd * (1 if weight is None else weight) + (0 if bias is None else bias)
    return y, mean, rstd


@layer_norm.gradient
def _(emit, dy, x, weight, bias, mean, rstd):
    g = _wide(emit, dy)
    dx = emit.layer_norm_grad(dy, x, mean, rstd, weight)
    normal = None if weight is None else emit.mul(emit.sub(_wide(emit, x), mean), rstd)
    dw = None if normal is None else _summed(emit, emit.mul(g, normal), weight)
    return dx, dw, None if bias is None else _summed(emit, g, bias)


@op("layer_norm_grad", results=("dx",), core=ROWS, flops=16)
def layer_norm_grad(dy: Float, x: Float, mean: F32, rstd: F32, weight: FloatOwn = None):
    """layer_norm's gradient of x: (g - mean(g) - h * mean(g * h)) * rstd, with g = dy * weight and h = (x - mean) * rstd.

    Shapes: dy, x and dx (..., N), mean and rstd (..., 1), weight (N,).

    C1  dy has the shape of x
    C2  mean has shape (..., 1)
    C3  rstd has shape (..., 1)
    C4  weight has shape (N,)
    C5  x has rank 1 or more
    """
    require(x.rank >= 1, "C5", f"x has rank {x.rank}, expected 1 or more")
    require(dy.shape == x.shape, "C1", f"dy has shape {dy.shape}, x has {x.shape}")
    for constraint, name, v in (("C2", "mean", mean), ("C3", "rstd", rstd)):
        require(
            v.shape == _column(x).shape,
            constraint,
            f"{name} has shape {v.shape}, expected {_column(x).shape}",
        )
    _check_vector(x, weight, "weight", "C4")
    return x


@layer_norm_grad.expands
def _(emit, dy, x, mean, rstd, weight):
    h = emit.mul(emit.sub(_wide(emit, x), mean), rstd)
    g = _times(emit, _wide(emit, dy), weight)
    along = emit.mul(h, _over(emit, "mean", emit.mul(g, h), -1))
    return _narrow(emit, emit.mul(emit.sub(emit.sub(g, _over(emit, "mean", g, -1)), along), rstd), x)


@layer_norm_grad.reference
def _(dy, x, mean, rstd, weight=None):
    h, g = (x - mean) * rstd, dy * (1 if weight is None else weight)
    return (g - g.mean(-1, keepdims=True) - h * (g * h).mean(-1, keepdims=True)) * rstd


@op("rms_norm", results=("y", "rstd"), core=ROWS, flops=8, public=1)
def rms_norm(x: Float, weight: FloatOwn = None, *, eps: float = 1e-6):
    """x * rstd * weight along the last axis, with rstd = 1 / sqrt(mean(x^2) + eps).

    Shapes: x and y (..., N), weight (N,); rstd (..., 1), of f32, which the gradient reads.

    C1  x has rank 1 or more
    C2  weight has shape (N,)
    C3  eps is finite and not negative
    """
    require(x.rank >= 1, "C1", f"x has rank {x.rank}, expected 1 or more")
    _check_vector(x, weight, "weight", "C2")
    _check_eps(eps, "C3")
    return x, _column(x)


@rms_norm.expands
def _(emit, x, weight, eps):
    wide = _wide(emit, x)
    rstd = emit.div(1.0, emit.sqrt(emit.add(_over(emit, "mean", emit.square(wide), -1), eps)))
    return _narrow(emit, _times(emit, emit.mul(wide, rstd), weight), x), rstd


@rms_norm.reference
def _(x, weight=None, *, eps):
    rstd = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * rstd * (1 if weight is None else weight), rstd


@rms_norm.gradient
def _(emit, dy, x, weight, rstd):
    dx = emit.rms_norm_grad(dy, x, rstd, weight)
    if weight is None:
        return dx, None
    return dx, _summed(emit, emit.mul(_wide(emit, dy), emit.mul(_wide(emit, x), rstd)), weight)


@op("rms_norm_grad", results=("dx",), core=ROWS, flops=12)
def rms_norm_grad(dy: Float, x: Float, rstd: F32, weight: FloatOwn = None):
    """rms_norm's gradient of x: (g - h * mean(g * h)) * rstd, with g = dy * weight and h = x * rstd.

    Shapes: dy, x and dx (..., N), rstd (..., 1), weight (N,).

    C1  dy has the shape of x
    C2  rstd has shape (..., 1)
    C3  weight has shape (N,)
    C4  x has rank 1 or more
    """
    require(x.rank >= 1, "C4", f"x has rank {x.rank}, expected 1 or more")
    require(dy.shape == x.shape, "C1", f"dy has shape {dy.shape}, x has {x.shape}")
    require(rstd.shape == _column(x).shape, "C2", f"rstd has shape {rstd.shape}, expected {_column(x).shape}")
    _check_vector(x, weight, "weight", "C3")
    return x


@rms_norm_grad.expands
def _(emit, dy, x, rstd, weight):
    h = emit.mul(_wide(emit, x), rstd)
    g = _times(emit, _wide(emit, dy), weight)
    along = emit.mul(h, _over(emit, "mean", emit.mul(g, h), -1))
    return _narrow(emit, emit.mul(emit.sub(g, along), rstd), x)


@rms_norm_grad.reference
def _(dy, x, rstd, weight=None):
    h, g = x * rstd, dy * (1 if weight is None else weight)
    return (g - h * (g * h).mean(-1, keepdims=True)) * rstd


for _shape in [(4, 7), (2, 3, 5), (3, 1025), (5,), (0, 3)]:
    _n, _c = _shape[-1:], (*_shape[:-1], 1)
    layer_norm.samples(_shape, _n, _n)
    rms_norm.samples(_shape, _n)
    layer_norm_grad.samples(_shape, _shape, _c, _c, _n)
    rms_norm_grad.samples(_shape, _shape, _c, _n)
layer_norm.samples((4, 7), None, (7,), eps=0.1)
layer_norm.samples((4, 7), (7,), None)
rms_norm.samples((4, 7), None, eps=0.1)
layer_norm_grad.samples((4, 7), (4, 7), (4, 1), (4, 1), None)
rms_norm_grad.samples((4, 7), (4, 7), (4, 1), None)


# --- numbers inside of expansions -------------------------------------------------------------------------------------


@op("number")
def number(*, value: float, dtype: int):
    """A 0-D constant that is computed where it is used.

    C1  dtype is the id of an element type
    """
    check_dtype(dtype, "C1")
    return TensorSpec((), DType.from_id(dtype))


@number.maps(lambda value, dtype: (), lambda attrs: {"value": np.float32(attrs["value"])})
def _(*, value):
    return value


@number.reference
def _(value, dtype):
    return np.full((), value, DType.from_id(dtype).numpy)


number.samples(value=-2.5, dtype=f32.id)
