"""Norms: ops over rows, each made of maps and reductions along one axis. Statistics are f32, whatever the rows are.

None of them has StableHLO's definition; the rules are aicf's own.
"""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec
from .row_steps import ROWS, along, check_axis, enrol, narrow, over, wide
from .schema import ACCUMULATES, F32, Float, FloatOwn, op, require


def _check_vector(x: TensorSpec, v: TensorSpec | None, name: str, constraint: str) -> None:
    if v is not None:
        require(v.shape == x.shape[-1:], constraint, f"{name} has shape {v.shape}, expected {x.shape[-1:]}")


def _check_eps(eps: float, constraint: str) -> None:
    require(eps >= 0 and np.isfinite(eps), constraint, f"eps is {eps}, expected a finite number >= 0")


def _column(x: TensorSpec) -> TensorSpec:
    return TensorSpec((*x.shape[:-1], 1), DType.f32, x.device)


def _times(emit, h, weight):
    return h if weight is None else emit.mul(h, wide(emit, weight))


def _summed(emit, g, like):
    """A gradient of the rows added up to that of a vector."""
    axes = tuple(range(g.rank - 1))
    return narrow(emit, emit.reduce_sum(g, axes=axes, keepdims=False) if axes else g, like)


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
    x32 = wide(emit, x)
    mean = over(emit, "mean", x32, -1)
    centred = emit.sub(x32, mean)
    rstd = emit.div(1.0, emit.sqrt(emit.add(over(emit, "mean", emit.square(centred), -1), eps)))
    y = _times(emit, emit.mul(centred, rstd), weight)
    return narrow(emit, y if bias is None else emit.add(y, wide(emit, bias)), x), mean, rstd


@layer_norm.reference
def _(x, weight=None, bias=None, *, eps):
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps)
    y = (x - mean) * rstd * (1 if weight is None else weight) + (0 if bias is None else bias)
    return y, mean, rstd


@layer_norm.gradient
def _(emit, dy, x, weight, bias, mean, rstd):
    dx = emit.layer_norm_grad(dy, x, mean, rstd, weight)
    normal = None if weight is None else emit.mul(emit.sub(wide(emit, x), mean), rstd)
    dw = None if normal is None else _summed(emit, emit.mul(wide(emit, dy), normal), weight)
    return (
        dx,
        dw,
        None if bias is None else _summed(emit, wide(emit, dy), bias),
    )  # widened in each kernel anew


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
    h = emit.mul(emit.sub(wide(emit, x), mean), rstd)
    g = _times(emit, wide(emit, dy), weight)
    along = emit.mul(h, over(emit, "mean", emit.mul(g, h), -1))
    return narrow(emit, emit.mul(emit.sub(emit.sub(g, over(emit, "mean", g, -1)), along), rstd), x)


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
    x32 = wide(emit, x)
    rstd = emit.div(1.0, emit.sqrt(emit.add(over(emit, "mean", emit.square(x32), -1), eps)))
    return narrow(emit, _times(emit, emit.mul(x32, rstd), weight), x), rstd


@rms_norm.reference
def _(x, weight=None, *, eps):
    rstd = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
    return x * rstd * (1 if weight is None else weight), rstd


@rms_norm.gradient
def _(emit, dy, x, weight, rstd):
    dx = emit.rms_norm_grad(dy, x, rstd, weight)
    if weight is None:
        return dx, None
    return dx, _summed(emit, emit.mul(wide(emit, dy), emit.mul(wide(emit, x), rstd)), weight)


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
    h = emit.mul(wide(emit, x), rstd)
    g = _times(emit, wide(emit, dy), weight)
    along = emit.mul(h, over(emit, "mean", emit.mul(g, h), -1))
    return narrow(emit, emit.mul(emit.sub(g, along), rstd), x)


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


# --- length 1 along any axis ------------------------------------------------------------------------------------------


def _kept(x: TensorSpec, axis: int) -> TensorSpec:
    return TensorSpec(
        tuple(1 if i == axis % x.rank else d for i, d in enumerate(x.shape)), DType.f32, x.device
    )


@op("l2_normalize", results=("y", "rnorm"), core=ROWS, flops=8, public=1, traits=(ACCUMULATES,))
def l2_normalize(x: Float, *, axis: int = -1, eps: float = 1e-12):
    """x * rnorm, with rnorm = 1 / max(sqrt(sum(x^2)), eps) along an axis.

    Shapes: y is x's; rnorm has 1 in the axis' place, and is f32, which the gradient reads. Squares are f32: they
    overflow beyond 1.8e19.

    C1  axis is in [-rank(x), rank(x))
    C2  eps is finite and not negative
    """
    check_axis(x, axis)
    _check_eps(eps, "C2")
    return x, _kept(x, axis)


@l2_normalize.expands
def _(emit, x, axis, eps):
    x32 = wide(emit, x)
    length = emit.sqrt(over(emit, "sum", emit.square(x32), axis))
    rnorm = emit.div(1.0, emit.maximum(length, eps))
    return narrow(emit, emit.mul(x32, rnorm), x), rnorm


@l2_normalize.reference
def _(x, axis, eps):
    rnorm = 1 / np.maximum(np.sqrt((x**2).sum(axis, keepdims=True)), x.dtype.type(eps))
    return x * rnorm, rnorm


@l2_normalize.gradient
def _(emit, dy, x, rnorm, axis, eps):
    return emit.l2_normalize_grad(dy, x, rnorm, axis=axis, eps=eps)


@op("l2_normalize_grad", results=("dx",), core=ROWS, flops=8, traits=(ACCUMULATES,))
def l2_normalize_grad(dy: Float, x: Float, rnorm: F32, *, axis: int = -1, eps: float = 1e-12):
    """l2_normalize's gradient: (dy - h * sum(dy * h)) * rnorm, with h = x * rnorm; dy * rnorm where the length is no more than eps.

    Shapes: dy, x and dx are alike; rnorm has 1 in the axis' place.

    C1  axis is in [-rank(x), rank(x))
    C2  dy has the shape of x
    C3  rnorm has the shape of x, but 1 along the axis
    C4  eps is finite and not negative
    """
    check_axis(x, axis)
    require(dy.shape == x.shape, "C2", f"dy has shape {dy.shape}, x has {x.shape}")
    kept = _kept(x, axis).shape
    require(rnorm.shape == kept, "C3", f"rnorm has shape {rnorm.shape}, expected {kept}")
    _check_eps(eps, "C4")
    return x


@l2_normalize_grad.expands
def _(emit, dy, x, rnorm, axis, eps):
    g, h = wide(emit, dy), emit.mul(wide(emit, x), rnorm)
    outward = emit.select(emit.less(rnorm, _most(eps)), over(emit, "sum", emit.mul(g, h), axis), 0.0)
    return narrow(emit, emit.mul(emit.sub(g, emit.mul(h, outward)), rnorm), x)


@l2_normalize_grad.reference
def _(dy, x, rnorm, axis, eps):
    h = x * rnorm
    outward = np.where(rnorm < _most(eps), (dy * h).sum(axis, keepdims=True), 0)
    return (dy - h * outward) * rnorm


def _most(eps: float) -> float:
    """1 / eps as kernels divide: rnorm of what is no longer than eps."""
    with np.errstate(divide="ignore"):
        return float(np.float32(1) / np.float32(eps))


enrol(l2_normalize, eps=0.5)
l2_normalize_grad.normalizer(along)
for _shape, _axis in [((4, 7), -1), ((4, 7), 0), ((2, 3, 5), 1), ((3, 1025), -1), ((0, 3), -1), ((3, 0), 1)]:
    _c = tuple(1 if i == _axis % len(_shape) else d for i, d in enumerate(_shape))
    l2_normalize_grad.samples(_shape, _shape, _c, axis=_axis, eps=0.1)
