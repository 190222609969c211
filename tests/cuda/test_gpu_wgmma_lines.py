"""Results of rows that TMA can't store on a Hopper GPU, against float64 and, bit for bit, against those that threads store."""

from __future__ import annotations

import numpy as np
import pytest
from fused_gemm_cases import Product, biased
from kernel_cases import HALVES, Case, assert_close, operands_for, reference
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_gpu_wgmma import _known, check  # noqa: F401  (a fixture)
from wgmma_cases import BY_NAME, SPLITS, activated, product, residual, two_rows

from aicf.cuda_kernels.gemm import wgmma_results
from aicf.types import bf16, f16, f32

pytestmark = pytest.mark.gpu

IDS = sorted(
    v.id
    for name, v in BY_NAME.items()
    if name not in SPLITS and not {"stream", "deep", "halved"} & {*v.config.split()}
)
SIZES = [(130, 50257, 64), (1000, 1001, 200), (200, 129, 72), (61, 17, 520), (1, 4099, 64), (520, 2054, 136)]
FEW = [
    "cuda.gemm_wgmma.v1[128x128 pingpong]",
    "cuda.gemm_wgmma.v1[128x256]",
    "cuda.gemm_wgmma.v1[64x64 cluster split2]",
]


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16)


@pytest.mark.sample(10, gpu=True)
@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", IDS)
def test_odd_rows(gpu, variant):  # noqa: F811
    """More tiles than multiprocessors, ragged m, fewer columns than a line; types take turns. Nothing around results is written."""
    for i, (m, n, k) in enumerate(SIZES):
        if n > 1920 or " 120 " not in variant:  # which is for many columns
            check(gpu, variant, product(m, n, k, dtype=(f16, bf16)[(IDS.index(variant) + i) % 2], tb=True))


@pytest.mark.sample(8, gpu=True)
@pytest.mark.spec("D7", "D9")
@pytest.mark.parametrize("variant", FEW)
@pytest.mark.parametrize("make", [
    lambda n: activated(300, n, 72, bf16, tb=True, keep=("d",), act="relu"),
    lambda n: two_rows(300, n, 72),
    lambda n: residual(300, n + n % 2, 72, bf16, tb=True),
    lambda n: Product(300, n, 72, f16, batch=(5,), trans_b=True).then({}),
    lambda n: biased(Product(300, n, 72, bf16, batch=(3, 2), trans_b=True), n, "relu"),
    lambda n: product(300, n, 72, ("w", "convert", "y", {"dtype": f32.id}), tb=True),  # stored by threads
    lambda n: product(300, n, 72, ("w", "convert", "y", {"dtype": bf16.id}), tb=True, keep=("y", "w")),
], ids=["bias, relu", "two rows", "bias, residual", "batch", "batches, bias", "f32", "two results"])  # fmt: skip
def test_epilogues(gpu, variant, make):  # noqa: F811
    for n in (1001, 129):
        check(gpu, variant, make(n), HALVES[bf16])


@pytest.mark.spec("C12")
@pytest.mark.parametrize("variant", FEW)
def test_the_bits_are_those_that_threads_store(gpu, variant, monkeypatch):  # noqa: F811
    r = activated(1000, 1001, 1000, bf16, tb=True, keep=("d",), act="relu")
    case = Case(variant, r, tolerance=HALVES[bf16])
    operands = operands_for(case)
    assert wgmma_results.in_lines(r)
    lines = launch_case(gpu, case, operands.memory)
    assert_close(case, lines, reference(case, operands.arrays))
    monkeypatch.setattr(wgmma_results, "in_lines", lambda region: False)
    threads = launch_case(gpu, case, operands.memory)
    np.testing.assert_array_equal(bits(lines[0]), bits(threads[0]))
