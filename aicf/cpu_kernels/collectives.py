"""Collectives of the CPU device: what its communicator does."""

from __future__ import annotations

from ..registry.cost import collective
from ..registry.variant import Collective, at_least, contiguous, one_op, variant


@variant("all_reduce", id="cpu.all_reduce.v1")
class HostAllReduce:
    """Added up in the order of the ranks, in f32 for halves: the same bits on all ranks and in every run. Limit: the network."""

    def accepts(region):
        yield one_op(region)
        yield at_least("ranks", region.attrs["ranks"], 2)
        yield contiguous(region)

    def cost(region, device):
        return collective(device, "all_reduce", region.results[0].nbytes, region.attrs["ranks"])

    def build(region, device):
        return Collective("all_reduce", region.attrs["ranks"], mean=region.attrs["mean"])


@variant("broadcast_from", id="cpu.broadcast_from.v1")
class HostBroadcast:
    """One rank's bytes on all others. Limit: the network."""

    def accepts(region):
        yield one_op(region)
        yield at_least("ranks", region.attrs["ranks"], 2)
        yield contiguous(region)

    def cost(region, device):
        return collective(device, "broadcast", region.results[0].nbytes, region.attrs["ranks"])

    def build(region, device):
        return Collective("broadcast", region.attrs["ranks"], root=region.attrs["root"])
