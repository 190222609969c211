"""Variants for ops that make or move elements without arithmetic; `copy` is elementwise, broadcasts are beside it."""

from __future__ import annotations

import numpy as np

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, roofline
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Num,
    Out,
    alone,
    at_most,
    contiguous,
    exact,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...rows.program import Load, Map, collapse
from ...types import DType, f32, i32, i64, rounded, row_major
from .elementwise import MAX_RANK, THREADS, flat_launch, grid_for


@variant("fill", id="cuda.fill.v1")
class Fill:
    """One value everywhere; any dtype. The value is an argument, so that one kernel serves all values.

    Parallel over elements. Bytes: the result, written once.
    """

    numerics = exact

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return roofline(device, bytes=region.nbytes, memory_efficiency=0.8)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .memory_body import fill

        (y,), value = region.results, region.attrs["value"]
        carrier = {DType.bool: i32, i32: i32, i64: i64}.get(y.dtype, f32)
        number = int(value) if carrier is not f32 else float(rounded(np.asarray(value), y.dtype))
        args = (Out(0), Num(number, carrier), Num(y.numel))
        return [Launch(fill(y.dtype), grid_for(y.numel), (THREADS,), args)]


@variant("reshape", id="cuda.reshape.v1")
class Reshape:
    """A copy of the elements in order, for when the plan could not let the result share the operand's memory."""

    numerics = alone

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return roofline(device, bytes=region.nbytes, memory_efficiency=0.8)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        (y,) = region.results
        return [flat_launch(_copy(y.dtype, (y.numel,)))]


@variant("copy", id="cuda.copy_strided.v1", priority=-1)
class CopyStrided:
    """One element per thread and step between any strides, of the operand and of the result, up to rank 6. Any dtype.

    Parallel over elements. Bytes: each element once, at worst a 32-byte sector for each; then index arithmetic.
    """

    numerics = alone

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield at_most("rank after collapsing", len(_walk(region)[0]), MAX_RANK)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        flops = 20 * len(_walk(region)[0]) * region.results[0].numel
        return roofline(device, bytes=region.nbytes, flops=flops, efficiency=0.5, memory_efficiency=0.5)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from ..tiles.index import walk_of
        from .memory_body import copy_strided

        (y,), (shape, (source, target)) = region.results, _walk(region)
        narrow = y.numel < 2**31
        walks = (walk_of(source), 0), (walk_of(target), 0)
        body = copy_strided(_copy(y.dtype, shape).expression, y.dtype, walks, narrow)
        sizes = tuple(Num(d, i32 if narrow else i64) for d in shape)
        given = tuple(Num(s) for s in (*source, *target) if s not in (0, 1))
        args = ((In(0),), (Out(0),), sizes, given, Num(y.numel))
        return [Launch(body, grid_for(y.numel), (THREADS,), args)]


def _copy(dtype: DType, shape: tuple[int, ...]) -> Map:
    """The only operand as the only result; no arithmetic."""
    return Map(shape, 0, (Load(0, dtype, row_major(shape)),), (), (dtype,), frozenset(), ((0, 0),))


def _walk(region: RegionSpec) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    (x,), (y,) = region.operands, region.results
    return collapse(y.shape, [x.stride, y.stride])
