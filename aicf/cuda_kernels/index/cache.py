"""The variant for writing to a KV cache."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, Reject, exact, one_op, variant
from ...rows import RegionSpec
from ...types import Shape, TensorDesc, numel, reshaped_strides
from ..maps.elementwise import THREADS, grid_for


def _strides(new: TensorDesc) -> Shape | None:
    """Of new rows: from one entry of the batch to the next, one head, one row, one element; None where no strides say it."""
    return reshaped_strides(new.shape, new.stride, (numel(new.shape[:-3]), *new.shape[-3:]))


@variant("cache_write", id="cuda.cache_write.v1", strided=True)
class CacheWriteElements:
    """A thread per new element; half of the blocks write keys, half values. Where results are not written over the caches these are copied as well.

    Parallel over the new rows, which are read where they lie: heads of a projection, say. Bytes: these, read once and written once.
    Limit: the launch, where few tokens are new.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        keys, values, k, v, starts = (region.tensors[t] for t in region.anchor.inputs)
        named = {
            "keys": keys,
            "values": values,
            "starts": starts,
            "new_keys": region.results[0],
            "new_values": region.results[1],
        }
        for name, t in named.items():
            if not t.contiguous:
                yield Reject(
                    "contiguous", f"{name} has strides {t.stride} for shape {t.shape}, needs row-major"
                )
        for name, t in (("k", k), ("v", v)):
            if _strides(t) is None:
                yield Reject(
                    "strides",
                    f"entries of {name}'s batch are apart by more than one stride: {t.stride} for {t.shape}",
                )

    least, numerics = one_launch, exact

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        _, _, k, v, _ = (region.tensors[t] for t in region.anchor.inputs)
        return roofline(
            device, bytes=2 * (k.nbytes + v.nbytes), blocks=2 * grid_for(max(k.numel, v.numel))[0], chain=2 * machine(device).cache_trip_us
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
        read = tuple(tuple(map(Num, _strides(new) or ())) for new in (k, v))
        args = (*pointers, Out(0), Out(1), tuple(map(Num, sizes)), *read)
        most = max(k.numel, v.numel)
        return [Launch(cache_write(keys.dtype, most < 2**32), (2 * grid_for(most)[0],), (THREADS,), args)]
