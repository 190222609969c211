"""Where the tensor-core kernel puts its numbers, on a machine without one: its address arithmetic, run thread by thread, with
ldmatrix and mma done as the PTX manual says they are."""

from __future__ import annotations

import numpy as np
import pytest

from aicf.cuda_kernels.bodies.gemm_mma import (
    DEPTH,
    Fragments,
    Stored,
    Warps,
    copier,
    element_of,
    held_of,
    lane_of,
    sums_of,
)

LANES = range(32)


def bring(matrix: np.ndarray, stored: Stored, threads: int, line0: int, k0: int) -> np.ndarray:
    """One slice of a matrix (lines x k) as the block's threads copy it; what nobody writes is NaN."""
    shared = np.full(stored.halves, np.nan)
    memory = (matrix.T if stored.lines_fast else matrix).reshape(-1)
    lines, depths = matrix.shape
    line_step, k_step = (1, lines) if stored.lines_fast else (depths, 1)
    first, copy = copier(stored, threads)
    count, apart, place, itemsize = copy.args
    for thread in range(threads):
        line, depth = first.args[0](thread)
        at = (line0 + line) * line_step + (k0 + depth) * k_step
        to = line * stored.line_bytes + depth * stored.depth_bytes
        for i in range(count):
            start = place(i, (at, lines - line0 - line, depths - k0 - depth, line_step, k_step))
            target = (to + i * apart) // itemsize
            assert (to + i * apart) % 16 == 0 and np.isnan(shared[target : target + 8]).all()
            shared[target : target + 8] = memory[start : start + 8] if start >= 0 else 0
    return shared


def ldmatrix(shared: np.ndarray, addresses: list[int], transposed: bool) -> np.ndarray:
    """(lane, register, half): thread 8 j + i gives the address of row i of matrix j."""
    got = np.empty((32, 4, 2))
    for j in range(4):
        rows = [addresses[8 * j + i] for i in range(8)]
        assert len({a % 128 // 16 for a in rows}) == 8, "each row in banks of its own"
        matrix = np.stack([shared[a // 2 : a // 2 + 8] for a in rows])
        matrix = matrix.T if transposed else matrix
        for lane in LANES:
            got[lane, j] = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
    return got


def mma(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(lane, accumulator) of m16n8k16, from (lane, 4, 2) of a and (lane, 2, 2) of b."""
    left, right = np.empty((16, 16)), np.empty((16, 8))
    for lane in LANES:
        group, pair = lane // 4, lane % 4 * 2
        for register in range(4):
            row, column = group + register % 2 * 8, pair + register // 2 * 8
            left[row, column : column + 2] = a[lane, register]
        for register in range(2):
            right[pair + register * 8 : pair + register * 8 + 2, group] = b[lane, register]
    product = left @ right
    return np.stack(
        [[product[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] for i in range(4)] for lane in LANES]
    )


def block(a: np.ndarray, b: np.ndarray, tile: tuple[int, int], warps: tuple[int, int], fast: tuple[bool, bool],
          row0: int, column0: int) -> np.ndarray:  # fmt: skip
    """The tile of a @ b.T that a block computes; a is (m, k), b is (n, k)."""
    threads, part = 32 * warps[0] * warps[1], (tile[0] // warps[0], tile[1] // warps[1])
    stored = [Stored(lines, f) for lines, f in zip(tile, fast)]
    fragments = [Fragments(s, lines // 16, s is stored[0]) for s, lines in zip(stored, part)]
    columns, result = part[1] // 8, np.zeros(tile)
    for k0 in range(0, a.shape[1], DEPTH):
        shared = [bring(x, s, threads, at, k0) for x, s, at in zip((a, b), stored, (row0, column0))]
        for warp in range(warps[0] * warps[1]):
            corner = warp // warps[1] * part[0], warp % warps[1] * part[1]
            base = []
            for f, line0 in zip(fragments, corner):
                rows = [lane_of(f).args[0](lane) for lane in LANES]
                base.append([(line0 + r) * f.stored.line_bytes + k * f.stored.depth_bytes for r, k in rows])
            for step in range(DEPTH // 16):
                left, right = (
                    [ldmatrix(memory, [x + place for x in at], f.stored.lines_fast) for place in f.places[step]]
                    for memory, f, at in zip(shared, fragments, base)
                )  # fmt: skip
                for r in range(part[0] // 16):
                    for c in range(columns):
                        half = 2 * (c % 2)
                        made = mma(left[r], right[c // 2][:, half : half + 2])
                        for lane in LANES:
                            for i in range(4):
                                x, y = element_of(columns).args[0](4 * (r * columns + c) + i, lane)
                                result[corner[0] + x, corner[1] + y] += made[lane, i]
    return result


@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("tile, warps", [((32, 32), (2, 2)), ((64, 64), (2, 2)), ((128, 128), (2, 4))])
@pytest.mark.parametrize("fast", [(False, False), (False, True), (True, False), (True, True)])
def test_every_number_goes_where_it_belongs(tile, warps, fast):
    """A whole tile, and one that hangs over two edges and the end of k."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(tile[0] + 16, 40)), rng.normal(size=(tile[1] + 24, 40))
    product = a @ b.T
    for row0, column0 in ((0, 0), tile):
        want = np.zeros(tile)
        inside = product[row0 : row0 + tile[0], column0 : column0 + tile[1]]
        want[: inside.shape[0], : inside.shape[1]] = inside
        np.testing.assert_allclose(block(a, b, tile, warps, fast, row0, column0), want, atol=1e-9)


@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize("m, n, down, across", [(32, 32, 2, 2), (64, 64, 2, 2), (128, 128, 2, 4)])
def test_sums_of_columns_meet_those_of_the_other_rows(m, n, down, across):
    """Every element of a tile once, in the sum of its column; every sum in a place of its own."""
    warps = Warps(m, n, down, across, 1)
    held, warp_m, warp_n = held_of(warps), m // down, n // across
    place, at = element_of(warp_n // 8).args[0], sums_of(warps).args[0]
    tile = np.random.default_rng().normal(size=(m, n))
    shared, met = np.full(held.lines * n, np.nan), np.zeros((m, n), int)
    for thread in range(warps.threads):
        lane, warp = thread % 32, thread // 32
        sums = np.zeros(max(held.columns) + 1)
        for i, own in enumerate(held.columns):
            row, column = place(i, lane)
            row, column = row + warp // across * warp_m, column + warp % across * warp_n
            sums[own] += tile[row, column]
            met[row, column] += 1
        for own, total in enumerate(sums):
            to = at(thread) + own // held.width * held.apart + own % held.width
            assert np.isnan(shared[to])
            shared[to] = total
    assert (met == 1).all()
    np.testing.assert_allclose(
        shared.reshape(held.lines, n).sum(axis=0), tile.sum(axis=0), rtol=0, atol=1e-12
    )
    assert (
        shared.size <= 2 * min(Stored(m, fast).halves for fast in (False, True)) // 2
    )  # 32-bit words of two slices of a
