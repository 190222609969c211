"""The squares of all gradients in one op, run on the host: tensors of several types, lengths and alignments, NaN and Inf."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import Case, assert_close, desc, operands_for, reference, region
from test_fused_maps import fresh_seed, run_on_host

from aicf.types import bf16, f16, f32

KERNEL = "cuda.sum_of_squares.v1"


@pytest.mark.spec("A13")
@pytest.mark.parametrize("t, alignment", [(f32, 256), (f16, 256), (bf16, 256), (f16, 2), (f32, 4)])
def test_squares_are_added_up(t, alignment):
    shapes = [
        desc((901,), t),
        desc((7,), t),
        desc((33, 20), t, alignment=alignment),
        desc((), f32),
        desc((0, 3), bf16),
    ]
    case = Case(KERNEL, region("sum_of_squares", *shapes), 1e-5)
    given = operands_for(case, fresh_seed())
    (results,) = run_on_host(case, given)
    assert_close(case, results, reference(case, given.arrays))
    for value in (np.nan, np.inf):
        given = operands_for(case, fresh_seed())
        given.memory[2].reshape(-1)[17] = value
        (((got,),),) = ([r.reshape(-1) for r in made] for made in run_on_host(case, given))
        np.testing.assert_equal(float(got), value)
