"""What a Hopper GEMM of logits makes of its accumulators for linear_cross_entropy, in the place of results.

Of the loss: of each row of a tile the maximum and the sum of exponentials, a few floats for each tile; no logit is stored, but for the
one of the row's label. Of the gradient: the logits' gradient, in halves, stored in boxes as any result is.

Powers are of two: exp(x - peak) is exp2(x * LOG2E - shift), with one fused multiply-add, and shifts are what is kept of maxima.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rows.program import Expression
from ...types import DType, f32
from ..dsl import cuda, device, float32, int32, uint32
from ..hopper.units import ATOM, WARPS
from ..ptx import approximate, larger, opaque, pack_halves, store_matrices
from ..tiles.layout import Layout
from ..tiles.register_tile import accumulate_rows, join_rows, map_tile
from ..tiles.tile import each, get_run
from .epilogue import Epilogue
from .wgmma_store import SUBTILE, Filling, boxes_of_results
from .wgmma_tiling import WgmmaTiling

LOG2E = np.float32(math.log2(math.e))
NOTHING = np.float32(-math.inf)  # the maximum of no logits, or of such
LOGITS = Expression("logits", (), (f32,), frozenset(), 1, (0,))
NO_LABEL = -1


@dataclass(frozen=True)
class RowStatistics(Epilogue):
    """Of a tile's rows: see `statistics_of_rows`. summed: whether logits are added up, too."""

    summed: bool = False

    def __str__(self) -> str:
        return f"_{self.dtype}_row_statistics" + "_summed" * self.summed

    @classmethod
    def of(cls, dtype: DType, summed: bool) -> RowStatistics:
        return cls(LOGITS, dtype, dtype, None, (), (), scaled=False, summed=summed)


@dataclass(frozen=True)
class LogitsGradient(Epilogue):
    """See `gradient_matrices`."""

    def __str__(self) -> str:
        return f"_{self.dtype}_logits_gradient"

    @classmethod
    def of(cls, dtype: DType) -> LogitsGradient:
        return cls(LOGITS, dtype, dtype, None, (), (dtype,), scaled=False)


def store_gradient(tiling: WgmmaTiling, epilogue: LogitsGradient) -> tuple[Any, Any, Any]:
    """(`ask`, `write`, `done`), as wgmma_store.py has them: in boxes."""
    nothing = device(lambda tile_coord, member, n, operands: ())
    filling = Filling(SUBTILE, gradient_matrices(epilogue.dtype), nothing, 0, False)
    return boxes_of_results(tiling, epilogue, 1, (), filling)


def each_row(count: int, rows: tuple[int, ...], fn: Callable[..., None]) -> Any:
    """`run(a, b, env)`: fn(rows[j], a[j], b[j], env) of two vectors of `count` numbers."""
    if count == 0:
        return device(lambda a, b, env: None)
    j, row, do, before = count - 1, rows[count - 1], device(fn), each_row(count - 1, rows, fn)

    def run(a, b, env):
        before(a, b, env)
        do(int32(row), a[j], b[j], env)

    return device(run)


def labels_of_rows(layout: Layout) -> Any:
    """`load(labels, first, m, n)`: the classes of a thread's rows, from its first one on, as i32: NO_LABEL where there is none of n."""

    def load_one(labels, row, m, n):
        if row < m:
            label = np.int64(labels[row])
            if label >= 0 and label < n:
                return int32(label)
        return int32(NO_LABEL)

    load = device(load_one)

    def rows_to(j: int) -> Any:
        row = layout.own_rows[j]
        if j == 0:
            return device(lambda labels, first, m, n: (load(labels, first, m, n),))
        others = rows_to(j - 1)
        return device(
            lambda labels, first, m, n: (
                others(labels, first, m, n) + (load(labels, int32(first + row), m, n),)
            )
        )

    return rows_to(len(layout.own_rows) - 1)


def statistics_of_rows(tiling: WgmmaTiling, epilogue: RowStatistics) -> tuple[Any, Any, Any]:
    """Of logits l in tile t and row i, columns that there are: shifts[t, i] = max(l) * LOG2E, totals[t, i] = sum(exp2(l * LOG2E - shift)),
    sums[t, i] = sum(l) if they are asked for; and picked[i] = l at the row's label, by the one thread that has it.

    A row of -Inf has the shift -Inf and a total of 0; one with an Inf or a NaN, a total of NaN. operands: (labels, shifts, totals, picked,
    sums or what is not read, origin).
    """
    layout, wide = Layout(tiling.rows, tiling.columns, warps=WARPS), tiling.columns
    place_of, load_labels = layout.place(), labels_of_rows(layout)
    rows, pick, summed = len(layout.own_rows), picker(layout), epilogue.summed
    within, at_edge = (weigher(layout, edge, summed) for edge in (False, True))

    def keep_two(row, shift, total, env):
        first, m, at, shifts, totals = env
        if first + row < m:
            shifts[at + row] = shift
            totals[at + row] = total

    def keep_one(row, total, same, env):
        first, m, at, sums = env
        if first + row < m:
            sums[at + row] = total

    keep, keep_sums = each_row(rows, layout.own_rows, keep_two), each_row(rows, layout.own_rows, keep_one)

    def ask(base, maps, group, member, tile_coord, sizes, operands):
        row = place_of(0, member >> 5, member & 31)[0]
        return load_labels(operands[0], int32(tile_coord[0] + row), sizes[0], sizes[1])

    def write(acc, words, base, maps, group, member, tile_coord, sizes, scales, operands, parity):
        _, shifts, totals, picked, sums, _ = operands
        m, n, lane = sizes[0], sizes[1], int32(member & 31)
        row, across = place_of(0, member >> 5, lane)
        first, column = int32(tile_coord[0] + row), int32(tile_coord[1] + across)
        at = np.int64(tile_coord[1] // wide) * m + first
        pick(acc, words, (first, column, picked))
        if tile_coord[1] + wide > n:
            shift, total, added = at_edge(acc, int32(n - column))
        else:
            shift, total, added = within(acc, int32(0))
        if lane & 3 == 0:
            keep(shift, total, (first, m, at, shifts, totals))
            if summed:
                keep_sums(added, added, (first, m, at, sums))

    return device(ask), device(write), device(lambda member: None)


def weigher(layout: Layout, edge: bool, summed: bool) -> Any:
    """`weigh(tile, end)`: (shifts, totals, sums, if they are asked for) of a thread's rows, over the four lanes that have them; at an edge of
    the columns before end: what lies outside is anything."""
    rows = len(layout.own_rows)
    power, most = approximate("exp2"), larger()
    lowest, zeros = (NOTHING,) * rows, (np.float32(0),) * rows

    def greatest(state, x, y, column, end):
        if edge and column >= end:
            return state
        return most(state, x)

    def weigh_one(state, x, shift, column, end):
        if edge and column >= end:
            return state
        return state + power(cuda.fma(x, LOG2E, -shift))

    def add_one(state, x, y, column, end):
        if edge and column >= end:
            return state
        return state + x

    peaks, totals, sums = (accumulate_rows(layout, fn) for fn in (greatest, weigh_one, add_one))
    join_peaks = join_rows(layout, lambda x, y: most(x, y))
    join_sums = join_rows(layout, lambda x, y: x + y)
    shift_of = map_tile(rows, lambda x, env: x * LOG2E)
    finite = map_tile(rows, lambda x, env: float32(0) if x == NOTHING else x)

    def weigh(tile, end):
        added = zeros
        if summed:
            added = join_sums(sums(tile, zeros, zeros, end))
        shifts = shift_of(join_peaks(peaks(tile, lowest, lowest, end)), ())
        return shifts, join_sums(totals(tile, finite(shifts, ()), zeros, end)), added

    return device(weigh)


def picker(layout: Layout) -> Any:
    """`pick(tile, labels, (first, column, picked))`: the logit of each row's label, if this thread has it. Few tiles have one: of all
    numbers, one is chosen by comparisons behind a branch."""
    rows, wide = len(layout.own_rows), layout.columns
    zeros = (np.float32(0),) * rows
    choose = accumulate_rows(layout, lambda state, x, want, column, env: x if want == column else state)
    want_of = map_tile(rows, lambda label, column: int32(label - column))
    has = device(lambda want: want >= 0 and want < wide and want & 7 < 2)

    def any_to(j: int) -> Any:
        if j == 0:
            return device(lambda wants: has(wants[0]))
        before = any_to(j - 1)
        return device(lambda wants: before(wants) or has(wants[j]))

    def keep_one(row, logit, want, env):
        first, picked = env
        if has(want):
            picked[first + row] = logit

    has_any, keep = any_to(rows - 1), each_row(rows, layout.own_rows, keep_one)

    def pick(tile, labels, env):
        first, column, picked = env
        wants = want_of(labels, column)
        if has_any(wants):
            keep(choose(tile, wants, zeros, ()), wants, (first, picked))

    return device(pick)


def gradient_matrices(dtype: DType) -> Any:
    """`put(run, (at, member, row, column, sizes, scales, operands))`: of 64 x 64 logits l their gradient, exp2(l * LOG2E - shift) * factor
    less `at_label` at the row's label and `other` elsewhere, as `matrices` of wgmma_store.py puts results.

    sizes     m, n, k, and which class the first column is
    operands  ((shift, factor, other, at_label) of each row, its label as i32, origin)
    """
    power, halves, store, load = approximate("exp2"), pack_halves(dtype), store_matrices(), get_run(f32, 4)
    place_of, apart = Layout(64, ATOM, warps=WARPS).place(), opaque()

    def one(x, of_row, want, column):
        target = of_row[3] if want == column else of_row[2]
        return cuda.fma(power(cuda.fma(x, LOG2E, -of_row[0])), of_row[1], -target)

    slope = device(one)

    def put_sixteen(i, run, env):
        place, upper, lower, up, low = env
        j, q = i // 8, i * 2
        store(
            uint32(place ^ uint32(j * 32)),
            halves(slope(run[0], upper, up, q), slope(run[1], upper, up, q + 1)),
            halves(slope(run[2], lower, low, q), slope(run[3], lower, low, q + 1)),
            halves(slope(run[4], upper, up, q + 8), slope(run[5], upper, up, q + 9)),
            halves(slope(run[6], lower, low, q + 8), slope(run[7], lower, low, q + 9)),
        )

    put_all = each(SUBTILE, 8, put_sixteen)

    def put(run, env):
        at, member, first_row, column, sizes, _, operands = env
        numbers, labels, _ = operands
        member = apart(member)
        lane, x = member & 31, (member >> 5) * 16 + (member & 15)
        row, across = place_of(0, member >> 5, lane)
        r, last = int32(first_row + row), int32(sizes[0] - 1)
        upper, lower = min(r, last), min(int32(r + 8), last)
        start = int32(sizes[3] + column + across)
        place = uint32(at + uint32(x * 2 * ATOM + ((lane >> 4) ^ (lane & 7)) * 16))
        rows = load(numbers, np.int64(upper) * 4), load(numbers, np.int64(lower) * 4)
        put_all(run, (place, *rows, int32(labels[upper] - start), int32(labels[lower] - start)))

    return device(put)
