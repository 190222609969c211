"""Variants for ops that make or move elements without arithmetic; `copy` is elementwise, broadcasts are beside it."""

from __future__ import annotations

from ..device.spec import DeviceSpec
from ..registry.cost import Cost, roofline
from ..registry.variant import Checks, Launch, Num, Out, contiguous, one_op, variant
from ..rows import RegionSpec
from ..types import DType, f32, i32, i64
from .elementwise import THREADS, flat_launch, grid_for, identity


@variant("fill", id="cuda.fill.v1")
class Fill:
    """One value everywhere; any dtype. The value is an argument, so that one kernel serves all values.

    Parallel over elements. Bytes: the result, written once.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return roofline(device, bytes=region.nbytes, memory_efficiency=0.8)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.memory import fill

        (y,), value = region.results, region.attrs["value"]
        carrier = {DType.bool: i32, i32: i32, i64: i64}.get(y.dtype, f32)
        number = bool(value) if y.dtype is DType.bool else value
        args = (Out(0), Num(int(number) if carrier is not f32 else number, carrier), Num(y.numel))
        return [Launch(fill(y.dtype), grid_for(y.numel, device), (THREADS,), args)]


@variant("reshape", id="cuda.reshape.v1")
class Reshape:
    """A copy of the elements in order, for when the plan could not let the result share the operand's memory."""

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return roofline(device, bytes=region.nbytes, memory_efficiency=0.8)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .engine import typed_scalar

        scalar = typed_scalar(identity, region.results[0].dtype.compute)
        return [flat_launch("reshape", scalar, region, device)]
