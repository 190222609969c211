"""How results of a Hopper kernel leave: the epilogue, and whether they go through shared memory; the device's half is wgmma_store.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...registry.variant import In, Num, Out, TensorMap
from ...rows import RegionSpec
from ...rows.program import Map
from ...types import TensorDesc, bf16, f16, f32
from ..hopper.units import ATOM, TMA_ALIGNMENT, WARPS
from . import problem
from .schedule import split_k as gemm_split
from .wgmma_tiling import EIGHT, MOST_WORDS, OF_C, WgmmaTiling

BOX_LOADS = 4  # of a map whose results are stored in boxes: four pairs are computed at once, and their operands take registers
MOST_BOXES = 3  # results that are stored in boxes, and operands that are loaded so
SHORTENED = frozenset(
    {"tanh", "erfc", "logistic", "logistic2"}
)  # functions that are others in boxes: tiles/pairs.py
SPARE, THIRD = 96, 32  # registers beside accumulators that it takes to do so, and that a third result takes


@dataclass(frozen=True)
class GemmResults:
    """What a kernel computes from accumulators, and how it stores that.

    finish    the epilogue
    operands  its arguments: c, operands of the map, strides, results, where sums of columns go
    scales    alpha and beta
    staged    how many results are stored by way of shared memory, or operands loaded; see `staged`
    sources   operands that TMA loads: their positions, or OF_C
    lines     the one that is staged is stored by warps, not by TMA
    maps      of results that TMA stores, then of `sources`, then of the results of narrow tiles
    storing   `storing(tiling, epilogue)`: what stores results in the place of the GEMM's
    """

    finish: Any
    operands: tuple[Any, ...]
    scales: tuple[Num, ...]
    staged: int = 0
    sources: tuple[int, ...] = ()
    lines: bool = False
    maps: tuple[TensorMap, ...] = ()
    storing: Callable[..., Any] | None = None


def partial_sums(region: RegionSpec) -> GemmResults:
    """Of splits of k: sums as they are, in the workspace."""
    finish = replace(gemm_split.raw(region, 2), scaled=False)
    return GemmResults(finish, gemm_split.PARTIAL, gemm_split.UNSCALED)


def direct_results(tiling: WgmmaTiling, region: RegionSpec) -> GemmResults:
    """Of a region, stored by each thread for itself."""
    _, _, operands, *_, scales = problem.arguments(region, tiling.rows, WARPS)
    finish = problem.epilogue(region, 2, tiling.rows, WARPS)
    if scales[0] == Num(1.0, f32):
        finish = replace(finish, scaled=False)
    return GemmResults(finish, operands, scales)


def results_of(tiling: WgmmaTiling, region: RegionSpec, narrow_tiles: int = 0) -> GemmResults:
    """Of a region, by way of shared memory if they can. narrow_tiles: in each row of tiles, of a tiling of two widths."""
    found, boxes = direct_results(tiling, region), staged(tiling, region)
    if boxes == 0 or in_lines(region):
        return replace(found, staged=boxes, lines=boxes > 0)
    sources = tma_sources(region)
    maps = _box_maps(region, sources)
    if tiling.narrow_n:
        maps += _narrow_maps(region, tiling.narrow_n, narrow_tiles)
    return replace(found, staged=boxes, sources=sources, maps=tuple(maps))


def _box_maps(region: RegionSpec, tma_sources: tuple[int, ...]) -> list[TensorMap]:
    """Of results, 64 x 64 at a time, and of operands that are loaded like that."""
    p, after = problem.read(region)
    maps = []
    for _, result in after.stores:
        dtype = region.results[result].dtype
        row, count = p.n * dtype.itemsize, (p.count,) * bool(p.batch)
        pitches, box = (row, *(p.m * row for _ in count)), (ATOM, 64, *(1 for _ in count))
        maps.append(TensorMap(Out(result), dtype, (p.n, p.m, *count), pitches, box))
    for position in tma_sources:
        of_c = position == OF_C
        index, steps = (
            (p.c, p.c_steps) if of_c else (after.loads[position].operand, after.loads[position].strides)
        )
        assert index is not None
        dtype = region.operands[index].dtype
        maps.append(TensorMap(In(index), dtype, (p.n, p.m), steps[-2] * dtype.itemsize, (ATOM, 64)))
    return maps


def _narrow_maps(region: RegionSpec, columns: int, count: int) -> list[TensorMap]:
    """Of the results' left part: of each row so many narrow tiles of so many columns."""
    p, after = problem.read(region)
    maps = []
    for _, result in after.stores:
        dtype = region.results[result].dtype
        extents, pitches = (columns, max(1, count), p.m), (columns * dtype.itemsize, p.n * dtype.itemsize)
        maps.append(TensorMap(Out(result), dtype, extents, pitches, (ATOM, 1, 64)))
    return maps


# --- which way ---------------------------------------------------------------------------------------------------------


def staged(tiling: WgmmaTiling, region: RegionSpec) -> int:
    """How many results are stored a box at a time, or operands loaded: all, if they can and there are registers for it, or none. What
    computes with indices, as dropout does, takes them; and two blocks of rows leave fewer registers, since what they share is kept."""
    stores = problem.epilogue_statistics(region).stores
    tight = tiling.row_blocks > 1 or tiling.spare < SPARE + THIRD * (stores > 2)
    if in_lines(region):
        p, after = problem.read(region)
        loads = len(after.loads) + (p.c is not None)
        fit = _unaligned_columns(region) <= MOST_WORDS * EIGHT // tiling.columns
    else:
        loads, fit = _loads(region), True
    if tiling.columns % ATOM or loads > (1 if tight else BOX_LOADS) or not fit:
        return 0
    return 1 if in_lines(region) else max(stores, len(tma_sources(region)))


@lru_cache(maxsize=256)
def in_lines(region: RegionSpec) -> bool:
    """Whether its result, if staged, is stored by warps in whole lines, since TMA can't: one of halves, whose rows are not 16-byte aligned. Its
    map reads pairs, as in boxes; of what is not aligned to them, one number for a row, or halves by column that are
    preloaded. No function is another one: results have the bits that they have in runs."""
    p, after = problem.read(region)
    if len(after.stores) != 1 or after.core_input is not None or p.dtype.kind == "int":
        return False
    result = region.results[after.stores[0][1]]
    by_tma = result.alignment >= TMA_ALIGNMENT and p.n * result.dtype.itemsize % TMA_ALIGNMENT == 0
    if result.dtype not in (f16, bf16) or by_tma or (_shortened(after) and not region.invariant):
        return False
    if any(load.operand is None for load in after.loads):
        return False
    return problem.in_runs(region, 2) or (p.c is None and _unaligned_columns(region) >= 0)


@lru_cache(maxsize=256)
def _unaligned_columns(region: RegionSpec) -> int:
    """Loads by column of halves, where pairs are not aligned, so that all have to be preloaded; less than 0 if others walk along columns."""
    if problem.in_runs(region, 2):
        return 0
    _, after = problem.read(region)
    walking = [load for load in after.loads if load.strides[-1] != 0]
    if any(load.strides[-2:] != (0, 1) or load.dtype not in (f16, bf16) for load in walking):
        return -1
    return len(walking)


def _shortened(after: Map) -> bool:
    """Whether it calls what is another function in boxes: strict takes the same wherever an op runs, and so do invariant rows, whose
    maps have these functions everywhere."""
    return any(
        not SHORTENED.isdisjoint(function.__code__.co_names) for function, *_ in after.expression.steps
    )


@lru_cache(maxsize=256)
def _loads(region: RegionSpec) -> int:
    """By threads, of an epilogue whose results may be stored in boxes, and what takes as many registers: sums of columns, and a third
    result; more than any may have, if they may not."""
    p, after = problem.read(region)
    results = [region.results[position] for _, position in after.stores]
    may = (
        1 <= len(results) <= MOST_BOXES
        and all(r.dtype in (f16, bf16) and r.alignment >= TMA_ALIGNMENT for r in results)
        and p.n * f16.itemsize % TMA_ALIGNMENT == 0
        and problem.in_runs(region, 2)
        and all(load.operand is not None for load in after.loads)
        and not (region.one_sum and _shortened(after))
    )
    more = (after.core_input is not None) + (len(results) > 2)
    taken = len(after.loads) + (p.c is not None) - len(tma_sources(region)) + more
    return taken if may else BOX_LOADS + 1


@lru_cache(maxsize=256)
def tma_sources(region: RegionSpec) -> tuple[int, ...]:
    """Loads that may be of boxes, where results are stored so: of halves, as many as the results' elements, in 16-byte aligned rows
    one after the other. Their positions, or OF_C."""
    p, after = problem.read(region)
    found = []
    if p.c is not None and _boxed(region.operands[p.c], p.n, p.c_steps):
        found.append(OF_C)
    for position, load in enumerate(after.loads):
        if load.operand is None or load.offset:
            continue
        if _boxed(region.operands[load.operand], p.n, load.strides):
            found.append(position)
    return tuple(found[:MOST_BOXES])


def _boxed(operand: TensorDesc, n: int, strides: tuple[int, ...]) -> bool:
    *batch, row, column = strides
    apart = row * operand.dtype.itemsize
    return (
        operand.dtype in (f16, bf16) and operand.alignment >= TMA_ALIGNMENT and not batch
        and column == 1 and row >= n and apart % TMA_ALIGNMENT == 0
    )  # fmt: skip
