"""A variant for maps one of whose operands lies across: what transposes, by tiles in shared memory."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...ops.schema import MAP
from ...registry.cost import Cost, machine, roofline
from ...registry.variant import Checks, In, Launch, Num, Reject, alone, at_least, at_most, cdiv, variant
from ...rows import RegionSpec
from ...rows.program import Expression, Load, Map
from ...types import row_major
from .elementwise import (
    MAX_RANK,
    THREADS,
    TYPES,
    _map,
    _refusal,
    collapsed,
    least,
    load_types,
    map_constants,
    pointers,
    store_types,
    walked,
)

TILE = 64  # elements of a tile's side
PASSES = TILE * TILE // THREADS  # elements of a thread: its other loads wait for the stores before them
SHORT = 16  # the least side that is worth tiles
BLOCKS = 4  # on a multiprocessor, by registers
TILE_FLOPS = (
    80  # of an element: its way through shared memory; an H200 does 0.39 elements of any type in a picosecond
)
GRID = 2**31 - 1


class Across(NamedTuple):
    """slot   of the load that lies across
    axis   of the collapsed domain along which its elements are neighbours
    shape, strides   the collapsed domain, and how each load walks it
    """

    slot: int
    axis: int
    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def _across(region: RegionSpec) -> Across | Reject:
    """The one load that lies across, or why there is not one."""
    if (refused := _refusal(region)) is not None:
        return refused
    m = _map(region)
    shape, strides = collapsed(m)
    found = [
        slot for slot, (load, steps) in enumerate(zip(m.loads, strides))
        if load.operand is not None and shape and steps[-1] not in (0, 1)
    ]  # fmt: skip
    if len(found) != 1:
        return Reject("access", f"{len(found)} operands are read across the results' rows, needs one")
    (slot,) = found
    axes = [axis for axis, step in enumerate(strides[slot][:-1]) if step == 1]
    if not axes:
        return Reject("access", f"operand {m.loads[slot].operand} has no neighbours along any axis")
    return Across(slot, axes[0], shape, tuple(strides))


def _accepted(region: RegionSpec) -> Across:
    found = _across(region)
    assert not isinstance(found, Reject)
    return found


def _first(expr: Expression, slot: int) -> Expression:
    """The same, with that argument before the others, as a kernel hands over a number of its own."""

    def moved(s: int) -> int:
        return 0 if s == slot else s + 1 if s < slot else s

    count, dtypes = expr.arguments, expr.dtypes
    order = [slot, *(s for s in range(count) if s != slot), *range(count, len(dtypes))]
    return replace(
        expr,
        steps=tuple((f, tuple(map(moved, ins)), tuple(map(moved, outs))) for f, ins, outs in expr.steps),
        dtypes=tuple(dtypes[s] for s in order),
        rounded=frozenset(map(moved, expr.rounded)),
        results=tuple(map(moved, expr.results)),
    )


def _others(m: Map, slot: int) -> Map:
    return replace(m, loads=tuple(load for s, load in enumerate(m.loads) if s != slot))


@variant(MAP, id="cuda.elementwise_transposed.v1", takes=(MAP,), dtypes=TYPES)
class ElementwiseTransposed:
    """Tiles of 64 x 64: what lies across the results' rows is read along its own rows into shared memory, and from there along
    theirs, so that loads and stores both coalesce. All other operands as elementwise_strided reads them. Any dtype.

    Parallel over tiles. Bytes: each operand read once, each result written once. Limit: memory, and for halves the way through shared
    memory, element by element.
    """

    numerics = alone

    def accepts(region: RegionSpec) -> Checks:
        found = _across(region)
        if isinstance(found, Reject):
            yield found
            return
        yield at_most("rank after collapsing", len(found.shape), MAX_RANK)
        yield at_least("rows of a tile", found.shape[found.axis], SHORT)
        yield at_least("columns of a tile", found.shape[-1], SHORT)
        yield at_least("tiles", _tiles(found), 1)
        yield at_most("tiles", _tiles(found), GRID)
        if any(abs(size) >= 2**31 for size in found.shape):
            yield Reject("sizes", "an axis has more elements than 32 bits count")

    least = least

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        m, found = _map(region), _accepted(region)
        tiles, moving = (
            _tiles(found),
            sum(any(s) for slot, s in enumerate(found.strides) if slot != found.slot),
        )
        flops = (
            m.flops
            + (TILE_FLOPS + map_constants(device).division_flops * len(m.loads) / 4) * tiles * TILE * TILE
        )
        return roofline(
            device, bytes=region.nbytes, flops=flops, efficiency=map_constants(device).efficiency, memory_efficiency=map_constants(device).scalar_access,
            blocks=tiles, blocks_per_sm=BLOCKS,
            chain=machine(device).trip_us * (PASSES if moving else 1),
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .transposed_body import transposed

        m, found = _map(region), _accepted(region)
        rest, source = _others(m, found.slot), m.loads[found.slot]
        strides = [s for slot, s in enumerate(found.strides) if slot != found.slot]
        dense = Load(0, source.dtype, row_major(found.shape))
        walks, given = walked([*rest.loads, dense], [*strides, row_major(found.shape)])
        origin, origin_given = walked([source], [found.strides[found.slot]])
        body = transposed(
            _first(m.expression, found.slot), source.dtype, load_types(rest), store_types(m), walks, origin,
            len(found.shape), found.axis, TILE, THREADS,
        )  # fmt: skip
        ins, outs = pointers(rest)
        assert source.operand is not None
        rows, columns = (cdiv(found.shape[d], TILE) for d in (found.axis, -1))
        args = (
            ins, outs, In(source.operand), tuple(map(Num, found.shape)), given, origin_given, Num(found.strides[found.slot][-1]), Num(rows),
            Num(columns),
        )  # fmt: skip
        return [Launch(body, (_tiles(found),), (THREADS,), args)]


def _tiles(found: Across) -> int:
    count = 1
    for d, size in enumerate(found.shape):
        count *= cdiv(size, TILE) if d in (found.axis, len(found.shape) - 1) else size
    return count
