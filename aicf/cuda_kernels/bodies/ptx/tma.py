"""The tensor memory accelerator: a thread asks for a box of a matrix in global memory, an engine copies it to or from shared
memory. PTX ISA, chapter "Data Movement and Conversion Instructions", sections "Asynchronous copy" and "Tensor"; sm_90.

A matrix is described by a tensor map: 128 bytes in global memory, of which kernels get the address, `u64`. Coordinates are
of elements, the contiguous dimension's first; they may lie outside: there loads bring zeros, which count as bytes that
arrived, and stores write nothing.
"""

from __future__ import annotations

from typing import Any

from ...dsl import deferred, types
from .assemble import instruction


@deferred
def prefetch_map() -> Any:
    """`prefetch(map)`: the descriptor, into its cache. `prefetch.tensormap`."""
    return instruction("prefetch.tensormap [$0];", types.uint64)


@deferred
def load_box() -> Any:
    """`load(to, map, barrier, x, y)`: a box to shared memory; its bytes arrive at the mbarrier.
    `cp.async.bulk.tensor.2d.shared::cluster.global`."""
    text = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$0], [$1, {$3, $4}], [$2];"
    return instruction(text, types.uint32, types.uint64, types.uint32, types.int32, types.int32)


@deferred
def multicast_box(blocks: int) -> Any:
    """`load(to, map, barrier, x, y)`: the same box to the same place in the first `blocks` blocks of the cluster, and its
    bytes to the barrier in the same place of each. `….multicast::cluster`: one read of L2 for all."""
    text = (
        "{\n.reg .b16 blocks;\nmov.b16 blocks, %d;\ncp.async.bulk.tensor.2d.shared::cluster.global.tile"
        ".mbarrier::complete_tx::bytes.multicast::cluster [$0], [$1, {$3, $4}], [$2], blocks;\n}"
    )
    return instruction(
        text % (2**blocks - 1), types.uint32, types.uint64, types.uint32, types.int32, types.int32
    )


@deferred
def store_box() -> Any:
    """`store(map, source, x, y)`: a box from shared memory; see `commit_stores`. `cp.async.bulk.tensor.2d.global.shared::cta`."""
    text = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [$0, {$2, $3}], [$1];"
    return instruction(text, types.uint64, types.uint32, types.int32, types.int32)


@deferred
def commit_stores() -> Any:
    """`commit()`: this thread's stores since the last one, as a group. `cp.async.bulk.commit_group`."""
    return instruction("cp.async.bulk.commit_group;")


@deferred
def wait_stores_read(pending: int) -> Any:
    """`wait()`: until at most `pending` of this thread's groups still read shared memory. `cp.async.bulk.wait_group.read`."""
    return instruction(f"cp.async.bulk.wait_group.read {pending};")


@deferred
def wait_stores() -> Any:
    """`wait()`: until all of this thread's stores are done. `cp.async.bulk.wait_group`."""
    return instruction("cp.async.bulk.wait_group 0;")


@deferred
def fence_async() -> Any:
    """`fence()`: this thread's reads and writes of shared memory, before what the engines do there afterwards.
    `fence.proxy.async`."""
    return instruction("fence.proxy.async.shared::cta;")
