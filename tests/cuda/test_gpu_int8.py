"""Products of 8-bit integers, and elementwise ops that make and read them, on a GPU, against NumPy's i64 and f64."""

from __future__ import annotations

import random

import numpy as np
import pytest
from int8_cases import SIGNS, assert_exact, operands_of, residual, scaled, whole
from kernel_cases import Case
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_int8_wgmma import BY_NAME, SIZES

pytestmark = pytest.mark.gpu

MORE = [
    (whole, (1, 777, 4097)),
    (scaled, (2056, 2064, 1000)),
    (residual, (1001, 999, 1003)),
    (whole, (300, 2512, 4099)),
]


@pytest.mark.sample(10, gpu=True)
@pytest.mark.parametrize("variant", sorted(BY_NAME))
def test_sums_are_exact(gpu, variant):  # noqa: F811
    """Odd, tiny and ragged ones, many tiles of each block, sums of the greatest numbers; twice is the same. Each epilogue of other types."""
    tb, number = not variant.endswith(" packed]"), sorted(BY_NAME).index(variant)
    for make, sizes in [*SIZES, *MORE]:
        r = make(*sizes, SIGNS[(number + len(make.__name__)) % len(SIGNS)], tb=tb)
        given = operands_of(r, random.randrange(2**32))
        got, again = (launch_case(gpu, Case(BY_NAME[variant].id, r), given.memory) for _ in range(2))
        assert_exact(r, got, given.arrays)
        assert all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(got, again))


NAIVE = "cuda.gemm_naive_int8.v1"
LAYOUTS = [(ta, tb) for ta in (False, True) for tb in (False, True)]


@pytest.mark.parametrize("ta, tb", LAYOUTS)
def test_a_thread_for_each_element(gpu, ta, tb):  # noqa: F811
    """Any layout, on any GPU."""
    for make, sizes in SIZES:
        for types in SIGNS:
            r = make(*sizes, types, ta=ta, tb=tb, apart=lambda n: n + 1)
            given = operands_of(r, random.randrange(2**32))
            assert_exact(r, launch_case(gpu, Case(NAIVE, r), given.memory), given.arrays)
