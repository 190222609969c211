"""Gradients of convolutions on a GPU: every kernel against float64, on windows of all kinds."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_cases import chain_cases, hopper_cases, tiled_cases
from kernel_cases import GRADIENTS, HALVES, assert_close, operands_for, reference
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.types import bf16, f16, f32

pytestmark = pytest.mark.gpu


def check(gpu, case):  # noqa: F811
    operands = operands_for(case)
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))


@pytest.mark.sample(10, gpu=True)
@pytest.mark.spec("D13")
@pytest.mark.parametrize("variant", GRADIENTS)
def test_gradients_on_tensor_cores(gpu, variant):  # noqa: F811
    for case in hopper_cases(variant, GRADIENTS.index(variant), large=True):
        check(gpu, case)


@pytest.mark.spec("D13")
def test_weight_gradients_have_the_same_bits_in_every_run(gpu):  # noqa: F811
    variant = next(v for v in GRADIENTS if ".weight_" in v)
    case = hopper_cases(variant, large=True)[-1]
    operands = operands_for(case)
    first, again = (launch_case(gpu, case, operands.memory)[0] for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint16), again.view(np.uint16))


@pytest.mark.sample(40, gpu=True)
@pytest.mark.spec("D13")
@pytest.mark.parametrize(
    "case",
    [*tiled_cases(f32, 2e-5), *tiled_cases(f16, HALVES[f16]), *tiled_cases(bf16, HALVES[bf16])[::3]],
    ids=str,
)
def test_gradients_by_f32_arithmetic(gpu, case):  # noqa: F811
    check(gpu, case)


@pytest.mark.sample(6, each=lambda case: case.variant, gpu=True)
@pytest.mark.spec("D13")
@pytest.mark.parametrize(
    "case",
    [*chain_cases(f32, 2e-5), *chain_cases(f16, HALVES[f16])[::2], *chain_cases(bf16, HALVES[bf16])[1::2]],
    ids=str,
)
def test_gradients_by_other_kernels(gpu, case):  # noqa: F811
    check(gpu, case)
