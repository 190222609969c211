"""Products of f32 as three of TF32 on Hopper's engines, without a GPU: what is taken, how operands are split, what is computed."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import TF32X3S, desc, fused
from kernel_cases import VARIANTS as KNOWN
from machines.mma_machine import rounded
from test_gemm_packed import computed
from test_pack import copied as copies_of
from test_wgmma import assert_clean
from wgmma_cases import H200, TRANSPOSES, assert_refused, named, product, residual

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import copied, problem, wgmma_tiling
from aicf.cuda_kernels.gemm.operands import pack
from aicf.cuda_kernels.gemm.wgmma_body import accumulators_of
from aicf.rows import RegionSpec
from aicf.types import Precision, f32

VARIANTS = {v.name: v for v in copied.TF32X3}
(SMALL,) = copied.tf32x3_configs("64x64")
TILINGS = [t for t in wgmma_tiling.TILINGS if named(t, "tf32x3") in VARIANTS]


def of(*sizes: int, make=product, **more) -> RegionSpec:
    return make(*sizes, dtype=f32, precision=Precision.tf32x3, **more)


@pytest.mark.spec("D10")
@pytest.mark.parametrize("r, reason", [
    (product(64, 64, 64), "the product is in f16, needs f32"),
    (product(64, 64, 64, dtype=f32), "the product is to be exact, this one is tf32x3"),
    (of(64, 64, 0), "nothing to copy of 1 products 64x64x0"),
    (fused({"x": desc((33, 33))}, ("y", "gemm", "x", "x", None, None, {"precision": Precision.tf32x3})), "a and b are the same"),
    (of(33, 33, 33, make=lambda *sizes, **more: product(*sizes, ("z", "add", "y", "a"), **more)), "is read after the product"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(VARIANTS, r, reason)


@pytest.mark.spec("A15", "D10")
@pytest.mark.parametrize("variant", TF32X3S)
def test_slices_summed_by_themselves_are_no_strict_sum(variant):
    assert KNOWN[variant].supported(r := of(64, 64, 64), H200) is None
    assert "strict takes one sum" in str(KNOWN[variant].supported(replace(r, strict=True), H200))


@pytest.mark.spec("D10")
def test_takes_what_may_be_rounded_as_far_or_farther():
    for precision in (Precision.tf32x3, Precision.tf32):
        assert all(
            v.supported(product(64, 64, 64, dtype=f32, precision=precision), H200) is None
            for v in VARIANTS.values()
        )


@pytest.mark.spec("D10")
@pytest.mark.parametrize("t, row", [
    (desc((5, 77), f32, (81, 1), 4), 1),
    (desc((70, 33), f32, (1, 71)), 1),
    (desc((2, 9, 35), f32, (1000, 70, 2)), 2),
], ids=["rows", "across", "along"])  # fmt: skip
def test_parts_add_up(t, row):
    """To 22 bits and more; each is one that TF32 holds, and zeros follow it to whole units. What is not finite leaves NaN."""
    hi_lo = (1, 0, 0)
    copy = pack.copy_of(0, t, row, hi_lo)
    ((got,), (want,)) = copies_of([copy], [1], random.randrange(2**32))  # any bits, as integers
    each = -(-t.shape[row] // 4) * 4
    assert copy.target.shape[row] == 3 * each
    lo, hi, again = (x.view(np.float32) for x in np.split(got, 3, axis=row))
    np.testing.assert_array_equal(hi.view(np.uint32), again.view(np.uint32))
    assert not any(x[..., t.shape[row] :].any() for x in (lo, hi)) and row == len(t.shape) - 1
    lo, hi, x = (y[..., : t.shape[row]] for y in (lo, hi, want.view(np.float32)))
    finite = np.isfinite(x) & (np.abs(x) < 2.0**127)
    assert (hi[finite].view(np.uint32) == [rounded(int(w)) for w in want[finite]]).all()
    assert not (lo[finite].view(np.uint32) & 0x1FFF).any() and np.isnan(lo[~np.isfinite(x)]).all()
    off = np.abs(hi[finite].astype(float) + lo[finite] - x[finite])
    assert (off <= np.maximum(2.0**-22 * np.abs(x[finite]), 2.0**-136)).all()


@pytest.mark.sample(1)
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_as_exact_as_f32(ta, tb):
    def numbers(rng, shape):
        return rng.uniform(0.5, 1.5, shape)

    (got,), (want,) = computed(SMALL, of(37, 71, 45, ta=ta, tb=tb), numbers, random.randrange(2**32))
    assert np.abs(got / want - 1).max() < 2e-7


def test_slices_are_added_up():
    """TF32 alone waits for a slice after it has asked for the next."""
    finish = problem.epilogue(copied.two_terms(of(64, 64, 64)).region, 2)
    for t in TILINGS:
        assert [accumulators_of(replace(t, promoted=s), finish, True, True).late for s in (False, True)] == [
            1,
            0,
        ]


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_compiles_clean(tiling):
    r = of(1001, 998, 1003, make=residual)
    copies, multiply = VARIANTS[named(tiling, "tf32x3")].build(r, H200)
    made = engine.compile_launch(copies, r, H200.target)
    assert (made.spill_bytes, made.stack_bytes) == (0, 0), made.log
    assert_clean(tiling, engine.compile_launch(multiply, r, H200.target))
