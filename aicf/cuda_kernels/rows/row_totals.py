"""Totals of a row, of what its threads have each: through a warp by shuffles, a block by shared memory, a cluster by that of its blocks.

Each total goes the same way in the same order, whatever comes first.
"""

from __future__ import annotations

from typing import Any

from ..dsl import cuda, device, uint32
from ..ptx import cluster_arrive, cluster_arrive_only, cluster_wait, in_block, shared_address, store_remote
from .row_elements import Rows, combine

WARP, EVERYONE = 32, 0xFFFFFFFF


def words(r: Rows) -> int:
    """Of shared memory, in all passes: each has places of its own, so that the next need not wait for this one's readers."""
    return max(1, sum(_words(r, p) for p in range(len(r.passes))))


def _words(r: Rows, p: int) -> int:
    return len(r.passes[p].reduces) * (r.block // WARP + (r.cluster if r.cluster > 1 else 0))


def gather(r: Rows) -> Any:
    """`gather()`: says that this block is there: others of its cluster write to its memory as soon as all have."""
    return cluster_arrive_only() if r.cluster > 1 else device(lambda: None)


def joiner(r: Rows, p: int) -> Any:
    """`join(totals, shared, thread, rank)`: totals of pass p in all of the row's threads."""
    hows, at = tuple(q.how for q in r.passes[p].reduces), sum(_words(r, q) for q in range(p))
    if not hows:
        return device(lambda totals, shared, thread, rank: ())
    if r.lanes <= WARP:
        narrow = _narrow(hows, r.lanes)
        return device(lambda totals, shared, thread, rank: narrow(totals))
    put, get = _putter(hows, at, r.block), _getter(hows, r.lanes // WARP, at, r.block // WARP)
    beyond = _in_cluster(r, p, hows, at + len(hows) * (r.block // WARP))
    lanes = r.lanes

    def join(totals, shared, thread, rank):
        put(totals, shared, thread)
        cuda.syncthreads()
        return beyond(get(shared, thread // lanes), shared, thread, rank)

    return device(join)


def _in_cluster(r: Rows, p: int, hows: tuple[str, ...], at: int) -> Any:
    """Each block writes its totals to all of its cluster, and then each adds up the same. Nobody's memory is written to any more when the last
    pass has synchronized, so that any block may leave then."""
    if r.cluster == 1:
        return device(lambda totals, shared, thread, rank: totals)
    first = all(not step.reduces for step in r.passes[:p])
    begun = cluster_wait() if first else device(lambda: None)
    address, give, count = shared_address(), _giver(len(hows), at, r.cluster), r.cluster
    arrive, wait, get = cluster_arrive(), cluster_wait(), _getter(hows, r.cluster, at, r.cluster)

    def beyond(totals, shared, thread, rank):
        begun()
        if thread < count:
            give(totals, address(shared), uint32(rank), uint32(thread))
        arrive()
        wait()
        return get(shared, 0)

    return device(beyond)


def _giver(many: int, at: int, cluster: int) -> Any:
    if not many:
        return device(lambda totals, address, rank, to: None)
    there, store, rest = in_block(), store_remote(), _giver(many - 1, at + cluster, cluster)

    def give(totals, address, rank, to):
        store(there(uint32(address + uint32(4) * (uint32(at) + rank)), to), totals[0])
        rest(totals[1:], address, rank, to)

    return device(give)


def _over_lanes(how: str, lanes: int) -> Any:
    """`whole(x)`: of the lanes of a warp that share a row, in each of them."""
    if lanes == 1:
        return device(lambda x: x)
    do, apart, rest = device(combine(how)[0]), lanes // 2, _over_lanes(how, lanes // 2)

    def whole(x):
        return rest(do(x, cuda.shfl_xor_sync(EVERYONE, x, apart)))

    return device(whole)


def _narrow(hows: tuple[str, ...], lanes: int) -> Any:
    if not hows:
        return device(lambda totals: ())
    within, rest = _over_lanes(hows[0], lanes), _narrow(hows[1:], lanes)
    return device(lambda totals: (within(totals[0]),) + rest(totals[1:]))


def _putter(hows: tuple[str, ...], at: int, block: int) -> Any:
    if not hows:
        return device(lambda totals, shared, thread: None)
    within, rest = _over_lanes(hows[0], WARP), _putter(hows[1:], at + block // WARP, block)

    def put(totals, shared, thread):
        x = within(totals[0])
        if thread % WARP == 0:
            shared[at + thread // WARP] = x
        rest(totals[1:], shared, thread)

    return device(put)


def _getter(hows: tuple[str, ...], parts: int, at: int, places: int) -> Any:
    """`get(shared, row)`: of each total its `parts`, which lie one after another, those of several rows in `places`."""
    if not hows:
        return device(lambda shared, row: ())
    do, rest = device(combine(hows[0])[0]), _getter(hows[1:], parts, at + places, places)

    def get(shared, row):
        begin = at + row * parts
        x = shared[begin]
        for w in range(1, parts):
            x = do(x, shared[begin + w])
        return (x,) + rest(shared, row)

    return device(get)
