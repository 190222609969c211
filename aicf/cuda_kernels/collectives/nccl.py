"""Collectives of CUDA devices: NCCL's, on a stream of their own, beside the kernels of the run."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, collective
from ...registry.variant import Checks, Collective, at_least, contiguous, dtype, one_op, variant
from ...rows import RegionSpec
from ...types import bf16, f16, f32, f64, i8, i32, i64, u8, u32, u64

TYPES = (f32, f16, bf16, f64, i8, u8, i32, u32, i64, u64)


@variant("all_reduce", id="cuda.all_reduce_nccl.v1", dtypes=TYPES)
class NcclAllReduce:
    """NCCL's ring or tree over NVLink and the network. Bytes over each link: twice the tensor, but for one part in `ranks`."""

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield at_least("ranks", region.attrs["ranks"], 2)
        yield contiguous(region)
        yield dtype(region, *TYPES)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return collective(device, "all_reduce", region.results[0].nbytes, region.attrs["ranks"])

    def build(region: RegionSpec, device: DeviceSpec) -> Collective:
        return Collective("all_reduce", region.attrs["ranks"], mean=region.attrs["mean"])


@variant("broadcast_from", id="cuda.broadcast_nccl.v1", dtypes=TYPES)
class NcclBroadcast:
    """NCCL's broadcast: a pipeline from rank to rank. Bytes over each link: the tensor."""

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield at_least("ranks", region.attrs["ranks"], 2)
        yield contiguous(region)
        yield dtype(region, *TYPES)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return collective(device, "broadcast", region.results[0].nbytes, region.attrs["ranks"])

    def build(region: RegionSpec, device: DeviceSpec) -> Collective:
        return Collective("broadcast", region.attrs["ranks"], root=region.attrs["root"])
