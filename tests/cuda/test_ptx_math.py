"""Intrinsics of arithmetic: what each computes, on a model of the machine, where it is its twin in NumPy, and on a GPU."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_cases import desc
from memory_kernels import applied
from ptx_support import PLACES, code, computer, regions_of
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)

import aicf.cuda_kernels.ptx as ptx
from aicf.types import f32, i32

WORD, REAL = desc((128,), i32), desc((128,), f32)
INF = np.inf


@pytest.fixture(params=PLACES)
def compute(request):
    return computer(request)


def numbers(low: float, high: float, *known: float) -> np.ndarray:
    """Some known ones, and others between."""
    x = np.random.default_rng().uniform(low, high, 128)
    x[: len(known)] = known
    return x.astype(np.float32)


FUNCTIONS = {
    "exp2": (np.exp2, (-20, 20, 0, -INF, INF, np.nan, -200, 200, 1), 2.0**-22),
    "log2": (np.log2, (0, 30, 1, 0, INF, -1, np.nan, 2, 0.5), 2.0**-21),
    "reciprocal": (np.reciprocal, (-9, 9, 1, 0, INF, -INF, np.nan, 2.0**100), 2.0**-22),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (0, 99, 1, 0, INF, -1, np.nan, 4), 2.0**-22),
    "tanh": (np.tanh, (-3, 3, 0, INF, -INF, np.nan, 30), 2.0**-10.5),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_approximations(compute, name):
    """As close as their docstring says, and the manual; special values too. Logarithms near 0 are so absolutely."""
    function, given, error = FUNCTIONS[name]
    x = numbers(*given)
    got = compute(applied(ptx.approximate(name), 1), regions_of([REAL], REAL), [x])
    want = function(x.astype(np.float64))
    want = np.where(abs(want) < 2.0**-126, 0, want).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=error, atol=error if name == "log2" else 0)


def test_tanh_for_halves(compute):
    x = numbers(-4, 4, 0, INF, -INF, np.nan, 1e-3, -0.0021, 80, -80)
    got = compute(applied(ptx.tanh_for_halves(), 1), regions_of([REAL], REAL), [x])
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64)), rtol=1.4e-4)


def test_erfc_for_halves(compute):
    x = numbers(-4, 9, 0, INF, -INF, np.nan, 1e-3, -0.0021, 12, -80)
    got = compute(applied(ptx.erfc_for_halves(), 1), regions_of([REAL], REAL), [x])
    want = [math.erfc(number) for number in x.astype(np.float64)]
    np.testing.assert_allclose(got, want, rtol=5e-5, atol=1e-37)


def test_the_larger_of_two(compute):
    """NaN where either is."""
    x, y = numbers(-1, 1, np.nan, 1, np.nan, -INF, INF), numbers(-1, 1, 1, np.nan, np.nan, 2, 2)
    got = compute(applied(ptx.larger(), 2), regions_of([REAL] * 2, REAL), [x, y])
    np.testing.assert_array_equal(got, np.maximum(x, y))


def test_numbers_settle(compute):
    x = numbers(-1, 1, np.nan, INF)
    np.testing.assert_array_equal(
        compute(applied(ptx.optimization_barrier(), 1), regions_of([REAL], REAL), [x]), x
    )


def test_pairs_of_halves_are_added(compute):
    """Rounded to nearest even."""
    x, y = np.random.default_rng().uniform(0, 30, (2, 128, 2)).astype(np.float16)
    x[0], y[0] = (2048, 2048), (1, 3)
    got = compute(
        applied(ptx.add_half2(), 2, True), regions_of([WORD] * 2, WORD), [x.view(np.int32), y.view(np.int32)]
    )
    np.testing.assert_array_equal(got.view(np.float16).reshape(128, 2), x + y)


def test_kernels_compile():
    """Each to its instruction: one of each sort."""
    for function, text in (("exp2", "ex2.approx.ftz.f32"), ("tanh", "tanh.approx.f32")):
        assert text in code(applied(ptx.approximate(function), 1), regions_of([REAL], REAL), "sm_80")
    assert "max.NaN.f32" in code(applied(ptx.larger(), 2), regions_of([REAL] * 2, REAL), "sm_80")
    assert "add.rn.f16x2" in code(applied(ptx.add_half2(), 2, True), regions_of([WORD] * 2, WORD), "sm_80")
