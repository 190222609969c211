"""Functions of one number over the range of its type, tails included: relative errors in units of the last place (ulp), against wider
arithmetic and formulas that cancel nowhere. Operands are drawn, log-uniform over all magnitudes and over those around 1, of both signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from draws.seeds import rng
from ops.numpy_emitter import NumpyEmitter, Tensor

import aicf
from aicf import nn
from aicf.ops.activations import FROM_RESULT
from aicf.ops.schema import ELEMENTWISE, OpSchema, schemas
from aicf.types import DType, bf16, f16, f32, f64

ULPS = 4.0  # of the result: functions of math have two or three
NEIGHBOURS = 4.0  # of the operand, in ulps, where a result may be that of a neighbour: see SENSITIVE
# Results that are less than so many times the smallest normal number are not compared: a factor of theirs is subnormal, or the inverse
# of one overflows, as in PyTorch and JAX: silu(-90) is -90 times 8e-40, and 0.
UNDERFLOW = 2.0**8

L = np.longdouble
erf, erfc = (np.vectorize(f, otypes=[np.float64]) for f in (math.erf, math.erfc))
SLOPE = np.float32(0.01)
ROOT = 2 * np.sqrt(2 / L(math.pi))


def sigmoid(x):
    e = np.exp(-abs(x))
    return np.where(x > 0, 1, e) / (1 + e)


def twice_u(x):
    """Of the tanh form of gelu, which is x * sigmoid(2 u)."""
    return ROOT * (x + L("0.044715") * x**3)


def normal_cdf(x):
    return 0.5 * erfc(np.asarray(-x / np.sqrt(L(2)), np.float64))


def expm1_below(x):
    return np.expm1(np.minimum(x, 0))


def mish(x):
    e = np.exp(-abs(x))
    n, rest = np.where(x > 0, 1 + 2 * e, e * (e + 2)), np.where(x > 0, 2 * e * e, 2)
    return x * n / (n + rest)


def gelu_slope(x):
    z = twice_u(x)
    return sigmoid(z) * (1 + x * ROOT * (1 + 3 * L("0.044715") * x * x) * sigmoid(-z))


def gelu_erf_slope(x):
    return normal_cdf(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * L(math.pi))


WANTED: dict[str, Callable[..., Any]] = {
    "abs": abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atanh": np.arctanh,
    "cbrt": np.cbrt, "celu": lambda x: np.where(x > 0, x, expm1_below(x)), "cos": np.cos, "cosh": np.cosh,
    "elu": lambda x: np.where(x > 0, x, expm1_below(x)), "erf": lambda x: erf(np.float64(x)), "erfc": lambda x: erfc(np.float64(x)),
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "gelu": lambda x: x * sigmoid(twice_u(x)),
    "gelu_erf": lambda x: x * normal_cdf(x), "gelu_erf_grad": gelu_erf_slope, "gelu_grad": gelu_slope,
    "hard_sigmoid": lambda x: np.clip(x / 6 + L("0.5"), 0, 1), "hard_swish": lambda x: x * np.clip(x / 6 + L("0.5"), 0, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, x * L(SLOPE)), "leaky_relu_grad": lambda x: np.where(x > 0, 1, L(SLOPE)),
    "log": np.log, "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "mish": mish, "neg": np.negative, "reciprocal": lambda x: 1 / x,
    "relu": lambda x: np.maximum(x, 0), "relu_grad": lambda x: np.where(x > 0, L(1), 0), "rsqrt": lambda x: 1 / np.sqrt(x),
    "selu": lambda x: L("1.0507009873554805") * np.where(x > 0, x, L("1.6732632423543772") * expm1_below(x)), "sigmoid": sigmoid,
    "sigmoid_grad": lambda y: y * (1 - y), "silu": lambda x: x * sigmoid(x), "silu_grad": lambda x: sigmoid(x) * (1 + x * sigmoid(-x)),
    "sin": np.sin, "sinh": np.sinh, "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-abs(x))), "sqrt": np.sqrt,
    "square": lambda x: x * x, "tan": np.tan, "tanh": np.tanh, "tanh_grad": lambda y: 1 - y * y,
}  # fmt: skip
# Where one more digit of an intermediate result changes many of the result's: beside a root, or in the exponent of a tail. What
# is computed is right for an operand that is NEIGHBOURS ulps away, to so many ulps; more where x is multiplied by 1 - s and s is almost 1.
SENSITIVE = {
    "gelu": ULPS, "gelu_erf": ULPS, "gelu_erf_grad": ULPS, "gelu_grad": 24.0, "hard_sigmoid": ULPS, "hard_swish": ULPS, "silu_grad": 16.0,
}  # fmt: skip
APART = {
    "ceil": "exact", "floor": "exact", "round": "exact", "round_half_away": "exact", "trunc": "exact", "sign": "exact", "copy": "exact",
    "convert": "rounding", "scale": "one product", "erf_inv": "tests/cpu/test_functions.py, by what it is the inverse of",
    "is_finite": "a bool", "is_inf": "a bool", "is_nan": "a bool", "muon_norm": "f32 alone, a number", "stop_gradient": "a copy",
}  # fmt: skip


def functions(dtype: DType) -> list[OpSchema]:
    """Elementwise ops of one float, and the gradient ops of activations, from the registry."""
    found = []
    for schema in schemas():
        alone = len(schema.operands) == 1 or (schema.name.endswith("_grad") and len(schema.operands) == 2)
        takes = all(dtype in d.type.dtypes for d in schema.operands)
        if ELEMENTWISE in schema.traits and alone and takes and schema.origin == "aicf":
            found.append(schema)
    return [s for s in found if s.name not in APART]


def drawn(draw: np.random.Generator, dtype: DType, count: int = 2000) -> np.ndarray:
    info = ml_dtypes.finfo(dtype.numpy)
    least, most = math.log2(float(info.smallest_normal)), math.log2(float(info.max))
    powers = draw.uniform(least, most, count), draw.uniform(max(least, -8), min(most, 10), count)
    x = np.exp2(np.concatenate(powers)) * draw.choice([-1, 1], 2 * count)
    return x.astype(dtype.numpy)


def wrong(
    got: np.ndarray, x: np.ndarray, want: Callable[..., Any], dtype: DType, ulps: float, sensitive: bool
) -> str:
    """The worst of the results that are further off than so many ulps; "" if there are none."""
    info, wide = ml_dtypes.finfo(dtype.numpy), x.astype(L)
    eps, least, most = float(info.eps), float(info.smallest_normal), float(info.max)
    with np.errstate(all="ignore"):
        y, got = np.asarray(want(wide), L), got.astype(L)
        room = ulps * eps * abs(y)
        if sensitive:
            for step in (-NEIGHBOURS, NEIGHBOURS):
                room = np.fmax(room, ulps * eps * abs(y) + abs(want(wide * (1 + L(step * eps))) - y))
        beyond = abs(y) > most * (1 - 2 * eps)  # may be infinite
        room = np.where(beyond, np.inf, np.where(abs(y) < least * UNDERFLOW, least * UNDERFLOW, room))
        off = np.where(np.isnan(y), np.where(np.isnan(got), 0, np.inf), np.where(got == y, 0, abs(got - y)))
        off = np.where(beyond & ~np.isnan(got), 0, np.where(np.isnan(off), np.inf, off))
        over = np.where(off > room, off / np.maximum(abs(y), least), 0)
    at = int(np.argmax(over))
    return f"({x[at]!r}) = {got[at]}, expected {y[at]}: {over[at] / eps:.3g} ulps off" if over[at] else ""


def results(x: np.ndarray, ops: list[OpSchema], dtype: DType, device: str) -> dict[str, np.ndarray]:
    class All(nn.Layer):
        def emit(self, ctx, x, one):
            return {s.name: getattr(ctx, s.name)(*[one] * (len(s.operands) - 1), x) for s in ops}

    spec = aicf.TensorSpec(x.shape, dtype)
    program = aicf.compile(nn.Model({"x": spec, "one": spec}, All()), device=device)
    return {name: y.numpy() for name, y in program.run({"x": x, "one": np.ones_like(x)}).items()}


def test_each_function_of_a_float_has_what_it_is_compared_with():
    for dtype in (f32, f16, bf16, f64):
        names = {schema.name for schema in functions(dtype)}
        assert names <= WANTED.keys(), (
            f"on {dtype}: {sorted(names - WANTED.keys())} want an entry of WANTED, or of APART"
        )
    assert WANTED.keys() == {schema.name for schema in functions(f32)}


ON_GPU = [
    pytest.param(dtype, "cuda", marks=pytest.mark.gpu) for dtype in (f32, f16, bf16)
]  # f64 has no kernels


@pytest.mark.parametrize(
    "dtype, device", [*((dtype, "cpu") for dtype in (f32, f16, bf16, f64)), *ON_GPU], ids=str
)
def test_functions_are_precise_in_their_tails(dtype, device):
    x, ops = drawn(rng("tails", dtype.name), dtype), functions(dtype)
    ulps = ULPS if dtype is not f64 else 4 * ULPS  # the reference has itself some
    made = results(x, ops, dtype, device)
    found = {
        n: wrong(y, x, WANTED[n], dtype, SENSITIVE.get(n, ulps), n in SENSITIVE) for n, y in made.items()
    }
    assert not any(found.values()), "\n".join(f"{n}{w}" for n, w in found.items() if w)


def test_gradients_are_precise_in_their_tails():
    """Rules that are made of other ops, in f32 and in f64."""
    everywhere, bad = drawn(rng("tails of gradients"), f32), []
    for schema in functions(f32):
        if schema.gradient_fn is None or len(schema.operands) > 1 or schema.name in FROM_RESULT:
            continue  # FROM_RESULT: gradient ops, which are compared above, of results as they are stored
        with np.errstate(all="ignore"):
            x = everywhere[np.isfinite(schema.call_reference([everywhere], _attrs(schema))[0])]

        def slope(x, number=np.float64, schema=schema):
            return np.asarray(_gradient(schema, x.astype(number), number), L)

        if why := wrong(slope(x, np.float32).astype(np.float32), x, slope, f32, 4 * ULPS, True):
            bad.append(f"the gradient of {schema.name}{why}")
    assert not bad, "\n".join(bad)


def _gradient(schema: OpSchema, x: np.ndarray, number: type) -> np.ndarray:
    """What a rule makes of ones."""
    attrs, emit = _attrs(schema), NumpyEmitter()
    with np.errstate(all="ignore"):
        (y,) = schema.call_reference([x], attrs)
        known = {"dy": Tensor(np.ones_like(x)), "x": Tensor(x), "y": Tensor(y), **attrs}
        takes = schema.gradient_fn.__code__.co_varnames[1 : schema.gradient_fn.__code__.co_argcount]
        made = schema.gradient_fn(emit, *[known[name] for name in takes])
    return (made[0] if isinstance(made, tuple) else made).data


def _attrs(schema: OpSchema) -> dict[str, Any]:
    return dict(schema.values(schema.pack({})))
