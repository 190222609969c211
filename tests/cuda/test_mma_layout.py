"""The mma.sync kernels on a machine without one: where their numbers lie and how they come there, and what they compute, whatever
the order in which copies arrive. See machines/mma_machine.py."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest
from fused_gemm_cases import Product, dropped, own, residual, spread
from kernel_cases import (
    HALVES,
    MMAS,
    TF32S,
    VARIANTS,
    Case,
    Operands,
    assert_close,
    desc,
    gemm,
    halves_of,
    operands_for,
    reference,
    region,
)
from machines.hopper_bodies import in_python
from machines.mma_machine import Machine, Wrong, rounded
from test_fused_maps import fresh_seed

from aicf.cuda_kernels.gemm.mma_body import column_places, layout_of, thread_tile_of
from aicf.cuda_kernels.gemm.operands.stages import Fragments, StageLoad, Stored
from aicf.cuda_kernels.gemm.tilings import MmaTiling
from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import DType, Precision, bf16, f16, f32

EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))
H200 = preset("h200")
LANES = range(32)

# --- where things lie -------------------------------------------------------------------------------------------------

SLICES = [
    Stored(lines, depth, size, fast)
    for size, lines, depth, fast in (
        (2, 32, 64, False), (2, 64, 32, False), (2, 256, 64, False), (2, 32, 64, True), (2, 64, 32, True),
        (2, 256, 32, True), (4, 64, 16, False), (4, 128, 32, False), (4, 32, 32, True), (4, 64, 16, True), (4, 256, 32, True),
    )
]  # fmt: skip


def offsets(stored: Stored) -> np.ndarray:
    """Of each element, (lines, depth). What `Stored.offset` computes, where it calls a plain function."""
    swizzle, line, k = stored.swizzle().args[0], *np.indices((stored.mn, stored.k))
    row, along = (k, line) if stored.mn_major else (line, k)
    return row * stored.row + (along * stored.itemsize ^ swizzle(row))


@pytest.mark.parametrize("stored", SLICES, ids=str)
def test_each_element_has_a_place_of_its_own(stored):
    at = offsets(stored)
    assert sorted(at.reshape(-1)) == list(range(0, stored.nbytes, stored.itemsize))


@pytest.mark.sample(2, each="stored")
@pytest.mark.parametrize("stored", SLICES, ids=str)
@pytest.mark.parametrize("width", [2, 4, 8, 16])
@pytest.mark.parametrize("threads", [128, 256])
def test_every_byte_is_loaded_once(stored, width, threads):
    if width < stored.itemsize or threads * width < stored.row:
        pytest.skip("no such units")
    load, at, seen = StageLoad(stored, width, threads), offsets(stored), []
    for thread in range(threads):
        line, k = load.first().args[0](thread)
        for i, (flipped, added) in enumerate(load.to):
            place = (int(at[line, k]) ^ flipped) + added
            down = i * load.apart
            assert place == at[(line, k + down) if stored.mn_major else (line + down, k)]
            assert place % width == 0
            seen += range(place, place + width)
    assert sorted(seen) == list(range(stored.nbytes))


@pytest.mark.sample(2, each="stored")
@pytest.mark.parametrize("stored", SLICES, ids=str)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_fragments_are_read_from_banks_of_their_own(stored, first, count):
    """And from where the elements are that the manual says a thread has."""
    part, at, half = Fragments(stored, count, first), offsets(stored), 16 // stored.itemsize
    if 16 * count > stored.mn:
        pytest.skip("no such part")
    for corner in range(0, stored.mn, 16 * count):
        start = [in_python(part.lane())(lane) for lane in LANES]
        base = [int(at[corner + line, k]) for line, k in start]
        for step, fragments in enumerate(part.places):
            for i, places in enumerate(fragments):
                for number, (flipped, added) in enumerate(places):
                    found = [(b ^ flipped) + added for b in base]
                    if stored.by_numbers:
                        assert len({x % 128 // 4 for x in found}) == 32
                        low, high = (number % 2, number // 2) if first else (number // 2, number % 2)
                        line, k = corner + 16 * i + 8 * low, step * 8 + 4 * high
                        want = [at[line + lane // 4, k + lane % 4] for lane in LANES]
                    else:
                        assert all(
                            len({x % 128 // 16 for x in found[j : j + 8]}) == 8 for j in range(0, 32, 8)
                        )
                        want = [at[corner + 16 * i + line, step * 2 * half + k] for line, k in start]
                    assert found == want


@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize(
    "tiling",
    [
        MmaTiling(32, 32, 2, 2, 64, 4, 4),
        MmaTiling(128, 128, 2, 2, 32, 3, 2),
        MmaTiling(256, 128, 4, 2, 32, 4, 1),
        MmaTiling(128, 128, 2, 4, 32, 2, 1, turing=True),
    ],
    ids=str,
)
def test_sums_of_columns_meet_those_of_the_other_rows(tiling):
    """Every element of a tile once, in the sum of its column; every sum in a place of its own."""
    across, m, n = tiling.warps_n, tiling.m, tiling.n
    thread_tile, warp_m, warp_n = thread_tile_of(tiling), m // tiling.warps_m, n // across
    place, at = layout_of(tiling).element(), in_python(column_places(tiling))
    tile = np.random.default_rng().normal(size=(m, n))
    shared, met = np.full(thread_tile.column_threads * n, np.nan), np.zeros((m, n), int)
    for thread in range(tiling.threads):
        lane, warp = thread % 32, thread // 32
        sums = np.zeros(max(thread_tile.columns) + 1)
        for i, mine in enumerate(thread_tile.columns):
            row, column = place(i, 0, lane)
            row, column = row + warp // across * warp_m, column + warp % across * warp_n
            sums[mine] += tile[row, column]
            met[row, column] += 1
        for i, total in enumerate(sums):
            to = at(thread) + i // thread_tile.width * thread_tile.apart + i % thread_tile.width
            assert np.isnan(shared[to])
            shared[to] = total
    assert (met == 1).all()
    np.testing.assert_allclose(
        shared.reshape(thread_tile.column_threads, n).sum(axis=0), tile.sum(axis=0), rtol=0, atol=1e-12
    )
    assert 4 * shared.size <= tiling.shared


# --- what they compute ------------------------------------------------------------------------------------------------


def shifted(case: Case, operands: Operands) -> list[np.ndarray]:
    """The memory of each operand, aligned to what its description says and to no more."""
    made = []
    for memory, t in zip(operands.memory, case.region.operands):
        room = np.full(memory.nbytes + 512, 255, np.uint8)
        start = -room.ctypes.data % 256 + (t.alignment % 256)
        made.append(room[start : start + memory.nbytes].view(memory.dtype))
        made[-1][...] = memory
    return made


def run(case: Case, operands: Operands, seed: int = 0, **faults: Any) -> list[np.ndarray]:
    variant, r = VARIANTS[case.variant], case.region
    assert variant.supported(r, H200) is None
    (launch,) = variant.build(r, H200)
    results = [np.full(t.nbytes, 255, np.uint8).view(t.dtype.numpy).reshape(t.shape) for t in r.results]
    Machine(launch, r, **faults)(shifted(case, operands), results, seed)
    return results


def check(case: Case) -> None:
    seed = fresh_seed()
    operands = operands_for(case, seed)
    assert_close(case, run(case, operands, seed), reference(case, operands.arrays))


def case_of(tile: str, r: RegionSpec) -> Case:
    variant = f"cuda.gemm_mma.v1[{tile}]"
    return Case(variant, r, TF32S.get(variant) or HALVES[r.operands[0].dtype])


def of(*sizes: int, dtype: DType = f16, **more: Any) -> RegionSpec:
    return gemm(*sizes, dtype=dtype, **({"precision": Precision.tf32} if dtype is f32 else {}), **more)


def strided(dtype: DType = f16) -> RegionSpec:
    """a with nothing contiguous, b with rows further apart than they are long."""
    r = region("gemm", desc((20, 24), dtype, (50, 2)), desc((24, 40), dtype, (44, 1)), None, None)
    return r if dtype is f16 else dataclasses.replace(r, ops=of(20, 40, 24, dtype=dtype).ops)


def batched() -> RegionSpec:
    return region("gemm", desc((2, 20, 24), f16), desc((2, 24, 40), f16, (1000, 40, 1)), None, None)


SMALL = [
    # copies of 16 bytes, of both orders; tiles that hang over both edges and the end of k
    case_of("32x32", of(40, 24, 72)),
    case_of("32x32", of(40, 24, 136, trans_a=True, trans_b=True, dtype=bf16)),
    case_of("64x64", of(72, 80, 168, trans_b=True)),
    # of 8, of 4, and by numbers
    case_of("64x64", of(36, 52, 76, trans_a=True)),
    case_of("64x64", of(38, 54, 70, trans_b=True, dtype=bf16)),
    case_of("64x64", of(37, 53, 75)),
    case_of("32x32", of(37, 53, 29, trans_a=True, trans_b=True, alignment=2)),
    case_of("32x32", strided()),
    case_of("32x32", batched()),
    # nothing to sum, and one of everything
    case_of("32x32", of(5, 6, 0)),
    case_of("32x32", of(1, 1, 1)),
    # f32: ldmatrix where k is contiguous, numbers where lines are
    case_of("64x64 tf32", of(37, 52, 44, dtype=f32)),
    case_of("64x64 tf32", of(36, 53, 75, dtype=f32, trans_a=True, trans_b=True)),
    case_of("64x64 tf32x3", of(36, 53, 75, dtype=f32)),
    case_of("64x64 tf32x3", strided(f32)),
    # by two products of k = 8, and through registers
    case_of("64x64 turing", of(72, 80, 168, trans_b=True)),
    case_of("64x64 turing", of(36, 54, 72, trans_a=True)),
    case_of("64x64 turing", of(37, 53, 75)),
    case_of("64x64 turing", residual(Product(36, 40, 24, f16))),
    # what follows
    case_of("32x32", residual(Product(36, 40, 24, f16))),
    case_of("32x32", own(Product(37, 41, 24, bf16))),
]  # fmt: skip
LARGE = [
    case_of(VARIANTS[v].config, of(140, 268, k, dtype=t, trans_a=a, trans_b=b))
    for v in (*MMAS, *TF32S) for a, b, k in ((False, False, 104), (True, False, 204), (False, True, 98), (True, True, 40))
    for t in ((f32,) if v in TF32S else halves_of(v))
]  # fmt: skip
LARGE += [case_of("64x64", then(Product(132, 136, 72, f16))) for then in (dropped, spread, own)]


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "D10", "F2")
@pytest.mark.parametrize("case", [*SMALL, *LARGE] if EVERYTHING else SMALL[::2], ids=str)
def test_agrees_with_numpy(case):
    check(case)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D10")
@pytest.mark.parametrize("tile", ["128x128", "128x128 tf32"])
def test_one_of_the_large_tiles_agrees_with_numpy(tile):
    """Another one each time."""
    dtype = f32 if "tf32" in tile else f16
    check(case_of(tile, of(70, 136, 72, dtype=dtype, trans_b=bool(fresh_seed() % 2))))


@pytest.mark.sample(1, pool="on the model")
def test_three_products_are_as_exact_as_f32():
    """Though tensor cores cut off what they sum: of positive numbers, all of it on the same side."""
    case = case_of("64x64 tf32x3", of(33, 34, 96, dtype=f32))
    operands = operands_for(case, fresh_seed())
    for array in operands.arrays[:2]:
        np.abs(array, out=array)
    (got,), (want,) = run(case, operands), reference(case, operands.arrays)
    error = (got - want) / want
    assert -4e-7 < error.mean() < 1e-7 and np.abs(error).max() < 1e-6


@pytest.mark.sample(1, pool="on the model")
def test_special_values_stay_in_their_row():
    """Of a, a NaN; of b, an infinity: they come out where they went in, and padding brings none."""
    case = case_of("32x32", of(37, 41, 30))
    operands = operands_for(case, fresh_seed())
    operands.arrays[0][3, 5], operands.arrays[1][7, 40] = np.nan, np.inf
    (got,), (want,) = run(case, operands), reference(case, operands.arrays)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


def test_tf32_rounds_to_nearest():
    words = [0x3F800FFF, 0x3F801000, 0x3F802FFF, 0xBF801000, 0x7F800000, 0x7FC00000]
    assert [rounded(w) for w in words] == [
        0x3F800000,
        0x3F802000,
        0x3F802000,
        0xBF802000,
        0x7F800000,
        0x7FC00000,
    ]


# --- what the machine finds -------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("tile, r, faults", [
    ("32x32", of(24, 24, 200), None),
    ("32x32", of(23, 23, 200), None),
    ("64x64 turing", of(24, 24, 200), None),
    ("32x32", of(24, 24, 200), {"wait_group 2": "wait_group 3"}),
    ("32x32", of(24, 24, 200), {"wait_group 0": "wait_group 1"}),
    ("32x32", of(24, 24, 200), {".trans": ""}),
], ids=["no barriers", "no barriers, by numbers", "no barriers, through registers", "waits too little", "leaves early", "no transpose"])  # fmt: skip
def test_broken_kernels_fail(tile, r, faults):
    """Without barriers, or a stage too many on its way, numbers would still come out right most of the time."""
    case = case_of(tile, r)
    operands = operands_for(case, fresh_seed())
    with pytest.raises((Wrong, AssertionError)):
        assert_close(
            case, run(case, operands, faults=faults, barriers=bool(faults)), reference(case, operands.arrays)
        )
