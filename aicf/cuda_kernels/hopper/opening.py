"""How a block of warpgroups with roles begins: barriers, tensor maps, and the wait for what ran before."""

from __future__ import annotations

from typing import Any

from ..dsl import cuda, device, uint32
from ..ptx import prefetch_map, warp_uniform
from .entry import begin
from .shared_plan import aligned_base
from .units import WARPGROUP

block_sync = device(lambda: cuda.syncthreads())


def opening(init: Any, sync: Any = block_sync) -> Any:
    """`open(maps)`: (base, thread, warpgroup): where shared memory begins, and who this is; as u32.

    init  `init(base)` makes all barriers, and publishes them: see `SharedPlan.init`
    sync  `sync()`: all who use them know; the block, or a cluster

    What came before this launch is done and seen. The first warpgroup's first thread, the producer, prefetches the maps' descriptors while
    the second's makes barriers.
    """
    base_of, prefetch, uniform, wait_before = aligned_base(), prefetch_map(), warp_uniform(), begin()

    def open(maps):
        base, thread = base_of(), uint32(cuda.threadIdx.x)
        # once the compiler knows that a warp is of one warpgroup, main loops are in uniform registers, and half as long
        warpgroup = uint32(uniform(uint32(thread // uint32(WARPGROUP))))
        if thread == WARPGROUP:
            init(base)
        if thread == 0:
            for map in maps:
                prefetch(map)
        sync()
        wait_before()
        return base, thread, warpgroup

    return device(open)
