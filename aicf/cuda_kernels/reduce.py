"""Variants for reduce_sum, reduce_mean and reduce_max.

Neighbouring axes that are all reduced, or all kept, are one axis of a dense tensor; after merging them most reductions
are over rows (the reduced axis is the last) or over columns (the last axis is kept).
"""

from __future__ import annotations

from typing import NamedTuple

from ..device.spec import DeviceSpec
from ..registry.cost import Cost, roofline
from ..registry.variant import (
    Arg,
    Checks,
    In,
    Launch,
    Num,
    Out,
    Reject,
    Work,
    at_most,
    cdiv,
    contiguous,
    one_op,
    variant,
)  # fmt: skip
from ..rows import RegionSpec
from ..types import DType, f32, numel
from .elementwise import MAX_RANK, THREADS, collapse, grid_for

KINDS = ("reduce_sum", "reduce_mean", "reduce_max")


class Split(NamedTuple):
    """A reduction of `length` elements as `parts` segments of `chunk`, the last one shorter."""

    parts: int
    chunk: int


def split(length: int, blocks: int, per_block: int, device: DeviceSpec) -> Split:
    """Enough segments for four blocks per multiprocessor, each at least eight turns of a block; one if that suffices."""
    wanted = min(cdiv(4 * device.sms, max(blocks, 1)), length // (8 * per_block))
    if blocks >= 2 * device.sms or wanted < 2:
        return Split(1, length)
    chunk = cdiv(length, wanted)
    return Split(cdiv(length, chunk), chunk)


def reduced_axes(region: RegionSpec) -> tuple[int, ...]:
    """Non-negative; () in the attributes stands for all."""
    rank = region.operands[0].rank
    return tuple(a % rank for a in region.attrs["axes"]) or tuple(range(rank))


def merged(region: RegionSpec) -> list[tuple[int, bool]]:
    """The operand's axes as (size, reduced?), sizes of 1 dropped and neighbours of one sort merged."""
    groups: list[tuple[int, bool]] = []
    axes = reduced_axes(region)
    for axis, size in enumerate(region.operands[0].shape):
        if size == 1:
            continue
        if groups and groups[-1][1] == (axis in axes):
            groups[-1] = (groups[-1][0] * size, groups[-1][1])
        else:
            groups.append((size, axis in axes))
    return groups


def _length(region: RegionSpec) -> int:
    return numel(tuple(region.operands[0].shape[a] for a in reduced_axes(region)))


def _op(region: RegionSpec) -> tuple[str, bool]:
    """sum or max, and whether the sum is divided by the count at last."""
    return ("max" if region.kind.name == "reduce_max" else "sum"), region.kind.name == "reduce_mean"


def _partial(region: RegionSpec) -> DType:
    return region.operands[0].dtype.compute


def _count(region: RegionSpec) -> Num:
    return Num(_length(region), f32)


def _no_bool(region: RegionSpec) -> Reject | None:
    dtype = region.operands[0].dtype
    return Reject("dtype", "operand 0 is bool, needs numbers") if dtype is DType.bool else None


# --- rows ---------------------------------------------------------------------------------------------------------------


def lanes_for(length: int) -> int:
    """Threads per row: a power of two up to a whole block, so that short rows share one."""
    return min(THREADS, 1 << max(0, (length - 1).bit_length()))


def _rows(region: RegionSpec, device: DeviceSpec) -> tuple[int, int, int, Split]:
    rows, length = region.results[0].numel, _length(region)
    lanes = lanes_for(length)
    return rows, length, lanes, split(length, cdiv(rows * lanes, THREADS), lanes, device)


@variant(*KINDS, id="cuda.reduce_rows.v1")
class ReduceRows:
    """The last axes are reduced: 1 to 256 threads per row, which is split when rows are few. Any number type.

    Parallel over rows and along them. Bytes: the operand once; f32 accumulation in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield _no_bool(region)
        yield contiguous(region)
        if [reduced for _, reduced in merged(region)] not in ([], [True], [False], [False, True]):
            yield Reject(
                "axes", f"axes {reduced_axes(region)} of {region.operands[0].shape} are not the last ones"
            )

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        rows, length, lanes, parts = _rows(region, device)
        blocks = cdiv(rows * parts.parts * lanes, THREADS)
        return roofline(
            device, bytes=region.nbytes, flops=rows * length, efficiency=0.25, memory_efficiency=0.8, blocks=blocks,
            blocks_per_sm=8, launches=1 if parts.parts == 1 else 2,
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        rows, _, _, parts = _rows(region, device)
        return rows * parts.parts * _partial(region).itemsize if parts.parts > 1 else 0

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.reduce import rows as body

        rows, length, lanes, (parts, chunk) = _rows(region, device)
        (op, divide), dtype, partial = _op(region), region.operands[0].dtype, _partial(region)

        def launch(source: Arg, target: Arg, types: tuple[DType, DType], lanes: int, last: bool, segments: int,
                   length: int, splits: int, chunk: int) -> Launch:  # fmt: skip
            kernel = body(op, *types, lanes, divide and last)
            args = (source, target, Num(segments), Num(length), Num(splits), Num(chunk), _count(region))
            return Launch(kernel, grid_for(segments * lanes, device), (THREADS,), args)

        if parts == 1:
            return [launch(In(0), Out(0), (dtype, dtype), lanes, True, rows, length, 1, length)]
        work = Work(0, partial)
        return [
            launch(In(0), work, (dtype, partial), lanes, False, rows * parts, length, parts, chunk),
            launch(work, Out(0), (partial, dtype), lanes_for(parts), True, rows, parts, 1, parts),
        ]


# --- columns ------------------------------------------------------------------------------------------------------------


def _columns(region: RegionSpec, device: DeviceSpec) -> tuple[int, int, int, int, Split]:
    sizes = [size for size, _ in merged(region)]
    outer, length, inner = sizes if len(sizes) == 3 else (1, *sizes)
    width = min(32, lanes_for(inner))
    return outer, length, inner, width, split(length, outer * cdiv(inner, width), THREADS // width, device)


@variant(*KINDS, id="cuda.reduce_columns.v1")
class ReduceColumns:
    """The last axes are kept, those before them reduced: neighbouring threads read neighbouring columns. Any number type.

    Parallel over columns, over the axes before the reduced ones, and along the reduced ones in 8 or more lines per block;
    a long reduction with few columns is split. Bytes: the operand once; f32 accumulation in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield _no_bool(region)
        yield contiguous(region)
        if [reduced for _, reduced in merged(region)] not in ([True, False], [False, True, False]):
            yield Reject(
                "axes",
                f"axes {reduced_axes(region)} of {region.operands[0].shape} are not one run before others",
            )

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        outer, length, inner, width, parts = _columns(region, device)
        blocks = outer * cdiv(inner, width) * parts.parts
        return roofline(
            device, bytes=region.nbytes, flops=outer * length * inner, efficiency=0.25, memory_efficiency=0.75,
            blocks=blocks, blocks_per_sm=8, launches=1 if parts.parts == 1 else 2,
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        outer, _, inner, _, parts = _columns(region, device)
        return outer * parts.parts * inner * _partial(region).itemsize if parts.parts > 1 else 0

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.reduce import columns as body

        outer, length, inner, width, (parts, chunk) = _columns(region, device)
        (op, divide), dtype, partial = _op(region), region.operands[0].dtype, _partial(region)
        across = cdiv(inner, width)

        def launch(source: Arg, target: Arg, types: tuple[DType, DType], last: bool, length: int, splits: int,
                   chunk: int) -> Launch:  # fmt: skip
            kernel, tiles = body(op, *types, width, divide and last), outer * splits * across
            args = (
                source,
                target,
                Num(tiles),
                Num(length),
                Num(inner),
                Num(splits),
                Num(chunk),
                _count(region),
            )
            return Launch(kernel, grid_for(tiles * THREADS, device), (THREADS,), args)

        if parts == 1:
            return [launch(In(0), Out(0), (dtype, dtype), True, length, 1, length)]
        work = Work(0, partial)
        return [
            launch(In(0), work, (dtype, partial), False, length, parts, chunk),
            launch(work, Out(0), (partial, dtype), True, parts, 1, parts),
        ]


# --- any axes -----------------------------------------------------------------------------------------------------------


def _walks(region: RegionSpec):
    """Collapsed (shape, strides) of the kept and of the reduced axes of the operand."""
    x, axes = region.operands[0], reduced_axes(region)

    def walk(chosen: list[int]):
        shape, (steps,) = collapse(tuple(x.shape[a] for a in chosen), [tuple(x.stride[a] for a in chosen)])
        return shape, steps

    return walk([a for a in range(x.rank) if a not in axes]), walk(list(axes))


@variant(*KINDS, id="cuda.reduce_naive.v1")
class ReduceNaive:
    """One thread per result, which walks its elements alone: any axes, any strides. Any number type.

    Parallel over results only; loads coalesce only if the last axis is kept.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield _no_bool(region)
        if not region.results[0].contiguous:
            yield Reject("contiguous", f"result 0 is {region.results[0]}, needs row-major")
        for what, (shape, _) in zip(("kept", "reduced"), _walks(region)):
            yield at_most(f"rank of the {what} axes", len(shape), MAX_RANK)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        results, length = region.results[0].numel, _length(region)
        full = min(1.0, results / (device.sms * 2048))  # threads in flight, as a share of what the chip holds
        cost = roofline(device, bytes=region.nbytes, memory_efficiency=max(0.15 * full, 1e-4))
        return cost.plus(**{"one element after another": 0.02 * length})

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.reduce import naive

        (kept, kept_steps), (reduced, reduced_steps) = _walks(region)
        (op, divide), dtype = _op(region), region.operands[0].dtype
        body = naive(op, dtype, dtype, len(kept), len(reduced), divide)
        walks = tuple(tuple(map(Num, group)) for group in (kept, kept_steps, reduced, reduced_steps))
        results = region.results[0].numel
        args = (In(0), Out(0), *walks, Num(results), Num(_length(region)), _count(region))
        return [Launch(body, grid_for(results, device), (THREADS,), args)]
