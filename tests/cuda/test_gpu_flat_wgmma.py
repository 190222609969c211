"""Products of few rows of a transposed a, on a Hopper GPU, against float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import test_gpu_kernels
from draws.seeds import rng
from fused_gemm_cases import Product
from kernel_cases import HALVES, Case, assert_close, operands_for, reference, with_specials
from test_flat_wgmma import FLAT, drawn, flat_product, whole_lines
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from wgmma_cases import BY_NAME, named, product, residual

from aicf.cuda_kernels.gemm.wgmma_tiling import FEW_ROWS
from aicf.types import bf16, f16

pytestmark = pytest.mark.gpu

IDS = sorted(v.id for v in FLAT.values())
FEW = [BY_NAME[named(t)].id for t in FEW_ROWS]
SIZES = [(2, 64, 256), (8, 4096, 4096), (3, 777, 1000), (16, 2056, 1001), (33, 1608, 6400), (56, 1000, 1003), (61, 4608, 3584)]  # fmt: skip


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    """`launch_case` finds the configs among the variants."""
    known = {v.id: v for v in (*FLAT.values(), *BY_NAME.values())}
    monkeypatch.setattr(test_gpu_kernels, "VARIANTS", {**test_gpu_kernels.VARIANTS, **known})


def check(gpu: Any, variant: str, r: Any) -> None:  # noqa: F811
    case = Case(variant, r, tolerance=HALVES[r.operands[0].dtype])
    operands = operands_for(case, random.randrange(2**32))
    got = launch_case(gpu, case, operands.memory)
    assert_close(case, got, reference(case, operands.arrays))
    again = launch_case(gpu, case, operands.memory)
    assert all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(got, again))


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("tb", [False, True])
def test_sizes(gpu, variant, tb):  # noqa: F811
    """Odd, tiny, ragged; halves by pairs and by matrices; twice is the same."""
    for m, n, k in SIZES:
        fits = n if tb else -(-n // 8) * 8, whole_lines(m, k)
        check(gpu, variant, flat_product(m, *fits, tb, dtype=(f16, bf16)[m % 2]))


@pytest.mark.sample(2, each="variant", gpu=True)
@pytest.mark.spec("D5", "D7", "D10")
@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("number", range(8))
def test_drawn(gpu, variant, number, request):  # noqa: F811
    r, what = drawn(rng(request.node.nodeid), 3000, 5000)
    print(what)
    if FLAT[variant.replace("cuda.", "").replace(".v1", "")].supported(r, gpu.spec) is None:
        check(gpu, variant, r)


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", IDS)
def test_batches_and_special_values(gpu, variant):  # noqa: F811
    """NaN and infinities spoil the rows and columns that they are in, and nothing else."""
    for shared, m in (("", 8), ("a", 3), ("b", 24)):
        check(gpu, variant, Product(m, 200, 320, f16, batch=(2, 3), trans_a=True, shared=shared).then({}))
    for m in (7, 24):
        case = Case(variant, flat_product(m, 136, 576, True), tolerance=HALVES[f16])
        operands = with_specials(case, operands_for(case))
        (got,), (want,) = (
            launch_case(gpu, case, operands.memory),
            reference(case, operands.arrays, exact=False),
        )
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), np.isnan(want.astype(np.float32)))


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", FEW)
def test_tilings_for_few_rows(gpu, variant):  # noqa: F811
    """More clusters than multiprocessors have pairs; few of them; more than are resident."""
    for m, n, k, ta, tb in (
        (16, 4608, 3584, False, True), (61, 6152, 520, False, False), (64, 72, 4096, True, True), (7, 20008, 256, False, True)
    ):  # fmt: skip
        check(gpu, variant, product(m, n, k, ta=ta, tb=tb, dtype=bf16))
    check(gpu, variant, residual(16, 4608, 1000, tb=True))
