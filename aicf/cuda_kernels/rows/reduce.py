"""Variants for reduce_sum, reduce_mean, reduce_prod, reduce_max and reduce_min, and for argmax and argmin, which are a max of keys, with maps before and after them.

Neighbouring axes that are all reduced, or all kept, are one axis if every load walks them as one; after merging them most
reductions are over rows (the reduced axis is the last) or over columns (the last axis is kept). What comes before is
computed as elements are loaded, what comes after once per result; neither changes the order in which is accumulated.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import (
    Arg,
    Checks,
    Launch,
    Num,
    NumericClass,
    Reject,
    Work,
    at_most,
    cdiv,
    no_class,
    variant,
)
from ...rows import RegionSpec
from ...rows.program import Expression, Load, Map, Reduction, RegionProgram, Shape, collapse
from ...rows.read import read
from ...types import DType, f32, numel, row_major
from ..maps.elementwise import (
    MAX_POINTERS,
    MAX_RANK,
    PARAMETERS,
    THREADS,
    grid_for,
    load_types,
    pointers,
    store_types,
    walked,
)

KINDS = ("map", "reduce")
TAKES = ("reduce", "map+reduce", "reduce+map", "map+reduce+map")


class RowSplit(NamedTuple):
    """A reduction of `length` elements as `parts` segments of `chunk`, the last one shorter."""

    parts: int
    chunk: int


INVARIANT_SERIAL = 16  # and of rows whose parts follow from their length: between what is best for few rows and for thousands
SERIAL = 2048  # elements that a thread adds up one after the other, at most: the error of its f32 sum grows with them


def split(length: int, blocks: int, per_block: int, device: DeviceSpec) -> RowSplit:
    """Enough segments for four blocks per multiprocessor, each at least eight turns of a block; one if that suffices, and no thread
    adds more than SERIAL elements."""
    wanted = min(cdiv(4 * device.sms, max(blocks, 1)), length // (8 * per_block))
    return _segments(length, max(wanted if blocks < 2 * device.sms else 1, cdiv(length, SERIAL * per_block)))


def split_by_length(length: int, per_block: int) -> RowSplit:
    """As many segments as no thread adds more than INVARIANT_SERIAL elements of, whatever the number of results and the device are."""
    return _segments(length, cdiv(length, INVARIANT_SERIAL * per_block))


def _segments(length: int, wanted: int) -> RowSplit:
    if wanted < 2:
        return RowSplit(1, length)
    chunk = cdiv(length, wanted)
    return RowSplit(cdiv(length, chunk), chunk)


# --- a region as a kernel sees it ---------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Neighbouring axes of the reduction's operand that are all reduced, or all kept; without those of size 1."""

    reduced: bool
    shape: Shape
    before: list[
        Shape
    ]  # strides over them of each load before the reduction, and last of what is stored there
    after: list[Shape]  # and of each load after it; a reduced axis is none of theirs


class Reduced(NamedTuple):
    core: Reduction
    before: Map
    after: Map
    runs: list[Run]

    @property
    def length(self) -> int:
        return numel(tuple(self.before.shape[a] for a in self.core.axes))

    @property
    def partial(self) -> DType:
        return self.core.dtype.compute


@functools.lru_cache(maxsize=4096)
def reduced(region: RegionSpec) -> Reduced:
    """Of a region that was accepted, or at least read."""
    program = read(region)
    assert isinstance(program, RegionProgram) and isinstance(program.core, Reduction) and program.before
    before, after, axes = program.before, program.after, program.core.axes
    kept = [axis for axis in range(len(before.shape)) if axis not in axes]
    keepdims = len(after.shape) == len(before.shape)
    groups: list[tuple[bool, list[int]]] = []
    for axis, size in enumerate(before.shape):
        if size == 1:
            continue
        if groups and groups[-1][0] == (axis in axes):
            groups[-1][1].append(axis)
        else:
            groups.append((axis in axes, [axis]))
    runs, walks = [], [*(load.strides for load in before.loads), row_major(before.shape)]
    for is_reduced, group in groups:
        strides = [tuple(walk[a] for a in group) for walk in walks]
        if not is_reduced:
            places = group if keepdims else [kept.index(a) for a in group]
            strides += [tuple(load.strides[a] for a in places) for load in after.loads]
        shape, strides = collapse(tuple(before.shape[a] for a in group), strides)
        runs.append(Run(is_reduced, shape, strides[: len(walks)], strides[len(walks) :]))
    return Reduced(program.core, before, after, runs)


def _readable(region: RegionSpec) -> Checks:
    program = read(region)
    if isinstance(program, Reject):
        yield program
        return
    assert isinstance(program.core, Reduction)
    if program.core.dtype is DType.bool:
        yield Reject("dtype", "the reduction is over bools, needs numbers")
    for i, t in enumerate(region.results):
        if not t.contiguous:
            yield Reject("contiguous", f"result {i} is {t}, needs row-major")
    yield at_most("loads and results", len(program.loads) + len(region.results), MAX_POINTERS)


def walkable(region: RegionSpec, patterns: tuple[list[bool], ...], otherwise: str) -> Checks:
    """The runs are reduced or kept in one of these patterns, and every load walks each of them with one stride."""
    yield from _readable(region)
    r = reduced(region)
    if [run.reduced for run in r.runs] not in patterns:
        yield Reject("axes", f"axes {r.core.axes} of {r.before.shape} are not {otherwise}")
    for run in r.runs:
        if len(run.shape) > 1:
            yield Reject(
                "access", f"an operand is broadcast or strided within axes {run.shape} of {r.before.shape}"
            )
    for load, steps in zip(r.before.loads, r.runs[-1].before if r.runs else ()):
        if steps[-1] not in (0, 1):
            yield Reject(
                "stride", f"operand {load.operand} has stride {steps[-1]} along the last axis, needs 0 or 1"
            )


Walks = list[Shape]  # of each load, one stride for each coordinate of a kernel


def fitted(r: Reduced, pattern: tuple[bool, ...]) -> tuple[list[int], Walks, Walks]:
    """Sizes of a kernel's coordinates, reduced or kept as in `pattern`, and how loads before and after walk them."""
    runs, sizes = list(r.runs), []
    before: Walks = [()] * len(r.before.loads)
    after: Walks = [()] * len(r.after.loads)
    for is_reduced in pattern:
        found = runs.pop(0) if runs and runs[0].reduced == is_reduced else None
        sizes.append(found.shape[0] if found else 1)
        before = [(*walk, *(found.before[k] if found else (0,))) for k, walk in enumerate(before)]
        if not is_reduced:
            after = [(*walk, *(found.after[k] if found else (0,))) for k, walk in enumerate(after)]
    return sizes, before, after


def side(m: Map, walks: Walks) -> tuple[Any, tuple[Arg, ...]]:
    """A map as a kernel's constant, and its arguments: pointers, and strides. Walks beyond its loads' are the kernel's."""
    from .reduce_body import Side

    own = [Load(0, f32, ())] * (len(walks) - len(m.loads))
    constants, given = walked((*m.loads, *own), walks)
    return Side(m.expression, load_types(m), store_types(m), constants), (*pointers(m), given)


def partial_side(dtype: DType, walk: Shape | None = None) -> tuple[Any, tuple[Arg, ...]]:
    """The workspace in the place of a map: read along this walk, or written."""
    from ..tiles.index import walk_of
    from .reduce_body import Side

    work, copy = Work(0, dtype), Expression("copy", (), (dtype,), frozenset(), 1, (0,))
    if walk is None:
        return Side(copy, (), (dtype,), ()), ((), (work,), ())
    given = tuple(Num(s) for s in walk if s not in (0, 1))
    return Side(copy, (dtype,), (), ((walk_of(walk), 0),)), ((work,), (), given)


def first_part(how: str) -> str:
    """The operation of a reduction that goes on: a mean is a sum until the end."""
    return "sum" if how == "mean" else how


UNROLLED = 4  # steps of a thread whose loads are in flight together: nothing is stored between them
RESIDENT = 5  # blocks on a multiprocessor, by the 40 to 58 registers that these kernels take
EFFICIENCY = 0.25  # of the f32 rate; never the limit
# What follows was measured on an H200.
LINE = 128  # bytes: a multiprocessor's first cache gives one line at a time
LINE_US = 5e-4  # for each; so long a warp's load takes for each line that it touches
ELEMENT_US = 0.02  # of reduce_naive, along rows: an addition, and its load out of the cache
NEAR = 8  # elements whose loads are on their way at once
TREE_US, FEED_US = 0.3, 0.1  # of a multiprocessor, for the tree of a block, and for each of its operands
SETUP_US = 0.3  # a block's way through the tree


def chain_us(steps: int, trip: float) -> float:
    """Microseconds of dependent steps: further trips of a thread, to memory or to the cache, and its way through the tree."""
    return (max(1, cdiv(steps, UNROLLED)) - 1) * trip + SETUP_US


def tree_us(r: Reduced) -> float:
    """Of a multiprocessor, for each block."""
    return TREE_US + FEED_US * sum(any(load.strides) for load in r.before.loads)


def flops_of(r: Reduced) -> int:
    return r.before.numel + r.before.flops + r.after.flops


# --- rows ---------------------------------------------------------------------------------------------------------------


def lanes_for(length: int) -> int:
    """Threads per row: a power of two up to a whole block, so that short rows share one."""
    return min(THREADS, 1 << max(0, (length - 1).bit_length()))


def _row_split(r: Reduced, device: DeviceSpec, invariant: bool) -> tuple[int, int, int, RowSplit]:
    """Rows, their length, threads of each, and parts of each: of invariant rows by their length."""
    rows, length = r.after.numel, r.length
    lanes = lanes_for(length)
    if invariant:
        return rows, length, lanes, split_by_length(length, lanes)
    return rows, length, lanes, split(length, cdiv(rows * lanes, THREADS), lanes, device)


PARTS = no_class("a row is cut into parts where rows are few")


@variant(*KINDS, id="cuda.reduce_rows.v2", takes=TAKES, masked=True)
class ReduceRows:
    """The last axes are reduced: 1 to 256 threads per row, which is split when rows are few. Any number type.

    Maps before and after it are computed on the way; their operands are dense, or repeated along rows or columns.
    Parallel over rows and along them. Bytes: each operand once; f32 accumulation in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from walkable(region, ([], [True], [False], [False, True]), "the last ones")

    least = one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        if not region.invariant:
            return PARTS
        r = reduced(region)
        _, length, lanes, (parts, _) = _row_split(r, device, True)
        by = f"by {lanes} threads" + (f" of each of {parts} parts" if parts > 1 else "")
        return NumericClass(f"{r.core.how} in {r.partial}", length, by)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        r = reduced(region)
        rows, _, lanes, parts = _row_split(r, device, region.invariant)
        return roofline(
            device, bytes=region.nbytes, flops=flops_of(r), efficiency=EFFICIENCY, memory_efficiency=0.85,
            blocks=cdiv(rows * parts.parts * lanes, THREADS), blocks_per_sm=RESIDENT,
            launches=1 if parts.parts == 1 else 2, chain=chain_us(cdiv(parts.chunk, lanes), machine(device).trip_us), finish=tree_us(r),
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        r = reduced(region)
        rows, _, _, parts = _row_split(r, device, region.invariant)
        return rows * parts.parts * r.partial.itemsize if parts.parts > 1 else 0

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .reduce_body import rows as body

        r = reduced(region)
        rows, length, lanes, (parts, chunk) = _row_split(r, device, region.invariant)
        _, before_walks, after_walks = fitted(r, (False, True))
        source, sink = side(r.before, before_walks), side(r.after, after_walks)

        def launch(how: str, before: Any, after: Any, lanes: int, segments: int, length: int, splits: int,
                   chunk: int) -> Launch:  # fmt: skip
            kernel = body(how, r.partial, before[0], after[0], lanes, splits > 1)
            numbers = Num(segments), Num(length), Num(splits), Num(chunk), Num(r.length, f32)
            return Launch(kernel, grid_for(segments * lanes), (THREADS,), (*before[1], *after[1], *numbers))

        if parts == 1:
            return [launch(r.core.how, source, sink, lanes, rows, length, 1, length)]
        inside, again = partial_side(r.partial), partial_side(r.partial, (parts, 1))
        return [
            launch(first_part(r.core.how), source, inside, lanes, rows * parts, length, parts, chunk),
            launch(r.core.how, again, sink, lanes_for(parts), rows, parts, 1, parts),
        ]


# --- columns ------------------------------------------------------------------------------------------------------------


def _column_split(r: Reduced, device: DeviceSpec) -> tuple[int, int, int, int, RowSplit]:
    outer, length, inner = fitted(r, (False, True, False))[0]
    width = min(32, lanes_for(inner))
    return outer, length, inner, width, split(length, outer * cdiv(inner, width), THREADS // width, device)


@variant(*KINDS, id="cuda.reduce_columns.v2", takes=TAKES, masked=True)
class ReduceColumns:
    """The last axes are kept, those before them reduced: neighbouring threads read neighbouring columns. Any number type.

    Maps before and after it are computed on the way; their operands are dense, or repeated along rows or columns.
    Parallel over columns, over the axes before the reduced ones, and along the reduced ones in 8 or more lines per block;
    a long reduction with few columns is split. Bytes: each operand once; f32 accumulation in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from walkable(region, ([True, False], [False, True, False]), "one run before others")

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        r = reduced(region)
        outer, _, inner, width, parts = _column_split(r, device)
        lines = THREADS // width
        return roofline(
            device, bytes=region.nbytes, flops=flops_of(r), efficiency=EFFICIENCY, memory_efficiency=0.8,
            blocks=outer * cdiv(inner, width) * parts.parts, blocks_per_sm=RESIDENT,
            launches=1 if parts.parts == 1 else 2, chain=chain_us(cdiv(parts.chunk, lines), machine(device).trip_us), finish=tree_us(r),
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        r = reduced(region)
        outer, _, inner, _, parts = _column_split(r, device)
        return outer * parts.parts * inner * r.partial.itemsize if parts.parts > 1 else 0

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .reduce_body import columns as body

        r = reduced(region)
        outer, length, inner, width, (parts, chunk) = _column_split(r, device)
        _, before_walks, after_walks = fitted(r, (False, True, False))
        source, sink = side(r.before, before_walks), side(r.after, after_walks)

        def launch(how: str, before: Any, after: Any, length: int, splits: int, chunk: int) -> Launch:
            kernel = body(how, r.partial, before[0], after[0], width, splits > 1)
            tiles = outer * splits * cdiv(inner, width)
            numbers = Num(length), Num(inner), Num(splits), Num(chunk), Num(r.length, f32)
            return Launch(kernel, grid_for(tiles * THREADS), (THREADS,), (*before[1], *after[1], *numbers))

        if parts == 1:
            return [launch(r.core.how, source, sink, length, 1, length)]
        inside, again = partial_side(r.partial), partial_side(r.partial, (parts * inner, inner, 1))
        return [
            launch(first_part(r.core.how), source, inside, length, parts, chunk),
            launch(r.core.how, again, sink, parts, 1, parts),
        ]


# --- any axes -----------------------------------------------------------------------------------------------------------


def _scattered(r: Reduced, which: bool) -> tuple[Shape, Walks, Walks]:
    """The reduced axes, or the kept ones, collapsed: sizes, and how loads before and after walk them."""
    runs = [run for run in r.runs if run.reduced == which]
    count = len(r.before.loads) + 1

    def joined(parts: list[list[Shape]], k: int) -> Shape:
        return tuple(s for strides in parts for s in strides[k])

    befores, afters = [run.before for run in runs], [run.after for run in runs]
    strides = [joined(befores, k) for k in range(count)]
    if not which:
        strides += [joined(afters, k) for k in range(len(r.after.loads))]
    shape, strides = collapse(tuple(size for run in runs for size in run.shape), strides)
    return shape, strides[:count], strides[count:]


@variant(*KINDS, id="cuda.reduce_naive.v2", takes=TAKES, masked=True)
class ReduceNaive:
    """One thread per result, which walks its elements alone and adds them up in f64: any axes, any strides, any broadcasts. Any number type.

    Parallel over results only; loads coalesce only if the last axis is kept.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _readable(region)
        r = reduced(region)
        for what, which in (("kept", False), ("reduced", True)):
            yield at_most(f"rank of the {what} axes", len(_scattered(r, which)[0]), MAX_RANK)
        strides = sum(len(run.shape) * len(run.before + run.after) for run in r.runs)
        pointers = len(r.before.loads + r.after.loads) + len(region.results)
        yield at_most("bytes of kernel parameters", 8 * (strides + pointers + 2 * MAX_RANK + 3), PARAMETERS)

    least = one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        r = reduced(region)
        return NumericClass(f"{r.core.how} in f64", r.length, "in order")

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        r = reduced(region)
        along = max(r.before.shape, default=1) > 1 and (len(r.before.shape) - 1) in r.core.axes
        lines = 0.0
        if along:
            walking = [load for load in r.before.loads if any(load.strides)]
            touched = sum(min(1.0, r.length * load.dtype.itemsize / LINE) for load in walking)
            lines = min(THREADS, r.after.numel) * r.length * touched * LINE_US
        return roofline(
            device, bytes=region.nbytes, flops=flops_of(r), efficiency=EFFICIENCY,
            memory_efficiency=0.75, blocks=cdiv(r.after.numel, THREADS), blocks_per_sm=RESIDENT, finish=lines,
            chain=max(0, r.length - NEAR) * ELEMENT_US if along else r.length * machine(device).trip_us / UNROLLED,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .reduce_body import naive

        r = reduced(region)
        (kept, kept_walks, after_walks), (inside, inside_walks, _) = _scattered(r, False), _scattered(r, True)
        before, before_args = side(r.before, [a + b for a, b in zip(kept_walks, inside_walks)])
        after, after_args = side(r.after, after_walks)
        body = naive(r.core.how, r.partial, before, after, len(kept), len(inside))
        sizes = tuple(map(Num, kept)), tuple(map(Num, inside))
        numbers = Num(r.after.numel), Num(r.length), Num(r.length, f32)
        args = (*before_args, *after_args, *sizes, *numbers)
        return [Launch(body, grid_for(r.after.numel), (THREADS,), args)]
