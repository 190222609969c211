"""Products with maps fused to them: what GEMM kernels take, that they compile well, and what they compute."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from drawn_sets import Lazily
from draws.seeds import rng
from fused_gemm_cases import (
    EDGES,
    EVEN,
    NAIVE,
    ODD,
    TILED,
    TYPES,
    Product,
    batched,
    biased,
    case_of,
    dropped,
    large,
    lean,
    own,
    pitched,
    regions,
    residual,
    residuals,
    simulated,
    small,
    spread,
    summed,
    summed_alone,
    sums,
)
from kernel_cases import (
    FMAS,
    GEMMS,
    MMAS,
    TURINGS,
    VARIANTS,
    Case,
    assert_close,
    fused,
    halves_of,
    operands_for,
    reference,
    with_specials,
)
from simulated import outcomes_of
from test_compile import DEVICES, HOPPER, compile_case
from test_fused_maps import fresh_seed, run_on_host
from test_gpu_kernels import Gpu, gpu, launch_case, opened  # noqa: F401  (fixtures)
from wgmma_cases import BY_NAME, named

from aicf.cuda_kernels.gemm import problem
from aicf.cuda_kernels.gemm.wgmma_tiling import TILINGS
from aicf.cuda_kernels.hopper.units import ATOM
from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import f16, f32

H200 = preset("h200")
P = Product(8, 16, 8)
ALL = [*GEMMS, *MMAS]
# whose blocks finish whole boxes of columns
HOPPERS = [BY_NAME[named(t)].id for t in TILINGS if t.columns % ATOM == 0]
DEEP = "cuda.gemm_wgmma.v1[64x64 deep]"  # of up to 64 rows
WHOLE_FMAS = [v for v in FMAS if not v.endswith((" split]", " packed]"))]
LARGE = "cuda.gemm_tiled.v1[128x128]"
EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))  # else a sample: a kernel of this size takes seconds


# --- what they take ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("variant", ALL)
def test_takes_any_map_after_a_product(variant, dtype):
    for name, r in regions(Product(*EVEN, dtype)).items():
        reject = VARIANTS[variant].supported(r, H200)
        if variant in MMAS and dtype not in halves_of(variant):
            assert reject.condition == "dtype" and f"the product is in {dtype}" in reject.reason
        elif name == "spread" and lean(variant):
            assert reject.reason == "operand 2 walks columns 132 elements apart, needs 1 or 0"
        else:
            assert reject is None, f"{name}: {reject}"


def fed() -> RegionSpec:
    return fused({"a": (8, 8), "b": (8, 8)}, ("x", "relu", "a"), ("y", "gemm", "x", "b", None, None))


def strided_c() -> RegionSpec:
    return P.then({"c": P.matrix(stride=(1, 8))}, c="c")


REJECTED = [
    (residuals(P, 16), "loads and results after the product", "17 is over 16"),
    (residuals(P, 9, stride=(20, 1)), "strides other than 0, 1 and a row", "9 is over 8"),
    (
        P.then({}, ("s", "reduce_sum", "y", {"axes": (0,)}), ("t", "neg", "s")),
        "structure",
        "this is gemm+reduce+map",
    ),
    (fed(), "structure", "this is map+gemm"),
    (strided_c(), "contiguous", "needs row-major"),
]


@pytest.mark.parametrize("r, condition, reason", REJECTED, ids=[f"{c}: {w}" for _, c, w in REJECTED])
def test_rejects_with_the_value_seen(r, condition, reason):
    for variant in GEMMS:
        reject = VARIANTS[variant].supported(r, H200)
        assert reject is not None and condition in reject.condition and reason in reject.reason


@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize("variant", ALL)
def test_takes_sums_of_columns_behind_any_map(variant):
    for name, r in sums(Product(*EVEN, f16 if variant in MMAS else f32)).items():
        reject = VARIANTS[variant].supported(r, H200)
        assert (reject and reject.condition) == ("structure" if variant == NAIVE else None), (
            f"{name}: {reject}"
        )


@pytest.mark.spec("A12", "B7")
def test_no_other_kernel_takes_sums_of_columns():
    tiles = {v for v in ALL if v != NAIVE}
    for dtype in (f32, f16):
        for r in sums(Product(8, 16, 96, dtype)).values():
            taken = {v.id for v in VARIANTS.values() if v.supported(r, H200) is None}
            assert taken == ({*tiles, *HOPPERS, DEEP} if dtype is f16 else {*tiles, *WHOLE_FMAS} - {*MMAS})


def reduced(kind: str, strict: bool = False, **attrs) -> RegionSpec:
    return P.then({}, ("d", "relu", "y"), ("s", kind, "d", attrs), keep=("d", "s"), strict=strict)


@pytest.mark.spec("A15", "B7")
@pytest.mark.parametrize("r, condition, reason", [
    (reduced("reduce_sum", axes=(1,)), "core", "gemm and reduce_sum need a kernel each"),
    (reduced("reduce_sum", axes=()), "core", "gemm and reduce_sum need a kernel each"),
    (reduced("reduce_max", axes=(0,)), "core", "gemm and reduce_max need a kernel each"),
    (reduced("reduce_sum", strict=True, axes=(0,)), "strict", "adds up in another order than alone"),
])  # fmt: skip
def test_other_reductions_stay_kernels_of_their_own(r, condition, reason):
    for variant in (v for v in GEMMS if v != NAIVE):
        reject = VARIANTS[variant].supported(r, H200)
        assert reject.condition == condition and reason in reject.reason


@pytest.mark.spec("B8", "D6")
@pytest.mark.parametrize("m, launches", [(8, 1), (32, 1), (33, 2)])
def test_one_row_of_tiles_needs_no_second_launch_and_no_workspace(m, launches):
    variant, r = VARIANTS[TILED], summed(Product(m, 40, 8))
    assert len(variant.build(r, H200)) == launches
    assert variant.query_workspace(r, H200) == (2 * 40 * 4 if launches == 2 else 0)
    terms = variant.cost(r, H200).terms
    assert (terms["column sums"] > H200.launch_us) == (launches == 2)


@pytest.mark.spec("B8")
def test_what_follows_a_product_has_a_term_of_its_own():
    """A product alone has its results to store; operands and arithmetic come on top."""
    variant = VARIANTS[LARGE]
    alone, once = P.then({}), biased(P, 16)
    costs = [variant.cost(r, H200).terms.get("epilogue", 0.0) for r in (alone, once, residuals(P, 2))]
    assert 0.0 < costs[0] < costs[1] < costs[2]


# --- vectors ----------------------------------------------------------------------------------------------------------


def width(r: RegionSpec, variant: str = LARGE) -> int:
    from aicf.cuda_kernels.gemm.problem import epilogue

    return epilogue(r, 2 if variant in MMAS else 4).width


@pytest.mark.parametrize("r, expected", [
    (residual(P), 4), (residual(Product(8, 18, 8)), 2), (residual(Product(8, 17, 8)), 1),
    (residual(Product(8, 16, 8, alignment=8)), 2), (residual(Product(8, 16, 8, alignment=4)), 1),
    (residual(Product(8, 16, 8, f16, alignment=8)), 4), (residual(Product(8, 16, 8, f16, alignment=2)), 1),
    (pitched(P), 4), (residuals(P, 1, stride=(18, 1)), 2), (residuals(P, 1, stride=(17, 1)), 1), (spread(P), 1),
    (biased(Product(8, 16, 8), 8), 4), (dropped(P), 4), (residual(Product(0, 16, 8)), 4),
])  # fmt: skip
def test_runs_of_columns_where_they_are_whole_and_aligned(r, expected):
    assert width(r) == expected
    assert width(r, MMAS[0]) == min(2, expected)


# --- machine code -----------------------------------------------------------------------------------------------------

LONG = ("dropped", "every_value", "own", "spread", "long, sums")  # what takes most registers
TARGETS = [d for d in DEVICES if d.target in ("sm_75", "sm_80", "sm_90a")]


def compiled_cases(variant: str, sizes: tuple[int, int, int]) -> list[tuple[str, Case]]:
    p = Product(*sizes, f16 if variant in MMAS else f32)
    made = regions(p) | (sums(p) if variant != NAIVE else {})
    return [(name, Case(variant, r)) for name, r in made.items() if not (lean(variant) and name == "spread")]


SMALL_MMA, LARGE_MMA = "cuda.gemm_mma.v1[64x64]", "cuda.gemm_mma.v1[128x256]"
LARGE_TURING = "cuda.gemm_mma.v1[256x128 turing]"


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("device", TARGETS, ids=lambda d: d.target)
@pytest.mark.parametrize("variant", ALL if EVERYTHING else [*GEMMS, SMALL_MMA, LARGE_MMA, LARGE_TURING])
def test_every_tile_has_registers_for_long_epilogues(variant, device):
    some = (
        EVERYTHING or {LARGE_MMA: "sm_80", LARGE_TURING: "sm_75"}.get(variant, device.target) == device.target
    )
    for name, case in compiled_cases(variant, EVEN):
        if name in LONG and (some or name == "own"):
            compile_case(case, device)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("variant, sizes", [(LARGE, ODD), (SMALL_MMA, EVEN)])
def test_epilogues_compile_for_hopper_without_f64(variant, sizes, request):
    """Element by element in f32, by pairs in f16."""
    cases = [case for _, case in compiled_cases(variant, sizes)]
    drawn = rng(request.node.nodeid).permutation(len(cases))
    for case in cases if EVERYTHING else [cases[i] for i in drawn[:2]]:
        compile_case(case, HOPPER, look_at_ptx=True)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("device", TARGETS, ids=lambda d: d.target)
@pytest.mark.parametrize(
    "variant", [v for v in (ALL if EVERYTHING else [*GEMMS, SMALL_MMA]) if "naive" not in v]
)
def test_compiles_at_the_limits(variant, device):
    """As many operands and results as are taken, dense ones and rows that lie apart."""
    p = Product(40, 56, 24, f16 if variant in MMAS else f32)
    for r in (residuals(p, 15), residuals(p, 8, 8, stride=(57, 1))):
        compile_case(Case(variant, r), device)


# --- what they compute ------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="simulated")
@pytest.mark.spec("A12", "D3", "D4")
def test_simulated_kernels_agree_with_numpy():
    outcomes = outcomes_of("simulate_fused_gemm.py")
    assert len(outcomes) == len(simulated(small()))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A12", "F2")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_code_run_on_the_host_agrees_with_numpy(dtype):
    """With vectors of two columns, and without; each type runs a third of the regions, by default in one of the two."""
    third = slice(list(TYPES).index(dtype), None, 3)
    each = [list(regions(Product(*sizes, dtype)).values())[third] for sizes in ((6, 8, 4), (5, 7, 3))]
    pairs = list(zip(*each))
    for i, both in enumerate(pairs if EVERYTHING else pairs[:: len(pairs) // 2]):
        for r in both if EVERYTHING else [both[i % 2]]:
            case = case_of(TILED, r)
            given = operands_for(case, fresh_seed())
            (results,) = run_on_host(case, given)
            assert_close(case, results, reference(case, given.arrays))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("dtype, out", [(a, b) for a in TYPES for b in TYPES if a is not b])
def test_results_of_another_type_run_on_the_host_agree_with_numpy(dtype, out):
    """c, bias and residual have it too."""
    case = case_of(TILED, own(Product(6, 8, 5, dtype, out=out)))
    given = operands_for(case, fresh_seed())
    (results,) = run_on_host(case, given)
    assert [r.dtype for r in results] == [out.numpy] * 2
    assert_close(case, results, reference(case, given.arrays))


@pytest.mark.spec("D10")
@pytest.mark.parametrize("variant", MMAS)
def test_halves_with_f32_results_are_multiplied_on_tensor_cores(variant):
    assert VARIANTS[variant].supported(own(Product(*EVEN, f16, out=f32)), H200) is None
    reject = VARIANTS[variant].supported(own(Product(*EVEN, f32, out=f16)), H200)
    needed = "f16 on tensor cores before sm_80" if variant in TURINGS else "f16 or bf16"
    assert reject is not None and reject.reason == f"the product is in f32, needs {needed}"


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("device", TARGETS, ids=lambda d: d.target)
@pytest.mark.parametrize("variant", ["cuda.gemm_tiled.v1[64x64]", "cuda.gemm_mma.v1[64x64]"])
def test_f32_results_of_halves_compile(variant, device):
    compile_case(Case(variant, own(Product(*EVEN, f16, out=f32))), device)


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("D9", "F2")
def test_batches_run_on_the_host_agree_with_numpy(request):
    made = list(batched(5, 6, 4).values())
    drawn = rng(request.node.nodeid).permutation(len(made))
    for r in made if EVERYTHING else [made[i] for i in drawn[:2]]:
        case = case_of(TILED, r)
        given = operands_for(case, fresh_seed())
        (results,) = run_on_host(case, given)
        assert_close(case, results, reference(case, given.arrays))


@pytest.mark.spec("D9")
@pytest.mark.parametrize("name, axes, rows", [
    ("alone", 1, 5), ("c, z", 1, 5), ("shared b", 0, 30), ("shared b, rows", 1, 5), ("shared a", 1, 5), ("heads", 2, 5),
])  # fmt: skip
def test_a_batch_that_all_walk_as_rows_is_rows(name, axes, rows):
    gemm, after = problem.read(batched(5, 6, 4)[name])
    assert (len(gemm.batch), gemm.m, len(after.shape)) == (axes, rows, axes + 2)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("D9")
@pytest.mark.parametrize("variant", [LARGE, "cuda.gemm_mma.v1[128x128]"])
def test_batches_compile(variant):
    dtype = f16 if variant in MMAS else f32
    for name, r in batched(*EVEN, dtype).items():
        if EVERYTHING or name in ("c, z", "heads, rows"):
            compile_case(Case(variant, r), HOPPER)


@pytest.mark.sample(2, pool="on the host")
@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("sizes", [(6, 8, 4), (37, 53, 9), *EDGES[1:4]], ids=str)
def test_sums_of_columns_run_on_the_host_agree_with_numpy(sizes, dtype):
    """One row of tiles, two, an edge; no depth gives zeros. No rows are for a kernel of their own: test_wgmma.py."""
    made = list(sums(Product(*sizes, dtype)).values())
    for r in made if EVERYTHING else [made[fresh_seed() % len(made)]]:
        case = case_of(TILED, r)
        operands = operands_for(case, fresh_seed())
        (results,) = run_on_host(case, operands)
        assert_close(case, results, reference(case, operands.arrays))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "D6")
@pytest.mark.parametrize("rows", [6, 37])
def test_special_values_stay_in_the_sums_of_their_columns(rows):
    case = case_of(TILED, summed(Product(rows, 53, 4)))
    operands = operands_for(case, fresh_seed())
    dy = operands.arrays[0]
    dy[rows // 2, 1], operands.arrays[2][rows // 2, 0::2] = np.inf, 1.0
    (results,) = run_on_host(case, operands)
    assert not np.isfinite(results[1]).all() and np.isfinite(results[1][1::2]).any()
    assert_close(case, results, reference(case, operands.arrays))


@pytest.mark.spec("A15", "D6")
def test_sums_are_of_what_is_stored():
    """Rows that nearly cancel: the digits that f16 drops would show."""
    case = case_of(TILED, summed_alone(Product(3, 40, 1, f16)))
    operands = operands_for(case, fresh_seed())
    a = operands.arrays[0]
    a[2] = -(a[0] + a[1])
    ((y, s),) = run_on_host(case, operands)
    np.testing.assert_array_equal(s, y.astype(np.float32).sum(axis=0, keepdims=True).astype(np.float16))


def difference(*, keep: bool, strict: bool = False) -> RegionSpec:
    """The product in f16, and how far a value from outside is from it."""
    p = Product(6, 8, 4, f16)
    return p.then({"x": p.matrix()}, ("d", "sub", "y", "x"), keep=("y", "d") if keep else (), strict=strict)


@pytest.mark.sample(1)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("keep, strict", [(True, False), (False, True), (False, False)])
def test_what_is_stored_is_what_later_ops_read(keep, strict):
    """And so is every op's result when strict; else they read more digits than f16 holds."""
    first = Case(TILED, difference(keep=True))
    operands = operands_for(first, fresh_seed())
    ((y, _),) = run_on_host(first, operands)
    operands.memory[2][...] = y.reshape(-1)
    ((*_, d),) = run_on_host(Case(TILED, difference(keep=keep, strict=strict)), operands)
    assert (not np.any(d)) == (keep or strict), f"the product is {d} off"


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "F2")
@pytest.mark.parametrize("r", [residual(P), biased(P, 16, "relu", True)], ids=str)
def test_special_values_stay_where_they_belong(r):
    """NaN, infinities and zeros of both signs in every operand."""
    case = case_of(TILED, r)
    operands = with_specials(case, operands_for(case, fresh_seed()))
    (results,) = run_on_host(case, operands)
    assert_close(case, results, reference(case, operands.arrays))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.sample(8, each=lambda case: case.variant, gpu=True)
@pytest.mark.spec("A12", "D3", "D4")
@pytest.mark.parametrize("case", Lazily(lambda: itertools.chain(small(), large())), ids=str)
def test_agrees_with_numpy(gpu, case):  # noqa: F811
    operands = operands_for(case, fresh_seed())
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize("variant", [v for v in ALL if v != NAIVE])
def test_sums_are_the_same_in_every_run(gpu: Gpu, variant):  # noqa: F811
    case = case_of(variant, summed(Product(1000, 136, 72, f16 if variant in MMAS else f32), "gelu"))
    operands = operands_for(case, fresh_seed())
    first, *others = ([r.tobytes() for r in launch_case(gpu, case, operands.memory)] for _ in range(5))
    assert all(other == first for other in others)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", GEMMS)
def test_unaligned_pointers(gpu: Gpu, variant):  # noqa: F811
    case = case_of(variant, residual(Product(*EVEN, alignment=4)))
    operands = operands_for(case, fresh_seed())
    got = launch_case(gpu, case, operands.memory, shift=1)
    assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ALL)
def test_a_result_may_take_over_a_residual(gpu: Gpu, variant):  # noqa: F811
    dtype = f16 if variant in MMAS else f32
    case = case_of(variant, residual(Product(*EVEN, dtype)))
    operands = operands_for(case, fresh_seed())
    got = launch_case(gpu, case, operands.memory, onto={0: 3})
    assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.sample(6, gpu=True)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("variant", ALL)
def test_special_values(gpu: Gpu, variant):  # noqa: F811
    dtype = f16 if variant in MMAS else f32
    p = Product(*EVEN, dtype)
    for r in (residual(p), biased(p, p.n, "relu", True)):
        case = case_of(variant, r)
        operands = with_specials(case, operands_for(case, fresh_seed()))
        got = launch_case(gpu, case, operands.memory)
        assert_close(case, got, reference(case, operands.arrays))
