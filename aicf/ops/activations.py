"""Activations, each with an elementwise gradient op of its own, so that a backward pass is one kernel."""

from __future__ import annotations

import math

import numpy as np

from .schema import elementwise


def activation_gradient(emit, name, dy, x, y, **attrs):
    """The gradient of activation `name` with respect to its operand x, where y is its result.

    Emits `<name>_grad(dy, x or y)`; only the one it reads must be there, the other may be None.
    """
    return emit.op(f"{name}_grad", dy, y if name in FROM_RESULT else x, **attrs)


FROM_RESULT = frozenset({"relu", "sigmoid", "tanh"})  # the others need the operand

_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def erf(x):
    """math.erf of each element, in the array's own type."""
    return _erf(x).astype(x.dtype)


def erfc(x):
    """math.erfc of each element, in the array's own type."""
    return _erfc(x).astype(x.dtype)


_SHAPES = [(4, 7), (1,), (2, 3, 5), (0, 3), (1025,), ()]


def _enrol(forward, backward, **attrs):
    for shape in _SHAPES:
        forward.samples(shape, **attrs)
        backward.samples(shape, shape, **attrs)


# --- relu ---------------------------------------------------------------------------------------------------


@elementwise("relu", alias="x", continuous=True)
def relu(x):
    """max(x, 0). NaN stays NaN."""
    return x if x > 0.0 or x != x else 0.0


@relu.reference
def _(x):
    return np.maximum(x, 0)


@relu.gradient
def _(emit, dy, x, y):
    return activation_gradient(emit, "relu", dy, x, y)


@elementwise("relu_grad", results=("dx",), alias="dy")
def relu_grad(dy, y):
    """dy where relu's result y is not 0, else 0. A NaN in y lets dy through."""
    return 0.0 if y <= 0.0 else dy


@relu_grad.reference
def _(dy, y):
    return np.where(y <= 0, 0, dy)


relu_grad.draws(y=lambda rng, shape, shapes: np.maximum(rng.normal(size=shape), 0))
_enrol(relu, relu_grad)

# --- leaky_relu ---------------------------------------------------------------------------------------------


@elementwise("leaky_relu", alias="x", continuous=True)
def leaky_relu(x, *, slope: float = 0.01):
    """x where it is positive, else slope * x. NaN stays NaN."""
    return x if x > 0.0 else x * slope


@leaky_relu.reference
def _(x, slope):
    return np.where(x > 0, x, x * x.dtype.type(slope))


@leaky_relu.gradient
def _(emit, dy, x, y, slope):
    return activation_gradient(emit, "leaky_relu", dy, x, y, slope=slope)


@elementwise("leaky_relu_grad", results=("dx",), alias="dy")
def leaky_relu_grad(dy, x, *, slope: float = 0.01):
    """dy where x is positive, else slope * dy."""
    return dy if x > 0.0 else dy * slope


@leaky_relu_grad.reference
def _(dy, x, slope):
    return np.where(x > 0, dy, dy * dy.dtype.type(slope))


_enrol(leaky_relu, leaky_relu_grad)
leaky_relu.samples((4, 7), slope=0.3)
leaky_relu_grad.samples((4, 7), (4, 7), slope=0.3)

# --- gelu ---------------------------------------------------------------------------------------------------


def logistic(x, one):
    """1 / (1 + e^-x), as precise where it is small: where e^-x overflows the quotient is 0. `one` has the type of x. A kernel whose results are
    halves may have a faster one."""
    return one / (one + math.exp(-x))


def logistic2(x, one):
    """1 / (1 + 2^-x), in the same way."""
    return one / (one + math.exp2(-x))


@elementwise("gelu", alias="x")
def gelu(x):
    """x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 x^3), the tanh form of GELU: x / (1 + e^-2u).

    NaN stays NaN, and -inf gives NaN (it is -inf * 0).
    """
    return x * logistic2(x * (2.302208198144325 + 0.1029432395800235 * (x * x)), 1.0)


@gelu.reference
def _(x):
    return x * (1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


@gelu.gradient
def _(emit, dy, x, y):
    return activation_gradient(emit, "gelu", dy, x, y)


@elementwise("gelu_grad", results=("dx",), alias="dy", flops=23)  # min and max are one each
def gelu_grad(dy, x):
    """dy times the derivative of gelu's tanh form at x. Beyond |x| = 16, where x^3 could overflow, that is 1 or 0."""
    s = logistic2(x * (2.302208198144325 + 0.1029432395800235 * (x * x)), 1.0)
    near = min(max(x, -16.0), 16.0)  # of which NaN may become a number: s is NaN
    return dy * (s + near * (1.5957691216057308 + 0.21406444881780073 * (near * near)) * (s - s * s))


@gelu_grad.reference
def _(dy, x):
    z = np.clip(x, -1e10, 1e10)  # finite, as its cube is: at an infinity the derivative is 1 or 0
    u = math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)
    du = math.sqrt(2 / math.pi) * (1 + 0.134145 * z**2)
    s, rest = 1 / (1 + np.exp(-2 * u)), 1 / (1 + np.exp(2 * u))
    return dy * (s + 2 * z * du * (s * rest))


_enrol(gelu, gelu_grad)

# --- gelu_erf -----------------------------------------------------------------------------------------------


@elementwise("gelu_erf", alias="x")
def gelu_erf(x):
    """x / 2 * (1 + erf(x / sqrt(2))), GELU itself. NaN stays NaN, and -inf gives NaN (it is -inf * 0)."""
    return 0.5 * x * math.erfc(-0.7071067811865476 * x)


@gelu_erf.reference
def _(x):
    return 0.5 * x * erfc(-x / math.sqrt(2))


@gelu_erf.gradient
def _(emit, dy, x, y):
    return activation_gradient(emit, "gelu_erf", dy, x, y)


@elementwise("gelu_erf_grad", results=("dx",), alias="dy")
def gelu_erf_grad(dy, x):
    """dy * (Phi(x) + x phi(x)), with the normal distribution's Phi and phi. An infinite x gives NaN."""
    normal = 0.3989422804014327 * math.exp(-0.5 * x * x)
    return dy * (0.5 * math.erfc(-0.7071067811865476 * x) + x * normal)


@gelu_erf_grad.reference
def _(dy, x):
    return dy * (0.5 * erfc(-x / math.sqrt(2)) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi))


_enrol(gelu_erf, gelu_erf_grad)

# --- silu ---------------------------------------------------------------------------------------------------


@elementwise("silu", alias="x")
def silu(x):
    """x / (1 + exp(-x)), SiLU or swish. NaN stays NaN, and -inf gives NaN (it is -inf * 0)."""
    return x * logistic(x, 1.0)


@silu.reference
def _(x):
    with np.errstate(over="ignore"):
        return x * (1 / (1 + np.exp(-x)))


@silu.gradient
def _(emit, dy, x, y):
    return activation_gradient(emit, "silu", dy, x, y)


@elementwise("silu_grad", results=("dx",), alias="dy")
def silu_grad(dy, x):
    """dy * s * (1 + x * (1 - s)), with s = 1 / (1 + exp(-x)): dy times the derivative of silu at x. An infinite x gives NaN."""
    s = logistic(x, 1.0)
    return dy * (s + x * (s - s * s))


@silu_grad.reference
def _(dy, x):
    with np.errstate(over="ignore"):
        s = 1 / (1 + np.exp(-x))
    return dy * s * (1 + x * (1 - s))


_enrol(silu, silu_grad)

# --- sigmoid and tanh ---------------------------------------------------------------------------------------


@elementwise("sigmoid", alias="x")
def sigmoid(x):
    """1 / (1 + exp(-x)). Where exp overflows to inf, the quotient is the 0 it should be."""
    return 1.0 / (1.0 + math.exp(-x))


@sigmoid.reference
def _(x):
    return 1 / (1 + np.exp(-x))


@sigmoid.gradient
def _(emit, dy, x, y):
    return activation_gradient(emit, "sigmoid", dy, x, y)


@elementwise("sigmoid_grad", results=("dx",), alias="dy")
def sigmoid_grad(dy, y):
    """dy * y * (1 - y), with sigmoid's result y."""
    return dy * y * (1.0 - y)


@sigmoid_grad.reference
def _(dy, y):
    return dy * y * (1 - y)


sigmoid_grad.draws(y=(0, 1))
_enrol(sigmoid, sigmoid_grad)


@elementwise("tanh", alias="x")
def tanh(x):
    """The hyperbolic tangent."""
    return math.tanh(x)


@tanh.reference
def _(x):
    return np.tanh(x)


@tanh.gradient
def _(emit, dy, x, y):
    return activation_gradient(emit, "tanh", dy, x, y)


@elementwise("tanh_grad", results=("dx",), alias="dy")
def tanh_grad(dy, y):
    """dy * (1 - y^2), with tanh's result y; as (1 - y) * (1 + y), which is precise where y is almost 1."""
    return dy * ((1.0 - y) * (1.0 + y))


@tanh_grad.reference
def _(dy, y):
    return dy * ((1 - y) * (1 + y))


tanh_grad.draws(y=(-1, 1))
_enrol(tanh, tanh_grad)
