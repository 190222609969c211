"""Variants for scatter_add, and for a look at indices; gathers are maps (see elementwise.py)."""

from __future__ import annotations

from typing import NamedTuple

from ...device.faults import INDEX, INDEX_FROM_ZERO
from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, Reject, cdiv, contiguous, exact, one_op, variant
from ...rows import RegionSpec
from ...types import numel
from ..maps.elementwise import THREADS, grid_for
from ..rows.reduce import RESIDENT, lanes_for
from .labels import looking, looking_cost, looking_workspace, op_operands

SCAN_US = 0.8  # 256 indices of a block: a load from L2, and a barrier
ADD_US = 1.0  # as many of which one at least is for the block: each thread looks at all of them
NEAR = 4  # updates whose loads are under way at once
STORED_FLOPS = 26  # whose time a result takes to be stored, one by one: 131 million of bf16 in 249 us, 263 million of f32 in 402 us, on an H200


class ScatterProblem(NamedTuple):
    """The updates are (outer, many, inner), the result is (outer, size, inner)."""

    outer: int
    many: int
    size: int
    inner: int


def problem_of(region: RegionSpec) -> ScatterProblem:
    updates, indices = op_operands(region)
    attrs = region.attrs
    axis, along = attrs["axis"], attrs["along"]
    behind = axis + (1 if along else indices.rank)
    count = updates.shape[axis] if along else indices.numel
    return ScatterProblem(numel(updates.shape[:axis]), count, attrs["size"], numel(updates.shape[behind:]))


def pointers_of(region: RegionSpec):
    return (*(In(region.inputs.index(i)) for i in region.anchor.inputs), Out(0))


def _tiling(region: RegionSpec, p: ScatterProblem) -> tuple[int, int, int]:
    """(width of a tile, blocks along rows, tiles along columns)."""
    from .indexing_body import rows_of

    width = lanes_for(p.inner)
    return width, cdiv(p.size, rows_of(op_operands(region)[0].dtype, width)), cdiv(p.inner, width)


def checked(region: RegionSpec, along: bool) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    if region.attrs["along"] != along:
        yield Reject("along", f"along is {region.attrs['along']}, this kernel is for {along}")


@variant("scatter_add", id="cuda.scatter_add_rows.v2")
class ScatterAddRows:
    """A block holds 32 KB of sums, some rows of the result, and goes over all indices for the updates that are theirs. No
    atomics: a sum is one thread's, which adds in order. Any number type; floats in f64.

    Parallel over rows of the result. Bytes: updates and result once, and the indices once for each block, from L2. Limit: that scan,
    where there are many indices and few columns; and rows that very many updates are for, which come one after the other.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checked(region, False)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem_of(region)
        _, rows, tiles = _tiling(region, p)
        blocks = p.outer * rows * tiles
        updates, indices = op_operands(region)
        hits = p.many / max(rows, 1)  # for one block, if all rows are as likely
        scans = cdiv(p.many, THREADS)
        chain = scans * SCAN_US + min(scans, hits) * ADD_US + hits / NEAR * machine(device).cache_trip_us
        return roofline(
            device, bytes=region.nbytes, cached=blocks * indices.nbytes, flops=updates.numel + STORED_FLOPS * p.outer * p.size * p.inner, efficiency=0.25,
            memory_efficiency=0.7, blocks=blocks, blocks_per_sm=RESIDENT, chain=chain,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .indexing_body import scatter_add

        p = problem_of(region)
        width, rows, tiles = _tiling(region, p)
        updates, indices = op_operands(region)
        size = p.size if p.outer else 0
        numbers = Num(p.many), Num(size), Num(p.inner), Num(max(rows, 1)), Num(max(tiles, 1))
        body, grid = scatter_add(updates.dtype, indices.dtype, width), (max(1, p.outer * rows * tiles),)
        return [Launch(body, grid, (THREADS,), (*pointers_of(region), *numbers))]


@variant("scatter_add", id="cuda.scatter_add_along.v2")
class ScatterAddAlong:
    """One thread per element of the result, which goes over all indices of its line and adds the updates that are its own, floats in f64.

    Parallel over the result. Limit: as many loads of an index for each element as a line has indices, from a cache: right where
    these are few, as where one class of each row was picked.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checked(region, True)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem_of(region)
        results = p.outer * p.size * p.inner
        indices = op_operands(region)[1]
        return roofline(
            device, bytes=region.nbytes, cached=results * p.many * indices.dtype.itemsize, flops=4 * results * p.many,
            efficiency=0.25, memory_efficiency=0.75, blocks=cdiv(results, THREADS), blocks_per_sm=RESIDENT,
            chain=p.many / NEAR * machine(device).cache_trip_us,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .indexing_body import scatter_add_along

        p = problem_of(region)
        updates, indices = op_operands(region)
        results = p.outer * p.size * p.inner
        numbers = Num(p.many), Num(p.size), Num(p.inner), Num(results)
        body = scatter_add_along(updates.dtype, indices.dtype)
        return [Launch(body, grid_for(results), (THREADS,), (*pointers_of(region), *numbers))]


@variant("check_indices", id="cuda.check_indices.v1")
class CheckIndices:
    """As check_labels: four indices per thread and step, trees in shared memory; a second launch for more than a block's worth."""

    numerics = exact

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return looking_cost(region, device)

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return looking_workspace(region)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        kind = INDEX if region.attrs["negative"] else INDEX_FROM_ZERO
        return looking(region, (Out(0), Out(1)), region.attrs["size"], kind, indices=True)
