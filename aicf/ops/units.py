"""More activations: the exponential linear units, softplus, and those made of clamps. The commonest are in activations.py."""

from __future__ import annotations

import math

import numpy as np

from .arithmetic import unbroadcast
from .schema import Number, Real, elementwise

_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

# --- exponential linear units -----------------------------------------------------------------------------------------


@elementwise("softplus", types=Real, alias="x", continuous=True)
def softplus(x, *, beta: float = 1.0):
    """log(1 + exp(beta * x)) / beta, by what overflows nowhere. beta is not 0."""
    z = x * beta
    return ((z if z > 0.0 else 0.0) + math.log1p(math.exp(-abs(z)))) / beta


@softplus.reference
def _(x, beta):
    return np.logaddexp(0, x * x.dtype.type(beta)) / x.dtype.type(beta)


@softplus.gradient
def _(emit, dy, x, beta):
    return emit.mul(dy, emit.sigmoid(x if beta == 1 else emit.scale(x, factor=beta)))


@elementwise("elu", types=Real, alias="x", continuous=True)
def elu(x, *, alpha: float = 1.0):
    """x where it is positive, else alpha * (exp(x) - 1)."""
    return x if x > 0.0 else alpha * math.expm1(x)


@elu.reference
def _(x, alpha):
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(x))


@elu.gradient
def _(emit, dy, x, alpha):
    below = emit.scale(emit.mul(dy, emit.exp(emit.minimum(x, 0.0))), factor=alpha)
    return emit.select(emit.greater(x, 0.0), dy, below)


@elementwise("selu", types=Real, alias="x", continuous=True)
def selu(x):
    """1.0507 * x where it is positive, else 1.0507 * 1.67326 * (exp(x) - 1): the scaled unit, with its paper's constants."""
    return 1.0507009873554805 * (x if x > 0.0 else 1.6732632423543772 * math.expm1(x))


@selu.reference
def _(x):
    scale, alpha = x.dtype.type(_SELU_SCALE), x.dtype.type(_SELU_ALPHA)
    return scale * np.where(x > 0, x, alpha * np.expm1(x))


@selu.gradient
def _(emit, dy, x):
    below = emit.scale(emit.exp(emit.minimum(x, 0.0)), factor=_SELU_SCALE * _SELU_ALPHA)
    return emit.mul(dy, emit.select(emit.greater(x, 0.0), _SELU_SCALE, below))


@elementwise("celu", types=Real, alias="x", continuous=True)
def celu(x, *, alpha: float = 1.0):
    """x where it is positive, else alpha * (exp(x / alpha) - 1). alpha is not 0."""
    return x if x > 0.0 else alpha * math.expm1(x / alpha)


@celu.reference
def _(x, alpha):
    return np.where(x > 0, x, x.dtype.type(alpha) * np.expm1(x / x.dtype.type(alpha)))


@celu.gradient
def _(emit, dy, x, alpha):
    below = emit.mul(dy, emit.exp(emit.scale(emit.minimum(x, 0.0), factor=1 / alpha)))
    return emit.select(emit.greater(x, 0.0), dy, below)


@elementwise("mish", types=Real, alias="x")
def mish(x):
    """x * tanh(softplus(x)); -inf gives NaN (it is -inf * 0)."""
    e = math.exp(min(x, 20.0))  # beyond, the tanh is 1; of which NaN may become a number
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@mish.reference
def _(x):
    return x * np.tanh(np.logaddexp(0, x))


@mish.gradient
def _(emit, dy, x):
    t = emit.tanh(emit.softplus(x))
    slope = emit.add(t, emit.mul(emit.mul(x, emit.sigmoid(x)), emit.sub(1.0, emit.square(t))))
    return emit.mul(dy, slope)


# --- made of clamps ---------------------------------------------------------------------------------------------------


@elementwise("clamp", types=Number, continuous=True)
def clamp(low, x, high):
    """min(max(x, low), high): x, but low where it is less, and high where it is greater. NaN of any stays NaN.

    relu6 is clamp(0, x, 6). The gradient goes to x where it is within both, to low where x is less, to high where it is greater.
    StableHLO's clamp takes bounds of rank 0 or of the shape of x; here all three broadcast.
    """
    raised = low if x < low or low != low else x
    return high if raised > high or high != high else raised


@clamp.reference
def _(low, x, high):
    return np.minimum(np.maximum(x, low), high)


@clamp.gradient
def _(emit, dy, low, x, high):
    """As PyTorch's: where low > high the result is high, and nothing depends on low or x."""
    raised = emit.maximum(x, low)
    free = emit.less_equal(raised, high)
    inside = emit.logical_and(emit.greater_equal(x, low), free)
    below = emit.logical_and(emit.less(x, low), free)
    return (
        unbroadcast(emit, emit.select(below, dy, 0), low),
        unbroadcast(emit, emit.select(inside, dy, 0), x),
        unbroadcast(emit, emit.select(free, 0, dy), high),
    )


@elementwise("hard_sigmoid", types=Real, alias="x", continuous=True)
def hard_sigmoid(x, *, slope: float = 1 / 6, offset: float = 0.5):
    """slope * x + offset within 0 and 1. NaN stays NaN."""
    y = slope * x + offset
    return 0.0 if y < 0.0 else 1.0 if y > 1.0 else y


@hard_sigmoid.reference
def _(x, slope, offset):
    return np.clip(x.dtype.type(slope) * x + x.dtype.type(offset), 0, 1)


@hard_sigmoid.gradient
def _(emit, dy, y, slope):
    inside = emit.logical_and(emit.greater(y, 0.0), emit.less(y, 1.0))
    return emit.select(inside, emit.scale(dy, factor=slope), 0)


@elementwise("hard_swish", types=Real, alias="x", continuous=True)
def hard_swish(x):
    """x * (x / 6 + 0.5), with the factor within 0 and 1; -inf gives NaN (it is -inf * 0)."""
    s = x * 0.16666666666666666 + 0.5
    return x * (0.0 if s < 0.0 else 1.0 if s > 1.0 else s)


@hard_swish.reference
def _(x):
    return x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1)


@hard_swish.gradient
def _(emit, dy, x):
    inside = emit.mul(dy, emit.add(emit.scale(x, factor=1 / 3), 0.5))
    return emit.select(emit.greater(x, 3.0), dy, emit.select(emit.less(x, -3.0), 0, inside))


for _schema in (softplus, elu, selu, celu, mish, hard_sigmoid, hard_swish):
    for _shape in ((4, 7), (0, 3), ()):
        _schema.samples(_shape)
softplus.samples((4, 7), beta=2.5)
for _schema in (elu, celu):
    _schema.samples((4, 7), alpha=0.7)
hard_sigmoid.samples((4, 7), slope=0.2, offset=0.4)
clamp.draws(low=(-1.5, 0.5), high=(0, 1.5))
clamp.samples((4, 7), (4, 7), (4, 7))
clamp.samples((), (4, 7), ())
clamp.samples((3, 1, 7), (4, 1), (7,))
clamp.samples((0, 3), (0, 3), ())
