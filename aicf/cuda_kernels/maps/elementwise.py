"""Variants for maps: regions of ops that work element by element, with any operands broadcast (see maps/elementwise_body.py).

A map is read from the region (rows/program.py); its scalar functions are inlined into one kernel, whatever the ops are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ...device.calibration import family
from ...device.spec import DeviceSpec, constants
from ...ops.schema import MAP
from ...registry.checks import first_failure
from ...registry.cost import Cost, memory_us, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, Reject, alone, at_most, cdiv, multiple, variant
from ...rows import RegionSpec
from ...rows.program import Load, Map, RegionProgram, collapse
from ...rows.read import read
from ...types import BASIC, DType, i8, i32, i64, row_major, u8

if TYPE_CHECKING:
    from ..tiles.element import Loads
    from ..tiles.index import Walk

THREADS = 256
MAX_RANK = 6
GRID = 2**31 - 1  # blocks, at most: of one step each, for more than any memory holds
PARAMETERS = 4096  # bytes: what a kernel takes
MAX_POINTERS = 64  # with six strides of 8 bytes each they fit
RESIDENT = 8, 6  # blocks on a multiprocessor: all threads, and by the 40 registers that vectors take
LEAST_RAGGED = 64  # vectors of a row, so that few warps have one that crosses to the next
# Elements of a thread of elementwise_flat; up to so many that each can have a thread on an H200, it has one
UNROLL, FEW = 4, 2**15
VECTOR = 16  # bytes: the most that one load takes
TYPES = BASIC | {i8, u8}

Strides = tuple[int, ...]


@family("maps")
@dataclass(frozen=True)
class MapConstants:
    """Constants of maps. An H200 moves 4.13 to 4.38 of its 4.8 TB/s with 16-byte loads.

    vector_access, scalar_access, half_access, scattered_access  of the bandwidth, by 16 bytes, by 4, by halves, and by strides along rows
    efficiency  of the f32 rate, by the ops' declared flops
    division_flops  of a coordinate: integer instructions, at half the rate of multiply-adds
    vector_us  of a vector's loads and stores, beside those of single elements
    rest_us  for what is left of a ragged length, after its vectors
    """

    vector_access: float = 0.9
    scalar_access: float = 0.89
    half_access: float = 0.75
    scattered_access: float = 0.25
    efficiency: float = 0.5
    division_flops: float = 20.0
    vector_us: float = 0.06
    rest_us: float = 0.35


def map_constants(device: DeviceSpec) -> MapConstants:
    return constants(MapConstants, device)


def moved_bytes(region: RegionSpec, m: Map) -> int:
    """Bytes that loads and stores move: of an operand that is gathered from or cut, no more than the map has elements."""
    most: dict[int, int] = {}
    for load in m.loads:
        if load.operand is not None:
            t = region.operands[load.operand]
            most[load.operand] = min(t.nbytes, most.get(load.operand, 0) + m.numel * t.dtype.itemsize)
    return sum(most.values()) + sum(t.nbytes for t in region.results)


def grid_for(n: int, threads: int = THREADS) -> tuple[int]:
    """Blocks for n elements: one step each. Blocks that stay for several drift apart, and memory likes neighbours together: at
    2^28 elements they reach 95 % of the speed, on an H200. Kernels of several steps go round where this is not enough."""
    return (max(1, min(cdiv(n, threads), GRID)),)


# --- a map as a kernel's constants and arguments ------------------------------------------------------------------------


def load_types(m: Map) -> Loads:
    """Of each load, for tiles/element.py."""
    from ..tiles.element import Masked

    return tuple([
        Masked(load.dtype, load.bounds, load.operand is not None) if load.bounds
        else None if load.operand is None else load.dtype
        for load in m.loads
    ])  # fmt: skip


def store_types(m: Map) -> tuple[DType, ...]:
    return tuple([m.dtypes[slot] for slot, _ in m.stores])


def pointers(m: Map) -> tuple[tuple[In, ...], tuple[Out, ...]]:
    ins = tuple(In(load.operand) for load in m.loads if load.operand is not None)
    return ins, tuple(Out(position) for _, position in m.stores)


def collapsed(m: Map) -> tuple[tuple[int, ...], list[Strides]]:
    """The domain, and how each load walks it; results are dense, so they merge with anything."""
    return _collapsed(m.shape, tuple([load.strides for load in m.loads]))


@lru_cache(maxsize=256)
def _collapsed(shape: Strides, strides: tuple[Strides, ...]) -> tuple[tuple[int, ...], list[Strides]]:
    return collapse(shape, strides)


def walked(loads: Sequence[Load], strides: Sequence[Strides]) -> tuple[tuple[Walk, ...], tuple[Num, ...]]:
    """How loads walk a kernel's coordinates, as constants of the kernel, and the numbers that these leave open. Sizes are among
    them, so that equal masks of other sizes are one kernel."""
    from ..tiles.index import walk_of

    walks, given = [], list[Num]()
    for load, steps in zip(loads, strides):
        number = load.operand is None and not load.bounds and not any(steps)
        walks.append((walk_of(steps), None if number else load.offset))
        given += [Num(load.offset)] if number else [Num(s) for s in steps if s not in (0, 1)]
    return tuple(walks), tuple(given)


def flat_launch(m: Map, width: int = 1) -> Launch:
    """Every load walks the domain as the results do, or stays; `width` neighbours per thread and step."""
    from .elementwise_body import flat, vector

    walks = tuple(((int(any(load.strides)),), load.offset) for load in m.loads)
    what = m.expression, load_types(m), store_types(m), walks
    n = Num(m.numel)
    if width == 1:
        each = unroll(m)
        ragged = m.numel % (each * THREADS) != 0
        body = flat(f"elementwise_flat{each}_{m.expression.name}", *what, each, THREADS, ragged)
        return Launch(body, grid_for(cdiv(m.numel, each)), (THREADS,), (*pointers(m), n))
    grid = grid_for(cdiv(m.numel, width))
    body = vector(f"elementwise_vector{width}_{m.expression.name}", *what, width, m.numel % width != 0)
    return Launch(body, grid, (THREADS,), (*pointers(m), n))


def unroll(m: Map) -> int:
    """Elements of a thread of elementwise_flat."""
    return UNROLL if m.numel > FEW else 1


def strided_launch(m: Map, width: int = 1) -> Launch:
    """Loads with any strides; `width` neighbours per thread and step."""
    from .elementwise_body import strided

    (shape, strides), narrow = collapsed(m), m.numel < 2**31
    still, dense = (0,) * len(shape), row_major(shape)
    # what walks the domain in order needs no coordinates, but the element's number alone
    strides = [(*still, 1) if steps == dense and any(steps) else (*steps, 0) for steps in strides]
    walks, given = walked(m.loads, strides)
    kind = f"strided{len(shape)}{'' if narrow else '_wide'}" if width == 1 else f"rows{len(shape)}_{width}"
    body = strided(f"elementwise_{kind}_{m.expression.name}", m.expression, load_types(m), store_types(m), walks,
                   narrow, width, shape[-1:] != () and shape[-1] % width != 0)  # fmt: skip
    sizes = tuple(Num(d, i32 if narrow else i64) for d in shape)
    grid = grid_for(cdiv(m.numel, width))
    return Launch(body, grid, (THREADS,), (*pointers(m), sizes, given, Num(m.numel)))


# --- what the variants ask ----------------------------------------------------------------------------------------------


def _map(region: RegionSpec) -> Map:
    """Of a region that was accepted."""
    program = read(region)
    assert isinstance(program, RegionProgram)
    return program.after


@lru_cache(maxsize=256)
def _refusal(region: RegionSpec) -> Reject | None:
    """Of all of them: each region is asked of one after the other."""
    return first_failure(_shared_checks(region))


def _shared_checks(region: RegionSpec) -> Checks:
    program = read(region)
    if isinstance(program, Reject):
        yield program
        return
    for i, t in enumerate(region.results):
        if not t.contiguous:
            yield Reject("results", f"result {i} is {t}, needs row-major")
    pointed = sum(load.operand is not None for load in program.loads)
    numbers = cdiv(
        len(program.loads) - pointed, MAX_RANK
    )  # a coordinate or a size is a number, where an operand has strides
    yield at_most("loads and results", pointed + numbers + len(program.after.stores), MAX_POINTERS)


def _dense(region: RegionSpec) -> Checks:
    yield _refusal(region)
    m = _map(region)
    if m.flat:
        return
    for load in m.loads:
        if load.operand is None or not any(load.strides):
            continue
        t = region.operands[load.operand]
        if t.numel != 1 and t.shape != m.shape:
            yield Reject(
                "shape", f"operand {load.operand} has shape {t.shape}, needs one element or {m.shape}"
            )
        if not t.contiguous:
            yield Reject(
                "contiguous",
                f"operand {load.operand} has strides {t.stride} for shape {t.shape}, needs row-major",
            )
    yield Reject("access", f"an operand is not read in the order of the results, {m.shape}")


def vector_width(m: Map) -> int:
    """Neighbours per step: 16 bytes of the widest type that moves (8 halves, 4 numbers of f32), but at least 4."""
    moving = [load.dtype for load in m.loads if load.operand is not None and any(load.strides)]
    return max(4, VECTOR // max([d.itemsize for d in (*moving, *store_types(m))]))


def unaligned(
    region: RegionSpec, m: Map, width: int, moving: Collection[Load] | None = None
) -> Reject | None:
    """The first that moves but does not start where a vector may, for runs of `width` neighbours.

    moving  loads that go on along runs, if others don't: indices that stay may begin anywhere
    """
    walking = [load for load in m.loads if any(load.strides)]
    operands = sorted({load.operand for load in walking if load.operand is not None})
    moving = [("operand", i, region.operands[i]) for i in operands]
    moving += [("result", i, region.results[i]) for _, i in m.stores]
    for what, i, t in moving:
        needed = min(VECTOR, width * t.dtype.itemsize)
        if t.alignment < needed:
            return Reject("aligned", f"{what} {i} is aligned to {t.alignment} bytes, needs {needed}")
    moves = [w for w in walking if w.operand is not None or moving is None or w in moving]
    return next((multiple("start of a vector", w.offset, width) for w in moves if w.offset % width), None)


def _across(m: Map, strides: Sequence[Strides], width: int) -> Reject | None:
    """A mask whose edge, or an index that moves, within `width` neighbours along the last dimension."""
    moving = {slot for slot, steps in enumerate(strides) if steps[-1] != 0}
    for load in m.loads:
        for bound in load.bounds:
            if bound.slot not in moving:
                continue
            if bound.stride is not None:
                return Reject("mask", f"an index of operand {load.operand} moves along the last dimension")
            if (size := m.loads[bound.size].offset) % width:
                return Reject("mask", f"a mask ends within a vector: {size} is not a multiple of {width}")
    return None


def _crosses(m: Map, shape: Strides, strides: Sequence[Strides], width: int) -> bool:
    """Whether vectors may cross from a row to the next: what moves along rows lies as the results do, under no mask, and is no coordinate:
    lanes take those for multiples of the width (tiles/element.py)."""
    dense = row_major(shape)
    lies = all(
        steps[-1] == 0 or (steps == dense and load.operand is not None)
        for load, steps in zip(m.loads, strides)
    )
    return (
        len(shape) > 1
        and shape[-1] >= LEAST_RAGGED * width
        and lies
        and not any(load.bounds for load in m.loads)
    )


def map_cost(region: RegionSpec, device: DeviceSpec, width: int, strides: Sequence[Strides] = ()) -> Cost:
    """Each operand read once, each result written once. A thread has one step's loads in flight: those of the next may not
    pass the stores, which could be to the same memory.

    strides  of each load, where more dimensions than one take divisions, and steps along the last one sectors of their own
    """
    m, rank, c = _map(region), max(map(len, strides), default=1), map_constants(device)
    index_flops = c.division_flops * rank / width if rank > 1 else 0.0
    access = c.vector_access if width > 1 else c.half_access if vector_width(m) > 4 else c.scalar_access
    if any(abs(steps[-1]) > 1 for steps in strides):
        access = c.scattered_access
    each = unroll(m) if width == 1 and not strides else width
    chain = c.vector_us * (width > 1) + (c.rest_us if m.numel % width else 0.0)
    return roofline(
        device, bytes=moved_bytes(region, m), flops=m.flops + index_flops * m.numel, efficiency=c.efficiency,
        memory_efficiency=access, blocks=cdiv(m.numel, each * THREADS), blocks_per_sm=RESIDENT[width > 1],
        chain=chain,
    )  # fmt: skip


def least(region: RegionSpec, device: DeviceSpec) -> float:
    """Of `map_cost`, and of several maps in one launch: a launch, and the least bytes at the speed of vectors."""
    elements = sum(t.numel for t in region.results)
    read = sum(min(t.nbytes, elements * t.dtype.itemsize) for t in region.operands if t.numel <= elements)
    nbytes = read + sum(t.nbytes for t in region.results)
    return one_launch(region, device) + memory_us(device, nbytes, map_constants(device).vector_access)


# --- variants -----------------------------------------------------------------------------------------------------------


@variant(MAP, id="cuda.elementwise_flat.v1", takes=(MAP,), dtypes=TYPES)
class ElementwiseFlat:
    """Four elements per thread and step, a block's width apart; all operands dense (or of one element), wherever they begin.
    Any dtype; half types compute in f32.

    Parallel over elements. Bytes: each operand read once, each result written once. Limit: memory, 4 bytes per load.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _dense(region)

    least, numerics = least, alone

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return map_cost(region, device, 1)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return [flat_launch(_map(region))]


@variant(MAP, id="cuda.elementwise_vector.v1", takes=(MAP,), dtypes=TYPES)
class ElementwiseVector:
    """As many neighbours per thread and step as 16 bytes hold, in vector loads and stores; otherwise as elementwise_flat.

    One-element operands, such as a learning rate, are read once per step and spread. The end of a ragged length goes one by
    one. Parallel over vectors, so short tensors do better with elementwise_flat. Limit: memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _dense(region)
        m = _map(region)
        yield unaligned(region, m, vector_width(m))

    least, numerics = least, alone

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return map_cost(region, device, vector_width(_map(region)))

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        m = _map(region)
        return [flat_launch(m, vector_width(m))]


@variant(MAP, id="cuda.elementwise_strided.v1", takes=(MAP,), dtypes=TYPES, priority=-1, masked=True)
class ElementwiseStrided:
    """One element per thread and step; operands broadcast or strided, up to rank 6 once neighbours are merged.

    Parallel over elements. Limit: memory, and about twenty instructions of index arithmetic per dimension.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield _refusal(region)
        yield at_most("rank after collapsing", len(collapsed(_map(region))[0]), MAX_RANK)

    least, numerics = least, alone

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return map_cost(region, device, 1, collapsed(_map(region))[1])

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return [strided_launch(_map(region))]


@variant(MAP, id="cuda.elementwise_rows.v1", takes=(MAP,), dtypes=TYPES, priority=-1, masked=True)
class ElementwiseRows:
    """elementwise_strided with 16-byte vectors along the last dimension, in which each operand goes on by one, or stays.

    What models broadcast is so: a bias per column or per row, a residual beside it. Coordinates are divided out once per
    vector. Long rows may have any length, if what moves along them lies as the results do and no coordinate does: a vector that
    crosses from a row to the next goes element by element. Parallel over vectors. Limit: memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield _refusal(region)
        m = _map(region)
        width, (shape, strides) = vector_width(m), collapsed(m)
        yield at_most("rank after collapsing", len(shape), MAX_RANK)
        if not _crosses(m, shape, strides, width):
            yield multiple("last dimension after collapsing", shape[-1], width)
        for load, steps in zip(m.loads, strides):
            if steps[-1] not in (0, 1):
                yield Reject(
                    "stride", f"operand {load.operand} has stride {steps[-1]} along rows, needs 0 or 1"
                )
            if steps[-1] == 1 and shape[-1] % width == 0:
                for s in steps[:-1]:
                    yield multiple(f"row stride of operand {load.operand}", s, width)
        yield _across(m, strides, width)
        yield unaligned(region, m, width, [x for x, steps in zip(m.loads, strides) if steps[-1] != 0])

    least, numerics = least, alone

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        m = _map(region)
        return map_cost(region, device, vector_width(m), collapsed(m)[1])

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        m = _map(region)
        return [strided_launch(m, vector_width(m))]
