"""Hopper's exact f32 products on a Hopper GPU, against float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernel_cases import Case, assert_close, operands_for, reference
from test_gemm_fma import VARIANTS, WHOLE, padded
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from wgmma_cases import TRANSPOSES, activated, backward, batches, product, residual, stashed

from aicf.types import f32

pytestmark = pytest.mark.gpu

IDS, ALL_IDS = sorted(v.id for v in WHOLE.values()), sorted(v.id for v in VARIANTS.values())
TOLERANCE = 2e-5


def check(gpu: Any, variant: str, r: Any) -> None:  # noqa: F811
    case = Case(variant, r, tolerance=TOLERANCE)
    operands = operands_for(case, random.randrange(2**32))
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))


@pytest.mark.sample(1, each="variant", gpu=True)
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("variant", ALL_IDS)
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_transposes(gpu, variant, ta, tb):  # noqa: F811
    """Edges in every direction, more slices than stages, results in runs of four and one by one."""
    check(gpu, variant, padded(332, 260, 1000, ta=ta, tb=tb))
    check(gpu, variant, padded(257, 387, 331, ta=ta, tb=tb))


@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", IDS)
def test_more_tiles_than_fit(gpu, variant):  # noqa: F811
    check(gpu, variant, padded(2500, 2180, 100, tb=True))


SIZES = (
    (1, 1, 1),
    (1, 8, 1),
    (3, 5, 7),
    (64, 64, 64),
    (65, 129, 33),
    (127, 255, 31),
    (1, 4096, 512),
    (33, 8, 8),
)


@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", IDS)
def test_sizes(gpu, variant):  # noqa: F811
    """One kernel for n that is a multiple of four, one for others."""
    for sizes in SIZES:
        check(gpu, variant, padded(*sizes, tb=True))


@pytest.mark.sample(2, each="variant", gpu=True)
@pytest.mark.spec("D5", "D7", "D8")
@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("make", [residual, stashed, activated, backward])
def test_epilogues(gpu, variant, make):  # noqa: F811
    """alpha, beta, c, bias, activation, z; residual; gradient and sums of columns: in runs of four columns, and one by one."""
    for n in (136, 133):
        check(gpu, variant, padded(260, n, 72, make, tb=n == 133))


@pytest.mark.sample(4, gpu=True)
@pytest.mark.spec("D9")
@pytest.mark.parametrize("name", sorted(batches(8, 8, 8, f32)))
def test_batches(gpu, name):  # noqa: F811
    for variant in ("cuda.gemm_fma.v1[128x128]", "cuda.gemm_fma.v1[64x128 sliced4]"):
        check(gpu, variant, batches(132, 136, 72, f32)[name])


def test_sums_are_those_of_the_tiled_kernel(gpu):  # noqa: F811
    """Bit by bit: one fused multiply-add after the other, in the order of k."""
    r = product(300, 260, 1000, dtype=f32, tb=True)
    case = Case("cuda.gemm_fma.v1[128x128]", r)
    memory = operands_for(case, random.randrange(2**32)).memory
    tiled = Case("cuda.gemm_tiled.v1[128x128]", r)
    np.testing.assert_array_equal(launch_case(gpu, case, memory), launch_case(gpu, tiled, memory))


@pytest.mark.sample(1)
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_rows_that_begin_anywhere_are_copied(gpu, ta, tb):  # noqa: F811
    check(gpu, "cuda.gemm_fma.v1[128x128 packed]", product(131, 133, 203, dtype=f32, ta=ta, tb=tb))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(gpu, bad):  # noqa: F811
    """What lies beyond an edge is zero, not what follows in memory."""
    case = Case("cuda.gemm_fma.v1[64x128 sliced4]", padded(70, 68, 36, tb=True))
    operands = operands_for(case, 1)
    operands.arrays[0][3, 5] = bad
    (got,) = launch_case(gpu, case, operands.memory)
    assert not np.isfinite(got[3]).any() and np.isfinite(np.delete(got, 3, 0)).all()
