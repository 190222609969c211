"""How attention_grad on Hopper divides its work: what a block has in shared memory, and which tiles of queries belong to a tile of keys."""

from __future__ import annotations

from typing import Any

from ..dsl import device, int32, uint32
from ..hopper.shared_plan import SharedPlan
from ..hopper.units import ATOM, WARPGROUP
from ..ptx import load_shared_word, wait_phase
from .wgmma_tiles import KEYS, WgmmaTile

CONSUMERS = 2
THREADS = WARPGROUP * (1 + CONSUMERS)
REGISTERS = 40, 232
BOTH, WITH_ADDER = 2 * WARPGROUP, WARPGROUP + 32  # threads at barriers
# Of the block's barriers: of both consumers; and of each, sums of dQ are there, they may be overwritten, its own.
TOGETHER, THERE, FREE, OWN = 1, 2, 4, 6
GROUP = 16  # queries, whose statistics lie side by side

# `sizes` are those of wgmma_tiles.py, and then: tiles of keys of a head, heads of keys, how many of these are taken together, tiles of keys in all, tiles of
# queries of a head, heads of keys of a batch entry. What can be said beforehand takes no registers.


class GradientPlan:
    """Where a block has what. A consumer's results leave by way of dS, or, if these are too wide, of K and V."""

    def __init__(self, tile: WgmmaTile) -> None:
        self.queries, self.stages, self.wide, d = tile.queries, tile.stages, tile.d > ATOM, tile.d
        self.k_bytes, self.q_bytes = KEYS * d * 2, self.queries * d * 2
        self.ds_bytes, self.sums_bytes = self.queries * KEYS * 2, self.q_bytes  # of both consumers; of each
        self.stats_bytes = 2 * self.queries * 4
        shared, stages = SharedPlan(), tile.stages
        self.k_ring, self.v_ring = (
            shared.ring(1, CONSUMERS + 1),
            shared.ring(1, CONSUMERS),
        )  # the adder reads K's tile number
        self.q_ring, self.o_ring = shared.ring(stages, CONSUMERS), shared.ring(stages, CONSUMERS)
        self.k, self.v = shared.region(self.k_bytes), shared.region(self.k_bytes)
        self.q, self.o = shared.region(stages * self.q_bytes), shared.region(stages * self.q_bytes)
        self.ds, self.sums = shared.region(stages * self.ds_bytes), shared.region(CONSUMERS * self.sums_bytes)
        self.stats = shared.region(stages * self.stats_bytes)
        self.numbers = shared.region(2 * 4, 8)  # of two tiles
        self.shared, self.nbytes = shared, shared.nbytes

    @property
    def barriers(self) -> tuple[int, ...]:
        """Full and empty of K, V, Q and dO."""
        rings = self.k_ring, self.v_ring, self.q_ring, self.o_ring
        return tuple(at for ring in rings for at in (ring.full, ring.empty))


def walk_of() -> Any:
    """`of(sizes)`: tiles of keys of a head, heads of keys, how many of these are taken together, tiles in all."""
    return device(lambda sizes: (uint32(sizes[8]), uint32(sizes[9]), uint32(sizes[10]), uint32(sizes[11])))


def query_tiles(queries: int) -> Any:
    """`of(key, sizes)`: the first tile of queries that attend to some of 128 keys from this one on, and how many there are: one at least."""

    def of(key, sizes):
        offset = int32(sizes[1] - sizes[0])
        low = int32(uint32(max(int32(key - offset - sizes[6]), 0)) // uint32(queries))
        high = int32(uint32(key + KEYS - 1 - offset + sizes[7]) // uint32(queries))
        return low, int32(min(high, sizes[12] - 1) - low + 1)

    return device(of)


def first_key_tile(queries: int) -> Any:
    """`of(tile, sizes)`: the first tile of keys whose `query_tiles` have this one."""

    def of(tile, sizes):
        return int32(uint32(max(int32(tile * queries + sizes[1] - sizes[0] - sizes[7]), 0)) // uint32(KEYS))

    return device(of)


def taker(plan: GradientPlan) -> Any:
    """`take(base, parity)`: the number of the block's next tile, when its K is on the way: the producer has left it beside K, two in turns."""
    wait, read, full, numbers = wait_phase(), load_shared_word(), plan.k_ring.full, plan.numbers

    def take(base, parity):
        wait(uint32(base + uint32(full)), parity)
        return read(uint32(base + uint32(numbers) + uint32(4) * parity))

    return device(take)
