"""Gradients of convolutions on a GPU: every kernel against float64, on windows of all kinds."""

from __future__ import annotations

import pytest
from gradient_cases import tiled_cases
from kernel_cases import HALVES, assert_close, operands_for, reference
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.types import bf16, f16, f32

pytestmark = pytest.mark.gpu


@pytest.mark.spec("D13")
@pytest.mark.parametrize(
    "case",
    [*tiled_cases(f32, 2e-5), *tiled_cases(f16, HALVES[f16]), *tiled_cases(bf16, HALVES[bf16])[::3]],
    ids=str,
)
def test_gradients_by_f32_arithmetic(gpu, case):  # noqa: F811
    operands = operands_for(case)
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))
