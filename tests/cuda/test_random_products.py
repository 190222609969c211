"""A thousand products drawn by hypothesis, each by a kernel that takes it, against float64: on a GPU by every kernel of products;
a few on the host.

A failure shrinks to a small one, which is printed with the seed that finds it again: `--hypothesis-seed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draws.seeds import run_number
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import seed as seeded
from kernel_cases import PARTS, VARIANTS, assert_close, operands_for, reference, tf32_rounding
from random_products import FORMS, Form, Problem, forms, large, problems
from test_gpu_kernels import Gpu, gpu, launch_case, opened  # noqa: F401  (fixtures)
from wgmma_cases import H200

from aicf.cpu_kernels import MODULES
from aicf.device.spec import DeviceSpec, host
from aicf.registry.variant import KernelVariant, variants_in
from aicf.types import f32

# integers: test_gpu_int8.py and test_int8_wgmma.py; for invariant rows alone: test_halved_wgmma.py and test_fixed_parts.py
PRODUCTS = [
    v
    for v in VARIANTS
    if VARIANTS[v].kinds == ("gemm",) and "int8" not in v and "halved" not in v and v not in PARTS
]
ON_HOST = {v.id: v for m in MODULES for v in variants_in(m)}
EACH = -(-1000 // len(PRODUCTS))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of hypothesis, or of the run."""
    return int(request.config.getoption("hypothesis_seed", None) or run_number())


def drawn(
    variant: KernelVariant,
    device: DeviceSpec,
    seed: int,
    count: int,
    check: Callable[[Problem], None],
    **more: Any,
) -> None:
    """`check` of so many problems."""
    found = forms(variant, device, seed, on=device.kind)
    assert found, f"no product is known that {variant.id} takes"

    @seeded(seed)
    @settings(max_examples=count, deadline=None, database=None, phases=(Phase.generate, Phase.shrink),
              suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])  # fmt: skip
    @given(problems(variant, device, found, on=device.kind, **more))
    def holds(problem: Problem) -> None:
        note(f"{problem.region(device.kind)}\npytest --hypothesis-seed={seed} -k {variant.name}")
        check(problem)

    holds()


@pytest.mark.gpu
@pytest.mark.sample(18, gpu=True)
@pytest.mark.spec("D5", "D9", "D10")
@pytest.mark.parametrize("variant", PRODUCTS)
def test_random_products(gpu: Gpu, variant, seed):  # noqa: F811
    """Two forms for each variant."""
    if reject := VARIANTS[variant].admits(gpu.spec):
        pytest.skip(str(reject))
    lost: dict[Problem, Exception] = {}

    def check(problem: Problem) -> None:
        if lost and problem not in lost:
            return  # after an illegal access nothing runs any more: that one is to be told
        if problem in lost:
            raise lost[problem]
        case = problem.case(variant)
        operands = operands_for(case, problem.seed)
        want = reference(case, operands.arrays)
        try:
            assert_close(case, launch_case(gpu, case, operands.memory, problem.shift), want)
        except AssertionError:
            gpu.free()
            raise
        except Exception as error:
            lost[problem] = error
            raise
        gpu.free()

    drawn(VARIANTS[variant], gpu.spec, seed, 6 if large(VARIANTS[variant]) else EACH, check)


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("D5", "D9")
@pytest.mark.parametrize("variant", ["cpu.gemm_blas.v3", "cpu.reference.v1"])
def test_random_products_on_the_host(variant, seed):
    drawn(ON_HOST[variant], host(), seed, 30, lambda problem: run_on_host(variant, problem), largest=150)


def run_on_host(variant: str, problem: Problem) -> None:
    case, r = problem.case(variant), problem.region("cpu")
    operands = operands_for(case, problem.seed)
    results = [np.full(t.shape, np.nan, t.dtype.numpy) for t in r.results]
    ON_HOST[variant].build(r, host()).function(operands.arrays, results)
    assert_close(case, results, reference(case, operands.arrays))


def test_references_round_as_kernels_do():
    """Where a kernel may multiply TF32 instead of f32: its own rounding, or none."""
    half_way = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 1.1 * 2**-11], np.float32)
    even, away = (np.array(x) * 2.0**-10 + 1 for x in ([0, 2, 1], [1, 2, 1]))
    for variant in (*ON_HOST, *PRODUCTS):
        rounding, name = tf32_rounding(variant), re.match(r"cuda\.gemm_(wgmma\.|mma\..* tf32)", variant)
        if not name or "tf32x3" in variant:
            assert rounding is None, variant
            continue
        want = even if name[1] == "wgmma." else away
        np.testing.assert_array_equal(rounding(half_way), want, err_msg=variant)


@pytest.mark.spec("D5", "D9")
def test_tf32_on_the_host():
    """By the reference, in f64, and by the host's BLAS: neither rounds factors."""
    form = Form((f32, f32, f32), "tf32", False, False, "plain", 1, 16, "")
    for variant in ("cpu.reference.v1", "cpu.gemm_blas.v3"):
        for seed in range(5):
            run_on_host(variant, Problem(form, 64, 64, 3, seed=seed))


@pytest.mark.sample(8)
@pytest.mark.parametrize("variant", PRODUCTS)
def test_every_kernel_has_problems(variant, seed):
    """Of the forms that it is to be compiled for; and its launches of them can be made."""
    assert len(forms(VARIANTS[variant], H200, seed)) == FORMS
    seen = []

    def check(problem: Problem) -> None:
        r = problem.case(variant).region
        assert VARIANTS[variant].build(r, H200) and VARIANTS[variant].query_workspace(r, H200) >= 0
        seen.append(problem)

    drawn(VARIANTS[variant], H200, seed, 3, check)
    assert seen


def test_a_failure_shrinks_and_is_told():
    """To the smallest; with what finds it again."""

    def check(problem: Problem) -> None:
        assert problem.m * problem.n < 500

    with pytest.raises(AssertionError) as caught:
        drawn(ON_HOST["cpu.gemm_blas.v3"], host(), 1, 200, check)
    told = "\n".join(caught.value.__notes__)
    assert "problem=Problem(" in told and "--hypothesis-seed=1" in told
    assert re.search(r"shift=0,\s+seed=0", told)
