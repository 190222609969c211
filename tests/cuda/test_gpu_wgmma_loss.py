"""The cross entropy of a linear layer on a Hopper GPU: every tiling, in one chunk and in several, of rows and of classes."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import Case, assert_close, linear_loss, linear_loss_grad, operands_for, reference
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.cuda_kernels.gemm import wgmma_loss
from aicf.types import bf16, f16, i32

pytestmark = pytest.mark.gpu

TILINGS = wgmma_loss.LOSS_TILINGS
LOSS, GRAD = wgmma_loss.LinearCrossEntropyWgmma, wgmma_loss.LinearCrossEntropyGradWgmma
ASKED = {"ignore_index": 1, "label_smoothing": 0.2, "z_loss": 0.05}
CACHES = (
    wgmma_loss.statistics_tiling,
    wgmma_loss.gradients_tiling,
    wgmma_loss._losses,
    wgmma_loss._gradients,
)


@pytest.fixture
def small(monkeypatch):
    """`small(tiling)`: no other, and chunks of 2^20 logits or statistics."""

    def choose(tiling):
        monkeypatch.setattr(wgmma_loss, "LOSS_TILINGS", (tiling,))
        for name in ("STATISTICS", "GRADIENTS"):
            monkeypatch.setattr(wgmma_loss, name, 2**20)
        for cache in CACHES:
            cache.cache_clear()

    yield choose
    monkeypatch.undo()
    for cache in CACHES:
        cache.cache_clear()


def lse_of(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(x.astype(np.float64) @ weight.T.astype(np.float64), axis=1)


@pytest.mark.sample(2, each="t", gpu=True)
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize(
    "rows, classes, k", [(1500, 32001, 48), (9001, 1003, 136), (130, 7, 8), (1, 40, 1), (300, 1001, 1)]
)
@pytest.mark.parametrize("asked", [{}, ASKED], ids=["plain", "asked"])
@pytest.mark.parametrize("t", TILINGS, ids=str)
def test_agrees_with_numpy_in_chunks(gpu, small, t, asked, rows, classes, k):  # noqa: F811
    """Twice, to the same bits. The gradient is given the lse of these rows: with another one probabilities are in the hundreds, and what
    rounding leaves of those is more than a tolerance for sums of what is below 1."""
    small(t)
    for dtype, near in ((f16, 4e-3), (bf16, 3e-2)):
        for case in (
            Case(LOSS.id, linear_loss(rows, classes, k, dtype, i32, **asked), 2e-5),
            Case(GRAD.id, linear_loss_grad(rows, classes, k, dtype, i32, **asked), near),
        ):
            operands = operands_for(case)
            if case.variant == GRAD.id:
                _, x, weight, _, lse = operands.arrays
                lse[...] = lse_of(x, weight)
            got, again = (launch_case(gpu, case, operands.memory) for _ in range(2))
            assert_close(case, got, reference(case, operands.arrays))
            assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, again))
