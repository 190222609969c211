"""Functions of numbers on the host, each element type's in one loop, against NumPy's in float64: with the ends of their domains, NaN and
infinities; integers against Python's own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aicf.types import DType, bool_, f16, f32, f64

from .regions import Graph

LOOP = "elementwise_loop"
EDGES = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, -0.3, 0.3, 0.9, -0.9, 8388609.0, -8388607.5,
    3e9, -1e19, 1e30, 1e-30, -1e-40, 20.5, -20.5, 100.0, -100.0, 5.0, -3.0, 3.0,
]  # fmt: skip
EXACT = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),
    "round_half_away": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), "is_finite": np.isfinite, "is_inf": np.isinf,
    "is_nan": np.isnan,
}  # fmt: skip
NEAR = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "exp2": np.exp2, "expm1": np.expm1, "log1p": np.log1p, "log2": np.log2,
    "log10": np.log10, "cbrt": np.cbrt, "reciprocal": np.reciprocal, "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf), "erfc": np.vectorize(math.erfc), "softplus": lambda x: np.logaddexp(0, x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)), "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)), "hard_sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}  # fmt: skip


def numbers(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.concatenate([EDGES, rng.normal(size=40), rng.uniform(-60, 60, 40)]).astype(dtype.numpy)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [f32, f16, f64], ids=str)
def test_functions_are_numpy_s_at_every_edge(dtype):
    with np.errstate(all="ignore"):
        x = numbers(dtype)
        made = Graph(
            {"x": x}, *[(op, "x", op, {}) for op in (*EXACT, *NEAR)], keep=" ".join((*EXACT, *NEAR))
        ).run(LOOP)
        for (op, function), got in zip({**EXACT, **NEAR}.items(), made):
            want = function(x.astype(np.float64))
            want = want if want.dtype == bool else want.astype(dtype.numpy)
            rtol = 0 if op in EXACT else {f32: 3e-6, f16: 2e-3, f64: 1e-13}[dtype]
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * 1e-3, err_msg=op)
            if op in EXACT:
                assert np.array_equal(np.signbit(got * 1.0), np.signbit(want * 1.0)), op


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_erf_inv_undoes_erf(dtype):
    """To the last places of both tails; outside of [-1, 1] there is none."""
    last = float(np.finfo(dtype.numpy).eps) / 2
    x = np.array([0.0, 1e-30, 1e-5, 0.1, 0.4999, 0.5, 0.77, 0.99, 0.9999, 1 - 1e-6, 1 - last], dtype.numpy)
    (y,) = Graph({"x": np.concatenate([x, -x])}, ("erf_inv", "x", "y", {})).run(LOOP)
    assert np.array_equal(y[: x.size], -y[x.size :])
    for got, of in zip(y.astype(np.float64), x.astype(np.float64)):
        slope = 2 / math.sqrt(math.pi) * math.exp(-got * got)
        off = (math.erf(got) - of if of < 0.5 else (1 - of) - math.erfc(got)) / slope
        assert abs(off) <= 32 * last * abs(got), of
    (y,) = Graph({"x": np.array([1, -1, 1.5, -2, np.nan], dtype.numpy)}, ("erf_inv", "x", "y", {})).run(LOOP)
    np.testing.assert_array_equal(y, [np.inf, -np.inf, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_quotients_and_remainders_of_floats(dtype):
    values = np.array([0.0, -0.0, 1, -1, 7, -7, 0.1, 5.5, -5.5, 1e20, np.inf, -np.inf, np.nan], dtype.numpy)
    a, b = (v.reshape(-1) for v in np.meshgrid(values, values))
    ops = {
        "mod": np.mod, "rem": np.fmod, "floor_divide": np.floor_divide, "trunc_divide": lambda a, b: np.trunc(a / b),
        "atan2": np.arctan2,
    }  # fmt: skip
    made = Graph({"a": a, "b": b}, *[(op, "a b", op, {}) for op in ops], keep=" ".join(ops)).run(LOOP)
    with np.errstate(all="ignore"):
        for (op, function), got in zip(ops.items(), made):
            want = function(a, b)
            np.testing.assert_allclose(got, want, rtol=2e-7 if op == "atan2" else 0, err_msg=op)
            assert np.array_equal(np.signbit(got) & (got == got), np.signbit(want) & (want == want)), op


def wrapped(value: int, dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    value %= 1 << bits
    return value - (1 << bits) if dtype.numpy.kind == "i" and value >> (bits - 1) else value


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGERS = [t for t in DType if t.kind == "int"]
OF_INTEGERS = {
    "floor_divide": lambda a, b: a // b if b else -1, "mod": lambda a, b: a % b if b else a,
    "trunc_divide": lambda a, b: towards_zero(a, b) if b else -1, "rem": lambda a, b: a - b * towards_zero(a, b) if b else a,
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b, "bitwise_xor": lambda a, b: a ^ b,
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_divide_as_python_s_by_zero_and_minus_one_too(dtype):
    least, most = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    some = sorted({v for v in (least, least + 1, -7, -3, -1, 0, 1, 2, 3, 7, most - 1, most) if v >= least})
    values = np.array(some, dtype.numpy)
    a, b = (v.reshape(-1) for v in np.meshgrid(values, values))
    steps = [(op, "a b", op, {}) for op in OF_INTEGERS] + [("bitwise_not", "a", "bitwise_not", {})]
    made = Graph({"a": a, "b": b}, *steps, keep=" ".join((*OF_INTEGERS, "bitwise_not"))).run(LOOP)
    for (op, function), got in zip(OF_INTEGERS.items(), made):
        want = [wrapped(function(int(p), int(q)), dtype) for p, q in zip(a, b)]
        assert got.dtype == dtype.numpy and got.tolist() == want, op
    assert made[-1].tolist() == [wrapped(~int(p), dtype) for p in a]


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_any_amount(dtype):
    """By fewer than none or more than all bits, all of them are moved out."""
    bits, (least, most) = 8 * dtype.itemsize, (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    values = np.array([v for v in (least, -5, -1, 0, 1, 77, most) if v >= least], dtype.numpy)
    amounts = np.array([n for n in (-1, 0, 1, bits - 1, bits, 100) if n >= least], dtype.numpy)
    a, b = (v.reshape(-1) for v in np.meshgrid(values, amounts))
    ops = "shift_left", "shift_right_arithmetic", "shift_right_logical"
    made = Graph({"a": a, "b": b}, *[(op, "a b", op, {}) for op in ops], keep=" ".join(ops)).run(LOOP)
    for op, got in zip(ops, made):
        for p, q, shifted in zip(map(int, a), map(int, b), got.tolist()):
            inside = 0 <= q < bits
            if op == "shift_left":
                want = wrapped(p << q, dtype) if inside else 0
            elif op == "shift_right_logical":
                want = wrapped((p % (1 << bits)) >> q, dtype) if inside else 0
            else:
                want = p >> q if inside else -int(p < 0)
            assert shifted == want, (op, p, q)


@pytest.mark.parametrize("dtype", [f32, DType.i32, DType.u8], ids=str)
def test_a_clamp_is_a_minimum_of_a_maximum(dtype):
    low, x, high = (np.array(v, np.float64) for v in ([1, 5, 2], [[0], [3], [9]], [4, 2, 8]))
    if dtype is f32:
        low, x, high = (np.append(v, [np.nan]) if v.ndim == 1 else v for v in (low, x, high))
    given = {n: v.astype(dtype.numpy) for n, v in (("low", low), ("x", x), ("high", high))}
    (got,) = Graph(given, ("clamp", "low x high", "y", {})).run(LOOP)
    np.testing.assert_array_equal(got, np.minimum(np.maximum(x, low), high).astype(dtype.numpy))


def test_logic_is_a_table():
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    ops = {"logical_and": "a b", "logical_or": "a b", "logical_xor": "a b", "logical_not": "a"}
    made = Graph({"a": a, "b": b}, *[(op, ins, op, {}) for op, ins in ops.items()], keep=" ".join(ops)).run(
        LOOP
    )
    assert [m.tolist() for m in made] == [
        [False, False, False, True], [False, True, True, True], [False, True, True, False], [True, True, False, False],
    ]  # fmt: skip
    assert all(m.dtype == bool_.numpy for m in made)
