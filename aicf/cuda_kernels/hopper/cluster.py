"""Blocks of a cluster: how they begin together; and how those that share a tile divide k and exchange sums.

Each block gets the others' sums of its own part of the columns, by way of its shared memory, and finishes these.
Nobody waits before sending: a consumer's accumulators have slots in shared memory that nothing else uses, and a barrier there counts
their bytes. So there is one tile for each cluster, and no more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..dsl import cuda, device, uint32
from ..ptx import (
    barrier_init,
    cluster_arrive_only,
    cluster_rank,
    cluster_wait,
    expect,
    in_block,
    load_shared,
    send_remote,
    wait_phase,
)
from ..tiles.tile import each, mapped, permute
from .opening import block_sync
from .units import WARPGROUP

RUN = 4  # accumulators that are sent together
RUN_BYTES = (
    4 * RUN * WARPGROUP
)  # from one run of a thread's to its next: those of all threads lie side by side


def cluster_sync(blocks: int, share_tiles: bool) -> tuple[Any, Any, Any]:
    """Of a cluster of so many blocks: (`sync()`: barriers are made, and all who use them know; `join()`: other blocks too, of those that share a tile, who need
    each other at the end only; `rank()`): alone, or in a cluster.

    Arriving releases nothing: barriers are published already, and a release waits for all that the chip has under way.
    """
    nothing, arrive, wait = device(lambda: None), cluster_arrive_only(), cluster_wait()
    if blocks == 1:
        return block_sync, nothing, device(lambda: uint32(0))
    if share_tiles:

        def sync_block():
            arrive()
            cuda.syncthreads()

        return device(sync_block), wait, cluster_rank()

    def sync_cluster():
        arrive()
        wait()

    return device(sync_cluster), nothing, cluster_rank()


class Exchange(NamedTuple):
    """Sums that blocks of a cluster exchange, of tiles whose k they divide.

    splits      of k: blocks that share a tile
    consumers   warpgroups of each
    row_blocks  of 64 rows, that a consumer has
    columns     of a tile
    """

    splits: int
    consumers: int
    row_blocks: int
    columns: int

    @property
    def finished(self) -> int:
        """Sums that a thread finishes."""
        return self.row_blocks * self.columns // self.splits // 2

    @property
    def slot_bytes(self) -> int:
        """Of a consumer's sums for another block."""
        return 4 * WARPGROUP * self.finished

    @property
    def sent_bytes(self) -> int:
        """That a consumer gets from the other blocks."""
        return (self.splits - 1) * self.slot_bytes


def divider(cluster_split: int) -> Any:
    """`divide(k_tiles, split)`: of (the first K-tile, how many) those of a split: none, where there are fewer than splits."""
    if cluster_split == 1:
        return device(lambda k_tiles, split: k_tiles)

    def divide(k_tiles, split):
        begin, count = k_tiles
        first = uint32(uint32(count) * uint32(split) // uint32(cluster_split))
        last = uint32(uint32(count) * uint32(split + uint32(1)) // uint32(cluster_split))
        return uint32(begin + first), uint32(last - first)

    return device(divide)


def exchange_barriers(exchange: Exchange, at: int) -> Any:
    """`prepare(base)`: each consumer's barrier, from this offset on, and how many bytes it gets. By one thread, before the cluster synchronizes."""
    if exchange.splits == 1:
        return device(lambda base: None)
    init, announce, consumers, sent = barrier_init(), expect(), exchange.consumers, exchange.sent_bytes

    def prepare(base):
        for consumer in range(consumers):
            barrier = uint32(base + uint32(at + 8 * consumer))
            init(barrier, uint32(1))
            announce(barrier, uint32(sent))

    return device(prepare)


def gatherer(exchange: Exchange, slots_at: int, split_barriers_at: int) -> Any:
    """`gather(acc, base, group, member, split)`: of accumulators over a split of k, as `multiply_k_tiles` says, all of those of this
    block's columns: its own, and the others' in the order of their splits from its own on. The cluster has synchronized before. What the others send lies, and is counted, at these
    offsets."""
    if exchange.splits == 1:
        return device(lambda acc, base, group, member, split: acc)
    cluster_split, sent, slot_bytes = exchange.splits, exchange.sent_bytes, exchange.slot_bytes
    count = exchange.finished
    half, own_columns = exchange.columns // 2, exchange.columns // cluster_split // 2
    columns = tuple(
        tuple(block * half + p * own_columns + i for block in range(exchange.row_blocks) for i in range(own_columns))
        for p in range(cluster_split)
    )  # fmt: skip
    send, own = sender(columns, slot_bytes), chooser(columns)
    load, wait = load_shared(), wait_phase()

    def add_run(i, run, at):
        more = load(uint32(at + uint32(i // RUN * RUN_BYTES)))
        return run[0] + more[0], run[1] + more[1], run[2] + more[2], run[3] + more[3]

    add = mapped(count, RUN, add_run)

    def gather(acc, base, group, member, split):
        slots = uint32(base + uint32(slots_at) + uint32(group * sent) + uint32(member * 4 * RUN))
        barrier = uint32(base + uint32(split_barriers_at) + uint32(8 * group))
        send(acc, slots, barrier, split)
        total = own(acc, split)
        wait(barrier, uint32(0))
        for slot in range(cluster_split - 1):
            total = add(total, uint32(slots + uint32(slot * slot_bytes)))
        return total

    return device(gather)


def sender(columns: tuple[tuple[int, ...], ...], slot_bytes: int, to: int = 0) -> Any:
    """`send(acc, slots, barrier, split)`: to block `to` and those after it, but not to itself: sums of their columns. The slot says
    how many splits after the receiver's the sender's is."""
    cluster_split = len(columns)
    if to == cluster_split:
        return device(lambda acc, slots, barrier, split: None)
    take, there, send_run, others = (
        permute(columns[to]),
        in_block(),
        send_remote(),
        sender(columns, slot_bytes, to + 1),
    )

    def put_run(i, run, env):
        at, barrier = env
        send_run(uint32(at + uint32(i // RUN * RUN_BYTES)), run[0], run[1], run[2], run[3], barrier)

    put = each(len(columns[to]), RUN, put_run)

    def send(acc, slots, barrier, split):
        if split != to:
            slot = uint32(split + uint32(cluster_split - 1 - to)) % uint32(cluster_split)
            at = uint32(slots + uint32(slot * uint32(slot_bytes)))
            put(take(acc), (there(at, uint32(to)), there(barrier, uint32(to))))
        others(acc, slots, barrier, split)

    return device(send)


def chooser(columns: tuple[tuple[int, ...], ...]) -> Any:
    """`own(acc, split)`: a split's own columns."""
    first, *rest = columns
    take = permute(first)
    if not rest:
        return device(lambda acc, split: take(acc))
    others = chooser(tuple(rest))

    def own(acc, split):
        if split == 0:
            return take(acc)
        return others(acc, uint32(split - uint32(1)))

    return device(own)
