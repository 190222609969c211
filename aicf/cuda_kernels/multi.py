"""A variant for horizontal regions: independent ops of one kind, such as the optimizer's steps, in one launch."""

from __future__ import annotations

import functools
from itertools import accumulate
from typing import NamedTuple

from ..device.spec import DeviceSpec
from ..ops.schema import MAP
from ..registry.cost import Cost, one_launch, roofline
from ..registry.program import Load, Map
from ..registry.read import read_parts
from ..registry.variant import Checks, In, Launch, Num, Out, Reject, at_least, at_most, cdiv, variant
from ..rows import RegionSpec
from ..types import DType
from .elementwise import (
    MAP_EFFICIENCY,
    PARAMETERS,
    RESIDENT,
    SCALAR_ACCESS,
    THREADS,
    VECTOR_ACCESS,
    load_types,
    store_types,
    unaligned,
    vector_width,
)

MAX_PARTS = 16


class Part(NamedTuple):
    """What is asked of a part again and again, by itself and beside others."""

    map: Map
    walks: tuple[bool, ...]  # of each load
    offsets: tuple[int, ...]  # of each load
    types: tuple[DType | None, ...]  # of each load
    width: int  # neighbours of a vector of this part, whether it is aligned for them or not
    aligned: bool  # for vectors of so many


class Parts(NamedTuple):
    """Independent maps side by side."""

    parts: tuple[Part, ...]
    moves: tuple[bool, ...]  # of each load, whether it walks any part
    same: tuple[bool, ...]  # of each load, whether all parts read one element
    widest: int  # of the parts' vectors
    aligned: bool  # every part, for vectors of so many
    alike: bool  # what one kernel does

    @property
    def width(self) -> int:
        """Neighbours per thread and step: those of a vector if every part is aligned for them, else one."""
        return self.widest if self.aligned else 1

    @property
    def columns(self) -> tuple[tuple[Load, ...], ...]:
        """Of each load, that of every part; of one only if all read the same element."""
        columns = zip(*(part.map.loads for part in self.parts))
        return tuple([c[:1] if same else c for c, same in zip(columns, self.same)])


def _part(region: RegionSpec, m: Map) -> Part:
    width = vector_width(m)
    walks = tuple([any(load.strides) for load in m.loads])
    offsets = tuple([load.offset for load in m.loads])
    return Part(m, walks, offsets, load_types(m), width, unaligned(region, m, width) is None)


@functools.lru_cache(maxsize=1024)
def _parts(region: RegionSpec) -> Parts | Reject:
    maps = read_parts(region)
    if isinstance(maps, Reject):
        return maps
    before = _parts(region.before) if region.before is not None else None
    if not isinstance(before, Parts) or any(part.map is not m for part, m in zip(before.parts, maps)):
        first = _part(region, maps[0])
        still = tuple([not walking for walking in first.walks])
        before = Parts((first,), first.walks, still, first.width, first.aligned, first.map.flat)
    for m in maps[len(before.parts) :]:
        before = _beside(region, before, _part(region, m))
    return before


def _beside(region: RegionSpec, known: Parts, part: Part) -> Parts:
    """With one more."""
    parts, first = (*known.parts, part), known.parts[0]
    moves = tuple([a or b for a, b in zip(known.moves, part.walks)])
    pairs = zip(known.same, part.walks, first.map.loads, part.map.loads)
    same = [s and not w and (a.operand, a.offset) == (b.operand, b.offset) for s, w, a, b in pairs]
    width, aligned = known.widest, known.aligned and part.aligned
    if part.width != width:
        width = max(part.width, width)
        aligned = all(unaligned(region, p.map, width) is None for p in parts)
    new = (part,) if moves == known.moves else parts
    alike = known.alike and all(_like(p, first, moves) for p in new)
    return Parts(parts, moves, tuple(same), width, aligned, alike)


def _like(part: Part, first: Part, moves: tuple[bool, ...]) -> bool:
    """Whether one kernel does both. An operand of one element may be walked or not."""
    alike = part.map.flat and part.types == first.types and part.offsets == first.offsets
    return alike and (part.walks == moves or part.map.numel <= 1)


def _accepted(region: RegionSpec) -> Parts:
    parts = _parts(region)
    assert not isinstance(parts, Reject)
    return parts


def _blocks(parts: Parts, device: DeviceSpec) -> list[int]:
    """Of each part, in proportion to its length; all together as many as one grid-stride loop would have."""
    wanted = [cdiv(part.map.numel, parts.width * THREADS) for part in parts.parts]
    share = max(1.0, sum(wanted) / (32 * device.sms))
    return [int(-(-n // share)) for n in wanted]


@variant(MAP, id="cuda.multi_map.v1", takes=(MAP, "maps"))
class MultiMap:
    """Up to 16 independent ops of one kind, each of any length; operands dense, or of one element. Any dtype.

    In 16-byte vectors if every tensor is aligned for them. Parallel over parts and elements: small ones share the chip.
    Bytes: each operand read once, each result written once. Limit: memory, and about 30 selects per block and pointer.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield at_least("parts", len(region.ops), 2)
        parts = _parts(region)
        if isinstance(parts, Reject):
            yield parts
            return
        yield at_most("parts", len(parts.parts), MAX_PARTS)
        for i, t in enumerate(region.results):
            if not t.contiguous:
                yield Reject("results", f"result {i} is {t}, needs row-major")
        first = parts.parts[0]
        for number, part in enumerate(() if parts.alike else parts.parts):
            if not part.map.flat:
                yield Reject("access", f"an operand of part {number} is not read in the order of its result")
            if part.types != first.types:
                yield Reject("ops", f"part {number} reads other operands than part 0")
            if part.walks != parts.moves and part.map.numel > 1:
                yield Reject("access", f"part {number} repeats an operand that another part walks")
            if part.offsets != first.offsets:
                yield Reject("access", f"part {number} starts its operands elsewhere than part 0")
        count = len(parts.parts)
        pointers = sum([1 if same else count for same in parts.same]) + len(region.results)
        yield at_most("bytes of kernel parameters", 8 * (pointers + 3 * count), PARAMETERS)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        parts = _accepted(region)
        vector = parts.width > 1
        return roofline(
            device, bytes=region.nbytes, flops=sum(part.map.flops for part in parts.parts), efficiency=MAP_EFFICIENCY,
            memory_efficiency=VECTOR_ACCESS if vector else SCALAR_ACCESS,
            blocks=sum(cdiv(part.map.numel, parts.width * THREADS) for part in parts.parts), blocks_per_sm=RESIDENT[vector],
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.multi import multi

        found = _accepted(region)
        maps, moves, columns, width = [p.map for p in found.parts], found.moves, found.columns, found.width
        first = maps[0]
        walks = tuple(((int(moving),), load.offset) for moving, load in zip(moves, first.loads))
        body = multi(f"multi_map{len(maps)}_{width}_{first.expression.name}", first.expression, load_types(first),
                     store_types(first), walks, width)  # fmt: skip
        ins = tuple(
            tuple(In(load.operand) for load in c if load.operand is not None)
            for c in columns
            if c[0].operand is not None
        )
        outs = tuple(tuple(Out(position) for _, position in c) for c in zip(*(part.stores for part in maps)))
        blocks = _blocks(found, device)
        ends = list(accumulate(blocks))
        firsts = [end - n for end, n in zip(ends, blocks)]
        numbers = tuple(tuple(map(Num, column)) for column in ([part.numel for part in maps], firsts, ends))
        return [Launch(body, (max(1, ends[-1]),), (THREADS,), (ins, outs, *numbers))]
