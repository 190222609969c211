"""The variant for writing to a KV cache."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import CACHE_TRIP_US, Cost, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, cdiv, contiguous, one_op, variant
from ...rows import RegionSpec
from ...types import numel
from ..maps.elementwise import THREADS, grid_for


@variant("cache_write", id="cuda.cache_write.v1")
class CacheWriteElements:
    """A thread per new element, of keys and of values at once. Where results are not written over the caches these are copied as well.

    Parallel over the new rows. Bytes: these, read once and written once. Limit: the launch, where few tokens are new.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        _, _, k, v, _ = (region.tensors[t] for t in region.anchor.inputs)
        return roofline(
            device, bytes=2 * (k.nbytes + v.nbytes), blocks=max(1, cdiv(max(k.numel, v.numel), THREADS)), chain=2 * CACHE_TRIP_US
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .cache_body import cache_write

        keys, values, k, v, _ = (region.tensors[t] for t in region.anchor.inputs)
        pointers = tuple(In(region.inputs.index(t)) for t in region.anchor.inputs)
        sizes = (
            numel(keys.shape[:-2]),
            keys.shape[-3],
            keys.shape[-2],
            k.shape[-2],
            keys.shape[-1],
            values.shape[-1],
        )
        args = (*pointers, Out(0), Out(1), tuple(map(Num, sizes)))
        return [Launch(cache_write(keys.dtype), grid_for(max(k.numel, v.numel)), (THREADS,), args)]
