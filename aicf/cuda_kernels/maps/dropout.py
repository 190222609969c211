"""Variants for dropout and its random state."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...ops.dropout import dropout_numbers
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, cdiv, contiguous, exact, one_op, variant
from ...rows import RegionSpec
from ...types import f32
from .elementwise import RESIDENT, THREADS, grid_for, map_constants

RUN = 4  # elements of one Philox counter
# Measured on an H200.
ACCESS = 0.82  # of the bandwidth
FLOPS = 60  # whose time an element's part of a counter takes
STATE_US = 0.25  # until a counter is there that comes from memory


def _vector(region: RegionSpec) -> bool:
    x, y = region.tensors[region.anchor.inputs[0]], region.results[0]
    return min(x.alignment, y.alignment) >= RUN * x.dtype.itemsize


@variant("dropout", id="cuda.dropout_philox.v1")
class DropoutPhilox:
    """Four elements per thread and step, from one Philox4x32-10 counter; in vector loads and stores where aligned.

    Parallel over groups of four. Bytes: x read once, y written once, no mask. Limit: memory, or for half types the
    integer multiplies: four a group and round.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        n = region.results[0].numel
        return roofline(
            device, bytes=region.nbytes, flops=FLOPS * n, efficiency=map_constants(device).efficiency,
            memory_efficiency=ACCESS,
            blocks=cdiv(n, RUN * THREADS), blocks_per_sm=RESIDENT[1], chain=machine(device).cache_trip_us + STATE_US,
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .dropout_body import dropout

        (y,) = region.results
        threshold, scale = dropout_numbers(region.attrs["rate"])
        x, rng = (In(region.inputs.index(i)) for i in region.anchor.inputs)
        args = (x, rng, Out(0), Num(y.numel), Num(threshold), Num(scale, f32), Num(region.attrs["layer"]))
        body = dropout(y.dtype, _vector(region))
        return [Launch(body, grid_for(cdiv(y.numel, RUN)), (THREADS,), args)]


@variant("rng_advance", id="cuda.rng_advance.v2")
class RngAdvance:
    """One thread adds one to a step, if that is valid."""

    numerics = exact

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return roofline(device, bytes=region.nbytes)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .dropout_body import rng_advance

        return [Launch(rng_advance, (1,), (1,), (In(0), In(1), Out(0)))]
