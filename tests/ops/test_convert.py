"""Conversions are rounded once, from whatever type: by integers of Python's own, which neither NumPy nor a kernel computes with."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from nn.mlp import on_each_device

import aicf
from aicf import nn
from aicf.types import DType, fewer_bits, rounded

MANTISSA = {"f32": 23, "bf16": 7, "f16": 10, "f8e4m3": 3, "f8e5m2": 2}


def nearest(value: int | float, mantissa: int) -> Fraction:
    """Of the numbers with so many bits behind the leading one, the nearest; the even one of two."""
    exact = Fraction(value)
    if not exact:
        return exact
    exponent = 0
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    last = Fraction(2) ** (exponent - mantissa)
    return round(exact / last) * last


def telling(bits: int) -> np.ndarray:
    """Integers just beside the middle between two bf16 numbers, where f32 or f64 on the way loses which side they are on."""
    found = {0, 1, -1, 255, 256, 257, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), -(2 ** (bits - 1)) + 1}
    for top in range(8, bits - 1):
        for lead in (128, 129, 255):
            middle = (2 * lead + 1) * 2 ** (top - 8)
            found.update(sign * (middle + beside) for beside in (-1, 0, 1, 2, -3) for sign in (1, -1))
    rng = np.random.default_rng(bits)
    found.update(
        (rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), 300) >> rng.integers(0, bits, 300)).tolist()
    )
    return np.array(sorted(v for v in found if -(2 ** (bits - 1)) <= v < 2 ** (bits - 1)), f"i{bits // 8}")


@pytest.mark.parametrize("bits", [32, 64])
def test_integers_are_rounded_once_to_bf16_in_numpy(bits):
    values = telling(bits)
    want = [float(nearest(v, 7)) for v in values.tolist()]
    np.testing.assert_array_equal(rounded(values, DType.bf16).astype(np.float64), want)
    by_f32 = values.astype(np.float32).astype(DType.bf16.numpy).astype(np.float64)
    assert np.mean(by_f32 != want) > 0.05, "the values tell"
    for v, fewer in zip(values.tolist(), fewer_bits(values).tolist()):
        assert int(np.float32(fewer)) == fewer and fewer_bits(values.dtype.type(v)) == fewer


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3", "f8e5m2", "f16"])
def test_f64_is_rounded_once(dtype):
    mantissa = MANTISSA[dtype]
    middle = np.array([1 + (2 * n + 1) * 2.0 ** -(mantissa + 1) for n in range(4)])
    values = np.concatenate(
        [sign * middle * (1 + beside) for beside in (0, 2.0**-40, -(2.0**-40)) for sign in (1, -1)]
    )
    want = [float(nearest(v, mantissa)) for v in values.tolist()]
    np.testing.assert_array_equal(rounded(values, DType[dtype]).astype(np.float64), want)


def test_what_is_no_tie_stays_as_it_was():
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, 3.38e38, 1e-40])
    got = rounded(special, DType.bf16).astype(np.float64)
    assert np.isnan(got[4]) and got[2] == got[5] == np.inf and got[3] == got[6] == -np.inf
    assert got[0] == got[7] == 0 and np.signbit(got[1]) and np.isfinite(got[8])


class Converted(nn.Layer):
    """Integers that a state holds, in floats, alone or in one kernel with what is done to them."""

    def __init__(self, values, dtype, fused):
        self.values, self.dtype, self.fused = values, dtype, fused

    def emit(self, ctx, x):
        state = ctx.state("i", self.values.shape, lambda *_: self.values, DType.of(self.values.dtype))
        made = ctx.convert(state, dtype=self.dtype)
        if self.fused:
            made = ctx.neg(ctx.convert(ctx.neg(made), dtype=DType.f32))
        ctx.builder.output("made", made)
        return ctx.relu(x)


CASES = [
    (64, "bf16", True),
    (64, "bf16", False),
    (32, "bf16", False),
    (64, "f16", False),
    (64, "f8e4m3", False),
]


@on_each_device
@pytest.mark.parametrize("bits, dtype, fused", CASES)
def test_integers_are_rounded_once_by_kernels(bits, dtype, fused, device):
    values = telling(bits)
    limit = {"bf16": 2**63, "f16": 65504, "f8e4m3": 448}[dtype]
    values = values[np.abs(values.astype(np.float64)) <= limit]
    model = nn.Model({"x": aicf.TensorSpec((2, 2))}).add(Converted(values, DType[dtype], fused))
    got = aicf.compile(model, device=device).run({"x": np.ones((2, 2), np.float32)})["made"].numpy()
    want = [float(nearest(v, MANTISSA[dtype])) for v in values.tolist()]
    np.testing.assert_array_equal(got.astype(np.float64), want)
