"""Products with few rows or few columns: when they are chosen, where their numbers go, and what they compute."""

from __future__ import annotations

import dataclasses
import itertools
import os

import numpy as np
import pytest
from drawn_sets import Lazily
from fused_gemm_cases import Product, case_of, residual
from gemv_cases import MMA, SIMT, TYPES, WARPS, cases
from kernel_cases import (
    VARIANTS,
    Case,
    assert_close,
    desc,
    gemm,
    operands_for,
    reference,
    region,
    unaligned,
    with_specials,
)
from test_compile import DEVICES, compile_case
from test_fused_maps import fresh_seed, run_on_host
from test_gpu_kernels import Gpu, gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.cuda_kernels.gemm.small_m import share, simt_plan
from aicf.cuda_kernels.gemm.small_m_body import SmallTile, products, wide_step
from aicf.cuda_kernels.gemm.small_m_mma_body import holder, small_step, small_words, wide_loads, wide_words
from aicf.cuda_kernels.gemm.small_m_mma_body import wide_step as mma_step
from aicf.cuda_kernels.gemm.small_m_tiling import CHUNK, OWN, STEP, Share, Staging, Warps
from aicf.device.spec import preset
from aicf.types import DType, bf16, f16, f32

H200 = preset("h200")
EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))


def chosen(device: str, *sizes: int, **more) -> str:
    r, spec = gemm(*sizes, **more), preset(device)
    able = [v for v in VARIANTS.values() if "gemm" in v.kinds and v.supported(r, spec) is None]
    return max((v.score(r, spec), v.name) for v in able)[1]


@pytest.mark.spec("B8", "D10")
@pytest.mark.parametrize("device", ["h200", "a100", "t4"])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_chosen_where_rows_or_columns_are_few(device, dtype):
    for sizes in ((1, 4096, 4096), (4, 4096, 4096), (4096, 1, 4096), (8, 11008, 4096), (1, 1, 100000)):
        for trans_b in (False, True):
            name = chosen(device, *sizes, dtype=dtype, trans_b=trans_b)
            # on an H200, TMA brings halves faster
            assert name.startswith("gemv" if (device, dtype) != ("h200", f16) else ("gemv", "gemm_wgmma")), (
                sizes
            )
    for sizes in ((4096, 4096, 4096), (128, 512, 512), (256, 256, 64)):
        assert not chosen(device, *sizes, dtype=dtype).startswith("gemv"), sizes


@pytest.mark.spec("B8")
def test_predicted_near_the_bandwidth_where_cores_keep_up():
    """One line costs what reading costs, and a start; sixteen of halves cost arithmetic."""
    reading = 2 * 4096 * 4096 / H200.bandwidth * 1e-3
    one, sixteen = (simt_plan(gemm(m, 4096, 4096, dtype=f16, trans_b=True), H200).cost for m in (1, 16))
    assert one.terms["memory"] < 1.3 * reading and one.us < 2 * reading and "compute" not in one.terms
    assert sixteen.terms["compute"] > reading


@pytest.mark.spec("D10")
def test_what_it_refuses():
    variant = VARIANTS[SIMT]
    assert variant.supported(gemm(16, 4096, 64), H200) is variant.supported(gemm(4096, 16, 64), H200) is None
    tensor = VARIANTS[MMA]
    assert tensor.supported(gemm(64, 4096, 64, dtype=bf16), H200) is None
    for r, reason in (
        (gemm(64, 65, 64), "the product is in f32"), (gemm(65, 65, 64, dtype=f16), "smaller of m and n 65 is over 64"),
        (gemm(64, 8, 64, dtype=f16), "the smaller operand is f16[64x8], needs whole aligned runs of 8 along k"),
        (gemm(8, 20, 64, dtype=f16), "the larger operand is f16[64x20], needs whole aligned runs of 8"),
    ):  # fmt: skip
        assert reason in str(tensor.supported(r, H200))
    batch = region("gemm", desc((3, 8, 64), f16), desc((3, 64, 40), f16), None, None)
    for either in (variant, tensor):
        assert str(either.supported(batch, H200)) == "axes of the batch 1 is over 0"
    strict = dataclasses.replace(gemm(1, 64, 64), strict=True)
    assert "strict takes one sum, in order" in str(variant.supported(strict, H200))
    assert str(variant.supported(gemm(17, 17, 64), H200)) == "smaller of m and n 17 is over 16"


@pytest.mark.spec("D10")
@pytest.mark.parametrize("sizes, more, name", [
    ((1, 64, 64), {}, "1_l8_k2"), ((1, 64, 64), {"trans_b": True}, "1_k8_k2"), ((64, 3, 64), {}, "4_k8_l1"),
    ((64, 3, 64), {"trans_b": True}, "4_k8_k4"), ((3, 64, 64), {"trans_a": True}, "4_l8_l1"),
    ((5, 64, 64), {}, "8_l4_k4"), ((5, 63, 64), {}, "8_l1_k2"), ((5, 63, 63), {"trans_b": True}, "8_k1_k1"),
    ((5, 64, 64), {"alignment": 4}, "8_l2_k2"), ((1, 1, 64), {}, "1_k8_k2"), ((40, 1, 1), {}, "1_l8_k1"),
])  # fmt: skip
def test_operands_come_in_the_longest_runs_that_are_whole_and_aligned(sizes, more, name):
    assert "_".join(map(str, share(gemm(*sizes, dtype=f16, **more)))) == name


def test_k_is_split_where_lines_are_few():
    long, wide = gemm(1, 64, 100000, dtype=f16), gemm(1, 64 * 132, 4096, dtype=f16)
    assert simt_plan(wide, H200).splits == 1 and VARIANTS[SIMT].query_workspace(wide, H200) == 0
    splits, chunk, *_ = simt_plan(long, H200)
    assert splits > 8 and (splits - 1) * chunk < 100000 <= splits * chunk
    assert VARIANTS[SIMT].query_workspace(long, H200) == splits * 64 * 4
    first, second = VARIANTS[SIMT].build(residual(Product(1, 64, 100000)), H200)
    assert "gelu" not in first.body.__name__ and "gelu" in second.body.__name__


# --- where numbers go -------------------------------------------------------------------------------------------------

SHARES = [
    Share(few, k_major, width, itemsize)
    for few, k_major, width, itemsize in itertools.product((1, 2, 4, 8, 16), (False, True), (1, 2, 4, 8), (2, 4))
    if width * itemsize <= 16 and (width < 8 or few <= 4)
]  # fmt: skip


def stagings(part: Share) -> list[Staging]:
    most = min(4, max(1, part.few * part.tile_k // part.threads))
    return [Staging(False, 1), *(Staging(True, w) for w in (1, 2, 4) if w <= most)]


@pytest.mark.sample(12)
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("part", SHARES, ids=str)
def test_every_product_meets_its_own_numbers(part):
    """Of a slice: each number of the small operand is loaded once, and is read beside the wide one of the same k; all are multiplied."""
    for staging in stagings(part):
        small = SmallTile(part, staging)
        first, step, to = (f.args[0] for f in (small.first(), small.step(), small.to()))
        shared = {}
        for thread in range(part.threads):
            line, along = first(thread)
            if not (line < part.few and along < part.tile_k):
                continue
            for i in range(small.loads):
                more = step(i)
                for e in range(staging.width):
                    at = to(line, along) + to(*more) + e * (1 if part.k_major else part.few)
                    assert shared.setdefault(at, (line + more[0], along + more[1] + e)) == (
                        line + more[0],
                        along + more[1] + e,
                    )
        assert set(shared) == set(range(part.few * part.tile_k))
        assert set(shared.values()) == {(s, k) for s in range(part.few) for k in range(part.tile_k)}
        quad, reads = products(part)
        further, met = wide_step(part).args[0], set()
        for thread in range(part.threads):
            lane, group = thread % part.lanes, thread // part.lanes
            if part.k_major:
                line, along, get = group * OWN, lane * part.width, lane * min(part.width, 4)
            else:
                line, along, get = lane * part.width, group, group * part.few
            for begin, made in reads:
                assert (get + begin) % quad == 0  # a vector load
                for i, j, e in made:
                    (down, deeper), v = further(j // part.width), j % part.width
                    x = (
                        (line + down, along + deeper + v)
                        if part.k_major
                        else (line + down + v, along + deeper)
                    )
                    s, k = shared[get + begin + e]
                    assert k == x[1] and i % part.few == s and i // part.few == (down if part.k_major else v)
                    met.add((*x, s))
        assert len(met) == part.mn_extent * part.tile_k * part.few


def mma(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(lane, sum) of m16n8k16, from (lane, 4 registers, 2 halves) of a and (lane, 2, 2) of b."""
    left, right = (x.reshape(8, 4, -1, 2) for x in (a, b))  # lane 4g + c is row g of a, column g of b
    rows = left.reshape(8, 4, 2, 2, 2)  # (g, c, pair of k, row g or g + 8, half): registers 0 and 2 are row g
    product = np.einsum("gcpuh,ncph->gun", rows, right)
    return product.reshape(8, 2, 4, 2).transpose(0, 2, 1, 3).reshape(32, 4)


def word(words: np.ndarray, which) -> np.ndarray:
    """A register of each lane, as two numbers: one that was loaded, or halves of two."""
    if isinstance(which, int):
        return words[:, which]
    low, high, half = which
    return np.stack([words[:, low, half], words[:, high, half]], -1)


@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("few", [8, 16, 32, 64])
def test_fragments_meet_their_own_numbers(few, k_major):
    """A block's step, thread by thread, with mma done as the PTX manual says it is."""
    warps, rng = Warps(few, k_major), np.random.default_rng()
    wide, small = rng.normal(size=(warps.mn_extent, warps.tile_k)), rng.normal(size=(few, warps.tile_k))
    result = np.zeros((warps.mn_extent, few))
    further, small_further, of = (f.args[0] for f in (mma_step(warps), small_step(warps), holder(warps)))
    for warp in range(warps.warps):
        loaded: list[list[np.ndarray]] = [[], []]
        line0 = warp // warps.along * 16 * warps.tiles
        for lane in range(32):
            row, along = lane // 4, warp % warps.along * STEP * warps.unroll + lane % 4 * CHUNK
            line, runs = line0 + (row if k_major else row * warps.width), []
            for i in range(wide_loads(warps)):
                down, deeper = further(i)
                at = (
                    slice(line + down, line + down + warps.width),
                    slice(along + deeper, along + deeper + CHUNK),
                )
                runs.append(wide[line + down, at[1]] if k_major else wide[at[0], along + deeper])
            loaded[0].append(np.concatenate(runs).reshape(-1, 2))
            steps = [small_further(i) for i in range(warps.columns * warps.unroll)]
            runs = [small[row + down, along + deeper : along + deeper + CHUNK] for down, deeper in steps]
            loaded[1].append(np.concatenate(runs).reshape(-1, 2))
        a, b = map(np.stack, loaded)
        acc = np.zeros((32, warps.accumulators))
        for a_tiles, b_tiles in zip(wide_words(warps), small_words(warps)):
            for i, j in itertools.product(range(warps.tiles), range(warps.columns)):
                left, right = (
                    np.stack([word(x, w) for w in t], 1) for x, t in ((a, a_tiles[i]), (b, b_tiles[j]))
                )
                first = 4 * (i * warps.columns + j)
                acc[:, first : first + 4] += mma(left, right)
        for line, s in itertools.product(range(16 * warps.tiles), range(few)):
            i, lane = of(line, s)
            result[line0 + line, s] += acc[lane, i]
    np.testing.assert_allclose(result, wide @ small.T, atol=1e-9)


# --- what they compute ------------------------------------------------------------------------------------------------


RUN = [
    (SIMT, f32, 9),
    (SIMT, f16, 14),
    (SIMT, bf16, 19),
    (MMA, f16, 2),
    (MMA, bf16, 15),
    (WARPS, f32, 2),
    (WARPS, bf16, 7),
]


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A12", "D9", "D10", "F2")
@pytest.mark.parametrize("variant, dtype, one", RUN, ids=str)
def test_code_run_on_the_host_agrees_with_numpy(variant, dtype, one):
    """With numbers, and with NaN and infinities among them; mma done as the PTX manual says it is."""
    some = cases(variant, dtype)
    sample = [some[one], some[-1]] if variant == SIMT else [some[one]]  # the last one is in parts
    for case in some if EVERYTHING else sample:
        given = operands_for(case, fresh_seed()), with_specials(case, operands_for(case, fresh_seed()))
        for operands, results in zip(given, run_on_host(case, *given)):
            assert_close(case, results, reference(case, operands.arrays))


@pytest.mark.sample(1, each="dtype", pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_compiles_without_spills(dtype: DType, target: str):
    """Every layout of both operands, whole runs and single numbers, for each count of lines of the small operand."""
    (device,) = (d for d in DEVICES if d.target == target)
    every = [
        gemm(few, 4096, 4096, trans_a=ta, trans_b=tb, dtype=dtype, alignment=alignment)
        for few, ta, tb in itertools.product((1, 2, 4, 8, 16), (False, True), (False, True))
        for alignment in (256, 4, dtype.itemsize)
    ]
    start = 5 * ["sm_75", "sm_80", "sm_90a"].index(target) + (dtype is f32)
    for r in every if EVERYTHING else every[start::59]:
        compile_case(Case(SIMT, r), device, look_at_ptx=True)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_tensor_core_kernels_compile_without_spills(target: str):
    """Both layouts of the wide operand for each count of lines of the small operand."""
    (device,) = (d for d in DEVICES if d.target == target)
    every = [gemm(few, 4096, 512, trans_b=tb, dtype=f16) for few in (64, 32, 16, 8) for tb in (False, True)]
    for r in every if EVERYTHING else every[target == "sm_80" :: 4]:
        compile_case(Case(MMA, r), device, look_at_ptx=True)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
def test_warps_of_lines_compile_without_spills(target: str):
    """For each count of lines of the small operand, one line of a team and two, teams of one warp and of eight."""
    (device,) = (d for d in DEVICES if d.target == target)
    every = [
        gemm(few, n, k, trans_b=True, dtype=t)
        for t in (bf16, f32)
        for few, n, k in ((1, 9000, 768), (1, 64, 8192), (2, 64, 768), (4, 64, 8192))
    ]
    for r in every if EVERYTHING else every[DEVICES.index(device) % 2 :: 3]:
        compile_case(Case(WARPS, r), device, look_at_ptx=True)


@pytest.mark.spec("D10")
def test_warps_refuse_what_does_not_lie_along_k():
    variant = VARIANTS[WARPS]
    assert variant.supported(gemm(4, 4096, 64, trans_b=True), H200) is None
    for r, reason in (
        (gemm(5, 64, 64, trans_b=True), "smaller of m and n 5 is over 4"),
        (gemm(1, 64, 64), "the larger operand is f32[64x64], needs whole aligned runs of 4 along k"),
        (gemm(1, 64, 68, trans_b=True, dtype=f16), "needs whole aligned runs of 8 along k"),
        (gemm(1, 64, 64, trans_b=True, dtype=f16, alignment=8), "needs whole aligned runs of 8 along k"),
        (gemm(1, 64, 0, trans_b=True), "takes products with elements"),
    ):
        assert reason in str(variant.supported(r, H200))


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.sample(15, each=lambda case: (case.variant, case.region.operands[0].dtype), gpu=True)
@pytest.mark.spec("A12", "D9", "D10")
@pytest.mark.parametrize(
    "case",
    Lazily(
        lambda: (
            c
            for t, v in (*itertools.product(TYPES, (SIMT, WARPS)), (f16, MMA), (bf16, MMA))
            for c in cases(v, t)
        )
    ),
    ids=str,
)
def test_agrees_with_numpy(gpu, case):  # noqa: F811
    drawn = [operands_for(case, fresh_seed())]
    if not any(t.dtype.kind == "int" for t in case.region.results):  # what a NaN becomes is not specified
        drawn.append(with_specials(case, operands_for(case, fresh_seed())))
    for operands in drawn:
        got = launch_case(gpu, case, operands.memory)
        assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.sample(8, gpu=True)
@pytest.mark.parametrize(
    "sizes", [(1, 4096, 4096), (7, 1000, 3001), (4096, 4, 512), (3, 5, 70000), (16, 11008, 256)]
)
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("trans_b", [False, True])
def test_at_size_and_again(gpu: Gpu, sizes, dtype, trans_b):  # noqa: F811
    """At pointers of any alignment; and the same bits each time."""
    for variant, shift in ((SIMT, 0), (SIMT, 1), (MMA, 0), (WARPS, 0)):
        case = case_of(variant, gemm(*sizes, dtype=dtype, trans_b=trans_b))
        case = next(unaligned([case])) if shift else case
        if VARIANTS[variant].supported(case.region, H200):
            continue
        operands = operands_for(case, fresh_seed())
        got, again = (launch_case(gpu, case, operands.memory, shift=shift) for _ in range(2))
        assert_close(case, got, reference(case, operands.arrays))
        assert np.array_equal(got[0].view(np.uint8), again[0].view(np.uint8))
