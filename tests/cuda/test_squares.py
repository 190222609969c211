"""The squares of all gradients in one op, run on the host: tensors of several types, lengths and alignments, NaN and Inf."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import Case, assert_close, desc, operands_for, reference, region
from test_fused_maps import TINY, VARIANTS, OnHost, fresh_seed, run_on_host

from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32

KERNEL = "cuda.sum_of_squares.v1"


@pytest.mark.sample(2, pool="on the host")
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


@pytest.mark.spec("A13")
def test_a_gradient_of_two_parameters_counts_twice():
    """One value is an operand of the region once, however often the op has it."""
    whole = region("sum_of_squares", desc((5,)), desc((5,)), desc((7,)))
    op = whole.ops[0]._replace(inputs=(0, 0, 1), outputs=(2,))
    twice = RegionSpec((op,), (whole.tensors[0], *whole.tensors[2:]), (0, 1), (2,))
    x, y = (np.random.default_rng().normal(size=n).astype(np.float32) for n in (5, 7))
    out, variant = np.zeros((), np.float32), VARIANTS[KERNEL]
    workspace = np.zeros(variant.query_workspace(twice, TINY), np.uint8)
    for launch in variant.build(twice, TINY):
        OnHost(launch, twice)([x, y], [out], workspace)
    np.testing.assert_allclose(
        out, 2 * np.sum(x.astype(np.float64) ** 2) + np.sum(y.astype(np.float64) ** 2), rtol=1e-6
    )
