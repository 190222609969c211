"""The tensor memory accelerator: a thread asks for a box of a tensor in global memory, an engine copies it to or from shared
memory. PTX ISA, chapter "Data Movement and Conversion Instructions", sections "Asynchronous copy" and "Tensor"; sm_90.

A tensor is described by a tensor map: 128 bytes in global memory, of which kernels get the address, `u64`. Coordinates are
of elements, the contiguous dimension's first, one for each of `rank` dimensions, 1 to 5; they may lie outside: there loads
bring zeros, which count as bytes that arrived, and stores write nothing. The first is a multiple of 16 bytes, and those of stores
are not negative: all others are illegal instructions, as seen on an H200. A box lies at a multiple of 128 bytes, swizzled as its
map says: over 1024, 512 or 256 bytes of addresses.
"""

from __future__ import annotations

from typing import Any

from ..dsl import deferred, types
from .assemble import instruction


@deferred
def prefetch_map() -> Any:
    """`prefetch(map)`: the descriptor, into its cache. `prefetch.tensormap`."""
    return instruction("prefetch.tensormap [$0];", types.uint64)


def _coordinates(first: int, rank: int) -> str:
    """Coordinates, from argument `first` on."""
    assert 1 <= rank <= 5
    return "{" + ", ".join(f"${first + i}" for i in range(rank)) + "}"


@deferred
def load_box(rank: int = 2) -> Any:
    """`load(to, map, barrier, x, y, …)`: a box to shared memory; its bytes arrive at the mbarrier.
    `cp.async.bulk.tensor.shared::cluster.global`."""
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {_coordinates(3, rank)}], [$2];"
    )
    return instruction(text, types.uint32, types.uint64, types.uint32, *[types.int32] * rank)


@deferred
def multicast_box(blocks: int, rank: int = 2) -> Any:
    """`load(to, map, barrier, x, y, …)`: the same box to the same place in the first `blocks` blocks of the cluster, and its
    bytes to the barrier in the same place of each: one read of L2 for all.
    `cp.async.bulk.tensor.shared::cluster.global.multicast::cluster`."""
    text = (
        f"{{\n.reg .b16 blocks;\nmov.b16 blocks, {2**blocks - 1};\n"
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        f"[$0], [$1, {_coordinates(3, rank)}], [$2], blocks;\n}}"
    )
    return instruction(text, types.uint32, types.uint64, types.uint32, *[types.int32] * rank)


@deferred
def load_windows(axes: int) -> Any:
    """`load(to, map, barrier, c, x, …, n, dx, …)`: channels from c on of as many windows as the map's box has, from the one whose first element is at
    (x, …) of image n; of each its element (dx, …) further. Windows follow each other along x, then along the other axes, then from image
    to image, between the corners that the map has; elements outside of the tensor are zeros, and count as bytes that arrived. `axes` are
    the spatial ones, 1 to 3; dx, … are below 256. Section "im2col mode". `cp.async.bulk.tensor.shared::cluster.global.im2col`."""
    assert 1 <= axes <= 3
    rank = axes + 2
    names = [f"further{i}" for i in range(axes)]
    text = (
        "{\n.reg .b16 " + ", ".join(names) + ";\n"
        + "".join(f"cvt.u16.u32 {name}, ${3 + rank + i};\n" for i, name in enumerate(names))
        + f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        f"[$0], [$1, {_coordinates(3, rank)}], [$2], {{{', '.join(names)}}};\n}}"
    )  # fmt: skip
    return instruction(text, types.uint32, types.uint64, types.uint32, *[types.int32] * (rank + axes))


@deferred
def prefetch_box(rank: int = 2) -> Any:
    """`prefetch(map, x, y, …)`: a box into L2. `cp.async.bulk.prefetch.tensor`."""
    text = f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global.tile [$0, {_coordinates(1, rank)}];"
    return instruction(text, types.uint64, *[types.int32] * rank)


@deferred
def store_box(rank: int = 2) -> Any:
    """`store(map, source, x, y, …)`: a box from shared memory; no coordinate is negative. See `commit_stores`.
    `cp.async.bulk.tensor.global.shared::cta`."""
    text = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group [$0, {_coordinates(2, rank)}], [$1];"
    return instruction(text, types.uint64, types.uint32, *[types.int32] * rank)


@deferred
def add_box(rank: int = 2) -> Any:
    """`add(map, source, x, y, …)`: a box from shared memory, added to what is there, element by element, in any order of those
    who add; no coordinate is negative. The map says what an element is: f32, f16 and bf16 are rounded to nearest even. See
    `commit_stores`. `cp.reduce.async.bulk.tensor.add`."""
    text = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.bulk_group [$0, {_coordinates(2, rank)}], [$1];"
    return instruction(text, types.uint64, types.uint32, *[types.int32] * rank)


@deferred
def load_bytes() -> Any:
    """`load(to, pointer, nbytes, barrier)`: neighbours in global memory to shared memory, without a map; they arrive at the
    mbarrier. Both addresses and nbytes are multiples of 16. `cp.async.bulk.shared::cluster.global`."""
    text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    return instruction(text, types.uint32, types.uint64, types.uint32, types.uint32)


@deferred
def store_bytes() -> Any:
    """`store(pointer, source, nbytes)`: the other way; see `commit_stores`. `cp.async.bulk.global.shared::cta`."""
    text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
    return instruction(text, types.uint64, types.uint32, types.uint32)


@deferred
def add_bytes() -> Any:
    """`add(pointer, source, nbytes)`: f32 from shared memory, added to those in global memory, in any order of those who add; as
    `store_bytes`. `cp.reduce.async.bulk.add`."""
    text = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;"
    return instruction(text, types.uint64, types.uint32, types.uint32)


@deferred
def commit_stores() -> Any:
    """`commit()`: this thread's stores since the last one, as a group. `cp.async.bulk.commit_group`."""
    return instruction("cp.async.bulk.commit_group;")


@deferred
def wait_stores_read(pending: int) -> Any:
    """`wait()`: until at most `pending` of this thread's groups still read shared memory. `cp.async.bulk.wait_group.read`."""
    return instruction(f"cp.async.bulk.wait_group.read {pending};")


@deferred
def wait_stores(pending: int = 0) -> Any:
    """`wait()`: until all of this thread's groups but the last `pending` are done. `cp.async.bulk.wait_group`."""
    return instruction(f"cp.async.bulk.wait_group {pending};")


@deferred
def fence_async() -> Any:
    """`fence()`: this thread's reads and writes of shared memory, before what the engines do there afterwards.
    `fence.proxy.async`."""
    return instruction("fence.proxy.async.shared::cta;")


@deferred
def fence_async_all() -> Any:
    """`fence()`: the same of global memory too: before the engines read there what threads wrote. `fence.proxy.async`."""
    return instruction("fence.proxy.async;")
