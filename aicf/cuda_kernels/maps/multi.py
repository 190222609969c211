"""Variants for ops side by side, such as the optimizer's steps, in one launch."""

from __future__ import annotations

import functools
from itertools import accumulate
from typing import Any, NamedTuple

from ...device.spec import DeviceSpec
from ...ops.schema import MAP
from ...registry.cost import Cost, machine, roofline
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Num,
    Out,
    Reject,
    Table,
    alone,
    at_least,
    at_most,
    cdiv,
    variant,
)
from ...rows import RegionSpec
from ...rows.parts import read_parts
from ...rows.program import Load, Map
from .elementwise import (
    PARAMETERS,
    RESIDENT,
    THREADS,
    least,
    load_types,
    map_constants,
    store_types,
    unaligned,
    vector_width,
)

MAX_PARTS = 16


class Parts(NamedTuple):
    """Independent maps side by side, which do the same."""

    maps: tuple[Map, ...]
    columns: tuple[
        tuple[Load, ...], ...
    ]  # of each load, that of every part; of one only if all read the same element
    moves: tuple[bool, ...]  # of each load, whether it walks any part
    width: (
        int  # neighbours per thread and step: those of a vector if every part is aligned for them, else one
    )


@functools.lru_cache(maxsize=1024)
def _parts(region: RegionSpec) -> Parts | Reject:
    """The parts that one kernel does, or why it can't."""
    maps = read_parts(region)
    if isinstance(maps, Reject):
        return maps
    columns = tuple(zip(*(m.loads for m in maps)))
    moves = tuple([any(any(load.strides) for load in column) for column in columns])
    first = load_types(maps[0]), [load.offset for load in maps[0].loads]
    for number, m in enumerate(maps):
        if not m.flat:
            return Reject("access", f"an operand of part {number} is not read in the order of its result")
        if load_types(m) != first[0]:
            return Reject("ops", f"part {number} reads other operands than part 0")
        if m.numel > 1 and any(move and not any(load.strides) for move, load in zip(moves, m.loads)):
            return Reject("access", f"part {number} repeats an operand that another part walks")
        if [load.offset for load in m.loads] != first[1]:
            return Reject("access", f"part {number} starts its operands elsewhere than part 0")
    same = [
        not move and len({(c.operand, c.offset) for c in column}) == 1 for move, column in zip(moves, columns)
    ]
    width = max(map(vector_width, maps))
    aligned = all(unaligned(region, m, width) is None for m in maps)
    shown = tuple([column[:1] if one else column for one, column in zip(same, columns)])
    return Parts(maps, shown, moves, width if aligned else 1)


def _accepted(region: RegionSpec) -> Parts:
    parts = _parts(region)
    assert not isinstance(parts, Reject)
    return parts


def _blocks(parts: Parts, device: DeviceSpec) -> list[int]:
    """Of each part, in proportion to its length; all together as many as one grid-stride loop would have."""
    wanted = [cdiv(m.numel, parts.width * THREADS) for m in parts.maps]
    share = max(1.0, sum(wanted) / (32 * device.sms))
    return [int(-(-n // share)) for n in wanted]


def _checks(region: RegionSpec) -> Checks:
    yield at_least("parts", len(region.ops), 2)
    parts = _parts(region)
    if isinstance(parts, Reject):
        yield parts
        return
    yield at_least("parts", len(parts.maps), 2)
    for i, t in enumerate(region.results):
        if not t.contiguous:
            yield Reject("results", f"result {i} is {t}, needs row-major")


def _cost(region: RegionSpec, device: DeviceSpec, chain: float = 0.0) -> Cost:
    parts = _accepted(region)
    vector = parts.width > 1
    return roofline(
        device, bytes=region.nbytes, flops=sum(m.flops for m in parts.maps), efficiency=map_constants(device).efficiency,
        memory_efficiency=map_constants(device).vector_access if vector else map_constants(device).scalar_access,
        blocks=sum(cdiv(m.numel, parts.width * THREADS) for m in parts.maps), blocks_per_sm=RESIDENT[vector], chain=chain,
    )  # fmt: skip


def _made(parts: Parts) -> tuple[Any, ...]:
    """What both bodies are made from: the expression, types of loads and stores, walks, width."""
    first = parts.maps[0]
    walks = tuple(((int(moving),), load.offset) for moving, load in zip(parts.moves, first.loads))
    return first.expression, load_types(first), store_types(first), walks, parts.width


def _pointers(parts: Parts) -> tuple[tuple[tuple[In, ...], ...], tuple[tuple[Out, ...], ...]]:
    """Of each load and store, those of all parts, or one for all."""
    read = [c for c in parts.columns if c[0].operand is not None]
    ins = tuple(tuple(In(load.operand) for load in c if load.operand is not None) for c in read)
    return ins, tuple(tuple(Out(position) for _, position in c) for c in zip(*(m.stores for m in parts.maps)))


@variant(MAP, id="cuda.multi_map.v1", takes=(MAP, "maps"))
class MultiMap:
    """Up to 16 independent maps that do the same, each of any length; operands dense, or of one element. Any dtype.

    In 16-byte vectors if every tensor is aligned for them. Parallel over parts and elements: small ones share the chip.
    Bytes: each operand read once, each result written once. Limit: memory, and about 30 selects per block and pointer.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        parts = _accepted(region)
        yield at_most("parts", len(parts.maps), MAX_PARTS)
        pointers = sum(map(len, parts.columns)) + len(region.results)
        yield at_most("bytes of kernel parameters", 8 * (pointers + 3 * len(parts.maps)), PARAMETERS)

    least, numerics = least, alone

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _cost(region, device)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .multi_body import multi

        parts = _accepted(region)
        made, maps, blocks = _made(parts), parts.maps, _blocks(parts, device)
        body = multi(f"multi_map{len(maps)}_{parts.width}_{made[0].name}", *made)
        ends = list(accumulate(blocks))
        firsts = [end - n for end, n in zip(ends, blocks)]
        numbers = tuple(tuple(map(Num, column)) for column in ([m.numel for m in maps], firsts, ends))
        return [Launch(body, (max(1, ends[-1]),), (THREADS,), (*_pointers(parts), *numbers))]


@variant(MAP, id="cuda.multi_map_table.v1", takes=(MAP, "maps"), chained=False)
class MultiMapTable:
    """Any number of independent maps that do the same, each of any length; operands dense, or of one element. Any dtype.

    As multi_map, but pointers and lengths are in a table in device memory: a block reads its part's number there, then that
    part's row. Limit: memory, and two trips to it before the first element.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)

    least, numerics = least, alone

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _cost(region, device, 2 * machine(device).trip_us)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .multi_body import multi_table

        parts = _accepted(region)
        made, count, blocks = _made(parts), len(parts.maps), _blocks(parts, device)
        body = multi_table(f"multi_table_{parts.width}_{made[0].name}", *made)
        ends = list(accumulate(blocks))
        ins, outs = ([c * count if len(c) == 1 else c for c in columns] for columns in _pointers(parts))
        numbers = [
            [Num(n) for n in c]
            for c in ([m.numel for m in parts.maps], [e - n for e, n in zip(ends, blocks)], ends)
        ]
        rows = zip(*ins, *outs, *numbers)
        part_of_block = [Num(part) for part, n in enumerate(blocks) for _ in range(n)]
        table = Table((*part_of_block, *(entry for row in rows for entry in row)))
        return [Launch(body, (max(1, ends[-1]),), (THREADS,), (table, Num(len(part_of_block))))]
