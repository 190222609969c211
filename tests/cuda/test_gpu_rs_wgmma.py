"""Products of TF32 of which one operand goes through registers, on a Hopper GPU, against float64."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernel_cases import Case, assert_close, operands_for, reference
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_rs_wgmma import ORDERS, PACKED, PLAIN, SPLITS, batch, rs_product
from wgmma_cases import activated, residual, stashed

pytestmark = pytest.mark.gpu

IDS, SPLIT_IDS, PACKED_IDS = (sorted(v.id for v in some.values()) for some in (PLAIN, SPLITS, PACKED))
SIZES = [(64, 64, 32), (8, 8, 1), (61, 53, 29), (1, 777, 4097), (777, 1, 500), (2056, 2064, 1000), (1001, 999, 1003), (300, 2500, 4099)]  # fmt: skip


def check(gpu: Any, variant: str, r: Any) -> list[np.ndarray]:  # noqa: F811
    case = Case(variant, r, tolerance=2e-4)
    operands = operands_for(case, random.randrange(2**32))
    got = launch_case(gpu, case, operands.memory)
    assert_close(case, got, reference(case, operands.arrays))
    again = launch_case(gpu, case, operands.memory)
    assert all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(got, again))
    return got


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("ta, tb", ORDERS)
def test_sizes(gpu, variant, ta, tb):  # noqa: F811
    """One tile, many of each block, odd, tiny, ragged; twice is the same."""
    for sizes in SIZES:
        check(gpu, variant, rs_product(*sizes, ta, tb))


@pytest.mark.sample(3, gpu=True)
@pytest.mark.spec("D5", "D7", "D10")
@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("ta, tb", ORDERS)
def test_epilogues_and_batches(gpu, variant, ta, tb):  # noqa: F811
    for make in (residual, stashed, activated):
        for n in (136, 133):
            check(gpu, variant, rs_product(516, n, 72, ta, tb, make))
    for shared, heads in (("", False), ("a", False), ("b", True)):
        check(gpu, variant, batch(264, 300, 200, ta, tb, shared, heads))


LONG = [(130, 136, 520), (61, 133, 4000), (512, 512, 8192), (264, 1, 520)]


@pytest.mark.spec("B10", "D10")
@pytest.mark.parametrize("variant", SPLIT_IDS)
@pytest.mark.parametrize("ta, tb", ORDERS)
def test_parts_of_k(gpu, variant, ta, tb):  # noqa: F811
    for sizes in LONG:
        check(gpu, variant, rs_product(*sizes, ta, tb))
    check(gpu, variant, rs_product(130, 133, 4000, ta, tb, stashed))


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", PACKED_IDS)
def test_one_is_copied_and_one_in_registers(gpu, variant):  # noqa: F811
    for sizes in LONG if " split" in variant else SIZES[2:]:
        check(gpu, variant, rs_product(*sizes, True, False))
    check(gpu, variant, rs_product(1000, 516, 200, True, False, stashed))
