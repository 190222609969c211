"""The squares of several tensors added up on the host, beside float64."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf.types import bf16, f16, f32


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_squares_are_added_up(dtype):
    rng = np.random.default_rng(7)
    arrays = [
        rng.normal(size=shape).astype(dtype.numpy) for shape in ((200_001,), (3, 5), (), (0, 4), (70, 1000))
    ]
    arrays.append(arrays[-1].T)
    result = np.full((), np.nan, np.float32)
    chosen = aicf.op_call("sum_of_squares", arrays, [result])
    assert chosen.kernel_id == "cpu.sum_of_squares.v1"
    want = sum(np.square(x.astype(np.float64)).sum() for x in arrays)
    np.testing.assert_allclose(result, want, rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_what_is_no_number_stays(value):
    result = np.zeros((), np.float32)
    aicf.op_call("sum_of_squares", [np.ones(5, np.float32), np.array([1, value], np.float32)], [result])
    np.testing.assert_equal(float(result), np.nan if np.isnan(value) else np.inf)
