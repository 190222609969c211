"""The variant for reductions over axes on both sides of one that is kept: statistics of channels that come before the spatial axes."""

from __future__ import annotations

from typing import Any

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import Checks, Launch, Num, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import f32
from ..maps.elementwise import THREADS, VECTOR, grid_for, store_types, unaligned
from .reduce import (
    EFFICIENCY,
    KINDS,
    RESIDENT,
    TAKES,
    Reduced,
    RowSplit,
    chain_us,
    first_part,
    fitted,
    flops_of,
    lanes_for,
    partial_side,
    reduced,
    side,
    split,
    tree_us,
    walkable,
)

PLANES = (True, False, True)  # which of a kernel's coordinates are reduced
UNITS = 2**31 - 2**20  # of a plane of all images, as numbers of 32 bits
MEMORY = {True: 0.85, False: 0.6}  # of memory's rate, in runs or one by one. Not yet measured
DIVISION_FLOPS = 30  # of a run's place


def _vector(region: RegionSpec, r: Reduced) -> int:
    """Neighbours of a run, of 16 bytes of the widest type that goes on along them; 1 where runs are ragged, masked or not aligned."""
    (_, _, inner), walks, _ = fitted(r, PLANES)
    own = list(zip(r.before.loads, walks))
    moving = [load for load, walk in own if walk[-1]]
    types = [load.dtype for load in moving] + [*store_types(r.before)]
    if not moving or any(load.bounds or load.operand is None for load in r.before.loads):
        return 1
    for vector in (8, 4):
        fits = vector * max(t.itemsize for t in types) <= 2 * VECTOR and not inner % vector
        steps = [step for load, walk in own if walk[-1] for step in walk[:-1]]
        if (
            fits
            and not any(step % vector for step in steps)
            and unaligned(region, r.before, vector, moving) is None
        ):
            return vector
    return 1


def _division(region: RegionSpec, r: Reduced, device: DeviceSpec) -> tuple[int, int, int, int, RowSplit]:
    """Images, planes, elements of each, of a run, and how the runs of a plane are split."""
    (images, planes, inner), vector = fitted(r, PLANES)[0], _vector(region, r)
    return images, planes, inner, vector, split(images * inner // vector, planes, THREADS, device)


@variant(*KINDS, id="cuda.reduce_planes.v2", takes=TAKES, masked=True)
class ReducePlanes:
    """Axes before and behind a kept one are reduced: a block of 256 threads per kept index, or several where these are few. Any number type.

    Maps before and after it are computed on the way. Parallel over kept indices, and along planes in runs of up to 16 bytes for each thread.
    Split planes are combined by a second launch. Bytes: each operand once; f32 accumulation in a fixed order. Limit: memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from walkable(region, (list(PLANES),), "on both sides of one that is kept")
        images, planes, inner = fitted(reduced(region), PLANES)[0]
        yield at_most("elements of a plane of all images", images * inner, UNITS)
        yield at_most("planes", planes, UNITS // 1024)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        r = reduced(region)
        images, planes, inner, vector, parts = _division(region, r, device)
        again = (
            chain_us(cdiv(parts.parts, lanes_for(parts.parts)), machine(device).trip_us)
            if parts.parts > 1
            else 0.0
        )
        return roofline(
            device, bytes=region.nbytes, flops=flops_of(r) + DIVISION_FLOPS * images * planes * inner // vector,
            efficiency=EFFICIENCY, memory_efficiency=MEMORY[vector > 1], blocks=planes * parts.parts, blocks_per_sm=RESIDENT,
            launches=1 if parts.parts == 1 else 2, chain=chain_us(cdiv(parts.chunk, THREADS), machine(device).trip_us) + again, finish=tree_us(r),
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        r = reduced(region)
        _, planes, _, _, parts = _division(region, r, device)
        return planes * parts.parts * r.partial.itemsize if parts.parts > 1 else 0

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .planes_body import planes as body
        from .reduce_body import rows

        r = reduced(region)
        images, planes, inner, vector, (parts, chunk) = _division(region, r, device)
        _, before_walks, after_walks = fitted(r, PLANES)
        source, sink = side(r.before, before_walks), side(r.after, after_walks)
        moves = tuple(walk[-1] != 0 for walk, _ in zip(before_walks, r.before.loads))

        def launch(how: str, after: Any) -> Launch:
            kernel = body(how, r.partial, source[0], after[0], moves, vector, parts > 1)
            sizes = planes, inner, parts, chunk, images * (inner // vector)
            numbers = *map(Num, sizes), Num(r.length, f32)
            return Launch(kernel, (planes * parts,), (THREADS,), (*source[1], *after[1], *numbers))

        if parts == 1:
            return [launch(r.core.how, sink)]
        again, lanes = partial_side(r.partial, (parts, 1)), lanes_for(parts)
        combined = rows(r.core.how, r.partial, again[0], sink[0], lanes, False)
        numbers = Num(planes), Num(parts), Num(1), Num(parts), Num(r.length, f32)
        last = Launch(combined, grid_for(planes * lanes), (THREADS,), (*again[1], *sink[1], *numbers))
        return [launch(first_part(r.core.how), partial_side(r.partial)), last]
