"""Products whose k is split: how it is divided, when that is chosen, and what is computed."""

from __future__ import annotations

import numpy as np
import pytest
from fused_gemm_cases import (
    TYPES,
    Product,
    batched,
    biased,
    case_of,
    own,
    residual,
    simulated,
    split_cases,
    spread,
)
from kernel_cases import SPLITS, VARIANTS, assert_close, operands_for, reference, with_specials
from simulated import outcomes_of
from test_fused_maps import fresh_seed, run_on_host
from test_gpu_kernels import Gpu, gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.cuda_kernels.gemm.schedule.split_k import KSplit, divide
from aicf.device.spec import preset
from aicf.types import f32

H200, SMALL = preset("h200"), "cuda.gemm_tiled.v1[32x32 split]"


@pytest.mark.parametrize("k, wanted, step, split", [
    (4096, 8, 32, (8, 512)), (4096, 7, 32, (7, 608)), (65, 2, 32, (2, 64)), (100, 64, 16, (4, 32)), (33, 64, 16, (2, 32)),
])  # fmt: skip
def test_parts_are_of_whole_steps_and_none_is_empty(k, wanted, step, split):
    made = divide(k, wanted, step)
    assert made == KSplit(*split) and made.k % step == 0
    assert (made.number - 1) * made.k < k <= made.number * made.k


@pytest.mark.spec("B8", "B10")
def test_chosen_for_few_results_of_long_sums_only():
    def best(*size):
        r = residual(Product(*size))
        costs = {v: VARIANTS[v].cost(r, H200).us for v in VARIANTS if VARIANTS[v].supported(r, H200) is None}
        return min(costs, key=costs.__getitem__)

    assert best(128, 128, 16384) in SPLITS
    assert best(4096, 4096, 4096) not in SPLITS and best(64, 64, 64) not in SPLITS


def test_the_workspace_holds_every_part():
    r = residual(Product(130, 70, 4096))
    first, second = VARIANTS[SMALL].build(r, H200)
    splits = second.args[1].value
    assert splits > 1 and VARIANTS[SMALL].query_workspace(r, H200) == 4 * splits * 130 * 70
    assert first.grid == (5 * 3 * splits,)


@pytest.mark.parametrize("r, condition, reason", [
    (residual(Product(40, 50, 64)), "k", "k 64 is under 65"),
    (Product(40, 50, 640).then({}, strict=True), "strict", "strict takes one sum"),
    (residual(Product(1024, 1024, 640)), "tiles", "tiles 1024 is over 512"),
    (batched(40, 50, 640)["alone"], "axes of the batch", "1 is over 0"),
])  # fmt: skip
def test_rejects_with_the_value_seen(r, condition, reason):
    reject = VARIANTS[SMALL].supported(r, H200)
    assert (reject.condition, reason in reject.reason) == (condition, True), reject


@pytest.mark.sample(1, pool="simulated")
@pytest.mark.spec("B10", "D5")
def test_simulated_kernels_agree_with_numpy():
    assert len(outcomes_of("simulate_gemm_split.py")) == len(simulated(split_cases(SMALL)))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_code_run_on_the_host_agrees_with_numpy(dtype):
    for sizes, make in (((6, 8, 70), residual), ((5, 7, 101), own), ((5, 6, 66), spread)):
        case = case_of(SMALL, make(Product(*sizes, dtype)))
        given = operands_for(case, fresh_seed())
        (results,) = run_on_host(case, given)
        assert_close(case, results, reference(case, given.arrays))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("B13", "F2")
def test_special_values_stay_where_they_belong_and_sums_are_the_same_again():
    case = case_of(SMALL, biased(Product(6, 8, 100, f32), 8, "relu", True))
    given = with_specials(case, operands_for(case, fresh_seed()))
    (first,), (second,) = run_on_host(case, given), run_on_host(case, given)
    assert_close(case, first, reference(case, given.arrays))
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second))


@pytest.mark.gpu
@pytest.mark.sample(4, each=lambda case: case.variant, gpu=True)
@pytest.mark.spec("B10", "D5")
@pytest.mark.parametrize("case", [c for v in SPLITS for c in split_cases(v, 130, 136)], ids=str)
def test_agrees_with_numpy(gpu: Gpu, case):  # noqa: F811
    operands = operands_for(case, fresh_seed())
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))
