"""A variant for horizontal regions: independent ops of one kind, such as the optimizer's steps, in one launch (A13)."""

from __future__ import annotations

from itertools import accumulate

from ..device.spec import DeviceSpec
from ..ops.schema import MAP
from ..registry.cost import Cost, roofline
from ..registry.program import Load, Map, read_parts
from ..registry.variant import Checks, In, Launch, Num, Out, Reject, at_least, at_most, cdiv, variant
from ..rows import RegionSpec
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


def _parts(region: RegionSpec) -> tuple[Map, ...]:
    """Of a region that was accepted."""
    parts = read_parts(region)
    assert not isinstance(parts, Reject)
    return parts


def _width(region: RegionSpec, parts: tuple[Map, ...]) -> int:
    """Neighbours per thread and step: those of the whole if every part is aligned for them, else one."""
    width = max(map(vector_width, parts))
    return width if all(check is None for part in parts for check in unaligned(region, part, width)) else 1


def _moves(parts: tuple[Map, ...], k: int) -> bool:
    return any(any(part.loads[k].strides) for part in parts)


def _columns(parts: tuple[Map, ...]) -> list[tuple[Load, ...]]:
    """Of each load, that of every part; of one only if all parts read the same element."""
    columns = list(zip(*(part.loads for part in parts)))
    return [c[:1] if len(set(c)) == 1 and not any(c[0].strides) else c for c in columns]


def _blocks(parts: tuple[Map, ...], width: int, device: DeviceSpec) -> list[int]:
    """Of each part, in proportion to its length; all together as many as one grid-stride loop would have."""
    wanted = [cdiv(part.numel, width * THREADS) for part in parts]
    share = max(1.0, sum(wanted) / (32 * device.sms))
    return [int(-(-n // share)) for n in wanted]


@variant(MAP, id="cuda.multi_map.v1", takes=(MAP, "maps"))
class MultiMap:
    """Up to 16 independent ops of one kind, each of any length; operands dense, or of one element. Any dtype.

    In 16-byte vectors if every tensor is aligned for them. Parallel over parts and elements: small ones share the chip.
    Bytes: each operand read once, each result written once. Limit: memory, and about 30 selects per block and pointer.
    """

    def accepts(region: RegionSpec) -> Checks:
        parts = read_parts(region)
        if isinstance(parts, Reject):
            yield parts
            return
        yield at_least("parts", len(parts), 2)
        yield at_most("parts", len(parts), MAX_PARTS)
        for i, t in enumerate(region.results):
            if not t.contiguous:
                yield Reject("results", f"result {i} is {t}, needs row-major")
        first = parts[0]
        for number, part in enumerate(parts):
            if not part.flat:
                yield Reject("access", f"an operand of part {number} is not read in the order of its result")
            if load_types(part) != load_types(first):
                yield Reject("ops", f"part {number} reads other operands than part 0")
            for k, load in enumerate(part.loads):
                if part.numel > 1 and any(load.strides) != _moves(parts, k):
                    yield Reject("access", f"part {number} repeats an operand that another part walks")
                if load.offset != first.loads[k].offset:
                    yield Reject("access", f"part {number} starts its operands elsewhere than part 0")
        pointers = sum(map(len, _columns(parts))) + len(region.results)
        yield at_most("bytes of kernel parameters", 8 * (pointers + 3 * len(parts)), PARAMETERS)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        parts = _parts(region)
        width = _width(region, parts)
        return roofline(
            device, bytes=region.nbytes, flops=sum(part.flops for part in parts), efficiency=MAP_EFFICIENCY,
            memory_efficiency=VECTOR_ACCESS if width > 1 else SCALAR_ACCESS,
            blocks=sum(cdiv(p.numel, width * THREADS) for p in parts), blocks_per_sm=RESIDENT[width > 1],
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.multi import multi

        parts = _parts(region)
        first, width, columns = parts[0], _width(region, parts), _columns(parts)
        walks = tuple(((int(_moves(parts, k)),), load.offset) for k, load in enumerate(first.loads))
        body = multi(f"multi_map{len(parts)}_{width}_{first.expression.name}", first.expression, load_types(first),
                     store_types(first), walks, width)  # fmt: skip
        ins = tuple(
            tuple(In(load.operand) for load in c if load.operand is not None)
            for c in columns
            if c[0].operand is not None
        )
        outs = tuple(tuple(Out(position) for _, position in c) for c in zip(*(part.stores for part in parts)))
        blocks = _blocks(parts, width, device)
        ends = list(accumulate(blocks))
        firsts = [end - n for end, n in zip(ends, blocks)]
        numbers = tuple(tuple(map(Num, column)) for column in ([part.numel for part in parts], firsts, ends))
        return [Launch(body, (max(1, ends[-1]),), (THREADS,), (ins, outs, *numbers))]
