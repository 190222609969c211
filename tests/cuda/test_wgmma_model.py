"""The Hopper GEMM on a model of the machine, thread by thread: what it computes, and what it needs every synchronisation for."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hopper_run import run_launch
from kernel_cases import HALVES, Case, reference
from machines.hopper_bodies import Tensor
from machines.hopper_copies import START, offset
from machines.hopper_model import Machine, Stuck
from wgmma_cases import (
    ALL,
    H200,
    OTHERS,
    TILINGS,
    TRANSPOSES,
    activated,
    batches,
    gemm_launch,
    other,
    product,
    residual,
    stashed,
)

from aicf.cuda_kernels.dsl import device
from aicf.cuda_kernels.gemm import wgmma_body as body
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling
from aicf.cuda_kernels.hopper import mainloop
from aicf.cuda_kernels.ptx.wgmma import layout_bits
from aicf.rows import RegionSpec
from aicf.types import bf16, f8e4m3, f16, f32


def run(
    t: WgmmaTiling,
    r: RegionSpec,
    seed: int = 0,
    grid: int = 0,
    machine: type[Machine] = Machine,
    tolerance: float = 0.0,
) -> None:
    launch = gemm_launch(t, r, H200)
    run_launch(
        launch, r, seed, grid or (launch.grid[0] if t.cluster_split > 1 else t.cluster), machine, tolerance
    )


WIDE, SMALL = WgmmaTiling(64, 256, 1, registers=None), WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 216))
PINGPONG, PAIR = WgmmaTiling(64, 128, 2, ping_pong=True), WgmmaTiling(64, 128, 1, cluster=2, registers=None)


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_every_number_goes_where_it_belongs(ta, tb, dtype):
    """More tiles than blocks, more slices than stages, edges in every direction."""
    run(SMALL, product(72, 136, 200, dtype=dtype, ta=ta, tb=tb), seed=random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_every_number_goes_where_it_belongs_in_a_cluster(ta, tb):
    run(PAIR, product(72, 136, 136, ta=ta, tb=tb), seed=random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize("make", [residual, stashed])
@pytest.mark.parametrize("sizes, pitch", [((72, 136, 136), (None, None)), ((61, 131, 72), (None, 136))])
def test_epilogues_read_and_write_what_they_should(make, sizes, pitch):
    """In boxes and in runs, of two columns and of one; nothing outside of an operand is read."""
    run(SMALL, make(*sizes, pitch=pitch))


LITTLE, LITTLE2 = WgmmaTiling(64, 64, 1, registers=None), WgmmaTiling(64, 64, 1, blocks=2, registers=None)
BATCHED = [(t, name, 72) for t in (LITTLE, PAIR, PINGPONG) for name in batches(8, 8, 8)]
BATCHED += [
    (t, name, 71) for t in (LITTLE, PINGPONG) for name in ("dropped", "heads, rows")
]  # rows of k, in both


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("t, name, n", BATCHED if ALL else random.Random(1).sample(BATCHED, 4), ids=str)
def test_batches(t, name, n):
    """Tiles hang over, and come after those of the next product that other blocks compute; operands are shared, or of heads."""
    seed = random.randrange(2**32)
    run(t, batches(72, n, 72)[name], seed, 2 * t.cluster, tolerance=HALVES[f16])


TWO = WgmmaTiling(128, 64, 2)
LOW = WgmmaTiling(
    128, 64, 1, blocks=2, registers=(40, 216)
)  # two blocks of rows, whose sums of a slice take turns
BY_TYPE = [(t, OTHERS[0]) for t in (SMALL, PAIR, PINGPONG)] + [
    (t, types) for t in (LITTLE2, TWO, LOW) for types in OTHERS[1:]
]


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("make", [product, residual, activated])
@pytest.mark.parametrize("t, types", BY_TYPE if ALL else random.Random(2).sample(BY_TYPE, 5), ids=str)
def test_words_and_bytes(t, types, make):
    """Edges in every direction, and more slices than stages."""
    depth = 128 // types[0].itemsize
    k = depth * (1 + t.stages(False)) + 3
    run(t, other(t.m + 8, t.n + 9, k, types, make), seed=random.randrange(2**32), tolerance=HALVES[bf16])


class FourteenBits(Machine):
    """Tensor cores that cut off every sum."""

    def _multiply(self):
        groups = [(group, group.done) for block in self.blocks for group in block.groups.values()]
        if not super()._multiply():
            return False
        for group, before in groups:
            if group.done > before:
                sums = group.asked[before].sums
                fraction, exponent = np.frexp(sums.registers)
                sums.registers = np.ldexp(np.trunc(fraction * 2**14), exponent - 14)
        return True


@pytest.mark.spec("D10")
def test_long_sums_of_bytes_are_kept_in_f32(monkeypatch):
    """Of numbers that are all positive, whose sum would outgrow what is added to it."""
    r = other(64, 64, 128 * 30, (f8e4m3, f8e4m3, f32))
    rng = np.random.default_rng()
    ins = [rng.uniform(0.5, 1.5, d.shape).astype(d.dtype.numpy) for d in r.operands]
    (want,) = reference(Case("", r), ins)

    def error():
        body.wgmma.cache_clear()
        out = np.full(r.results[0].shape, np.nan, np.float32)
        launch = gemm_launch(LITTLE2, r, H200)
        FourteenBits(0).launch(launch, [x.reshape(-1) for x in ins], [out.reshape(-1)], 1)
        return float(np.abs(out / want - 1).max())

    assert error() < 2**-13
    monkeypatch.setattr(body, "promotes", lambda dtype: False)
    assert error() > 2**-11
    body.wgmma.cache_clear()


class FoldedResults(Machine):
    """Results of a batch as one matrix, in which tiles hang over into the next product's."""

    def store_box(self, rank=2):
        store, folded = super().store_box(rank), rank == 3

        def store_folded(tensor, source, column, line, layer):
            (n, m, count), (row, _) = tensor.map.extents, tensor.map.pitches
            whole = replace(tensor.map, extents=(n, m * count), pitch=row, box=tensor.map.box[:2])
            store(Tensor(whole, tensor.memory), source, column, layer * m + line)

        return store_folded if folded else store


@pytest.mark.sample(1, pool="mistakes")
def test_the_model_notices_tiles_that_hang_over_into_the_next_product():
    with pytest.raises(AssertionError):
        run(LITTLE, batches(72, 64, 8)["alone"], grid=2, machine=FoldedResults, tolerance=HALVES[f16])
    run(LITTLE, batches(72, 64, 8)["alone"], grid=2, tolerance=HALVES[f16])


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize("m, n, k", [(1, 8, 1), (1, 1, 1), (3, 8, 65), (64, 128, 64), (2, 130, 9)])
def test_tiny_problems(m, n, k):
    """Boxes are no longer than operands; of a cluster, a block may have nothing but what lies outside."""
    for t in (SMALL, PAIR):
        run(t, product(m, n, k, tb=True, pitch=(-(-k // 8) * 8, -(-k // 8) * 8)))


def tiles_of(t: WgmmaTiling):
    """A problem that hangs over a tile both ways, in two clusters of blocks."""
    return t.m * t.cluster + 8, t.n + 8, 136


SAMPLE = {str(t): TRANSPOSES[i % 4] for i, t in enumerate(TILINGS)}


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.slow
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("t, ta, tb", [
    pytest.param(t, *order, id=f"{t} {order}") for t in TILINGS for order in TRANSPOSES
    if ALL or (order == SAMPLE[str(t)] and t.consumers * t.accumulators <= 128 and t.cluster == t.cluster_split == 1)
])  # fmt: skip
def test_every_tiling_computes(t, ta, tb):
    run(t, product(*tiles_of(t), ta=ta, tb=tb), seed=random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize(
    "m, n, k", [(64, 128, 8), (64, 256, 600), (64, 384, 1000), (136, 392, 520), (192, 640, 64)]
)
def test_teams_take_tiles_in_turns(m, n, k):
    """One tile, two, three, nine; as many slices as stages, more, and fewer."""
    run(PINGPONG, product(m, n, k), seed=random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8 if ALL else 1))
def test_blocks_of_a_cluster_wait_for_each_other(seed):
    """Whatever the order in which the two get on."""
    t = WgmmaTiling(128, 128, 2, cluster=2) if ALL else WgmmaTiling(64, 128, 1, cluster=2, registers=None)
    run(t, stashed(*tiles_of(t)), seed=random.randrange(2**32))


HALVED = WgmmaTiling(64, 128, 1, cluster_split=2, registers=None)
QUARTERED = WgmmaTiling(64, 64, 1, cluster_split=4, registers=None)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize("t, make, sizes", [
    (HALVED, residual, (72, 136, 136)), (HALVED, stashed, (40, 136, 1000)), (HALVED, product, (61, 40, 72)),
    (QUARTERED, stashed, (72, 72, 264)), (QUARTERED, product, (8, 64, 40)), (QUARTERED, residual, (64, 40, 136)),
    (WgmmaTiling(128, 64, 1, cluster_split=2, registers=None), residual, (136, 72, 200)), (WgmmaTiling(128, 128, 2, cluster_split=2), product, (136, 128, 136)),
], ids=lambda v: getattr(v, "__name__", str(v)))  # fmt: skip
def test_blocks_that_share_a_tile_divide_k(t, make, sizes):
    """In boxes and in runs; parts of as many slices, of more than the ring has, and of none."""
    run(t, make(*sizes), seed=random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize("name", ["alone", "heads"])
def test_parts_of_products_of_a_batch(name):
    run(QUARTERED, batches(40, 72, 136)[name], seed=random.randrange(2**32), tolerance=HALVES[f16])


# --- that the model would notice --------------------------------------------------------------------------------------


class NoFence(Machine):
    def fence_async(self):
        return lambda: None


class NoWaitForStores(Machine):
    def wait_stores_read(self, pending):
        return lambda: None


class NoWaitForProducts(Machine):
    def wait_products(self, pending):
        return lambda: None

    def finish_products(self, count):
        return Machine.finish_products(Forgiving(self), count)


class Forgiving:
    """A machine whose finish waits as it should."""

    def __init__(self, machine):
        self.machine = machine

    def __getattr__(self, name):
        return getattr(self.machine, name)

    def wait_products(self, pending):
        return Machine.wait_products(self.machine, pending)


class NoWaitForTheLastTile(Machine):
    """Its third subtile is still being read when the next tile's first one takes its place."""

    def wait_stores_read(self, pending):
        return super().wait_stores_read(max(1, pending))


class NoTurns(Machine):
    """Teams do not wait for each other."""

    def sync_threads(self, barrier, threads):
        return (lambda: None) if threads > 128 else super().sync_threads(barrier, threads)

    def arrive_threads(self, barrier, threads):
        return lambda: None


class NoPassingOn(Machine):
    def arrive_threads(self, barrier, threads):
        return lambda: None


class NoMeeting(Machine):
    """Threads of a consumer do not wait for each other around a subtile of results."""

    def sync_threads(self, barrier, threads):
        return (lambda: None) if threads == 128 else super().sync_threads(barrier, threads)


class NoWaitForSlices(Machine):
    """Consumers do not wait until a stage is full."""

    def wait_phase(self):
        wait = super().wait_phase()
        return lambda at, parity: wait(at, parity) if self.current.index == 0 else None


class NoRelease(Machine):
    def arrive(self):
        return lambda at: None


class OneAfterTheOther(Machine):
    """The second block of a cluster begins, and releases a slice, when the first one can't go on."""

    def late(self, act):
        def act_late(*args):
            if self.current.block.rank:
                first = [t for t in self.threads if not t.block.rank]
                groups = self.blocks[0].groups.values()
                self.current.wait(lambda: not (
                    self.events or self.leaving or any(g.done < len(g.asked) for g in groups)
                    or any(t.ready() and not t.dead for t in first)
                ))  # fmt: skip
            act(*args)

        return act_late

    def barrier_init(self):
        return self.late(super().barrier_init())

    def arrive_remote(self):
        return self.late(super().arrive_remote())


class EarlyLeave(OneAfterTheOther):
    """A block does not wait until all have read what it brought: a slice."""

    def wait_phase(self):
        wait, waits = super().wait_phase(), {}

        def wait_once(at, parity):
            thread = self.current
            waits[thread] = waits.get(thread, 0) + 1
            if thread.index or waits[thread] == 1:
                wait(at, parity)

        return wait_once


class NoWaitForOtherBlocks(OneAfterTheOther):
    """Sums are sent before the others have made their barriers."""

    def cluster_wait(self):
        return lambda: None


class NoWaitForSums(Machine):
    """A consumer adds what is in its slots before all of it has come."""

    def wait_phase(self):
        wait, met = super().wait_phase(), -(-START // 1024) * 1024 + HALVED.split_barriers_at(True)
        return lambda at, parity: None if offset(at) == met else wait(at, parity)


class EarlyRelease(Machine):
    """The producer does not wait until a stage is empty."""

    def wait_phase(self):
        wait = super().wait_phase()
        return lambda at, parity: None if self.current.index == 0 else wait(at, parity)


@pytest.mark.sample(1, pool="mistakes")
@pytest.mark.parametrize("t, machine", [
    *((SMALL, m) for m in (NoFence, NoWaitForStores, NoMeeting, NoWaitForProducts, NoWaitForSlices, NoRelease, EarlyRelease)),
    *((PINGPONG, m) for m in (NoTurns, NoPassingOn, NoRelease, EarlyRelease)),
    (WgmmaTiling(64, 192, 2, ping_pong=True), NoWaitForTheLastTile),
], ids=lambda v: getattr(v, "__name__", str(v)))  # fmt: skip
def test_the_model_notices(t, machine):
    """Without any one of these, some order gives wrong numbers, or none comes to an end."""
    with pytest.raises((AssertionError, Stuck)):
        for seed in range(20):
            run(t, product(72, 2 * t.n + 8, 648), seed, machine=machine)


@pytest.mark.sample(1, pool="mistakes")
@pytest.mark.parametrize("machine", [NoWaitForOtherBlocks, NoWaitForSums])
def test_the_model_notices_what_parts_need(machine):
    """One slice of k: the first part has none, and sends at once."""
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(20):
            run(HALVED, product(8, 64, 40), seed, machine=machine)
    run(HALVED, product(8, 64, 40), machine=OneAfterTheOther)


@pytest.mark.sample(1, pool="mistakes")
def test_the_model_notices_who_leaves_too_early():
    with pytest.raises(AssertionError, match="the block has left"):
        run(PAIR, product(72, 64, 40), machine=EarlyLeave)
    run(PAIR, product(72, 64, 40), machine=OneAfterTheOther)


@pytest.mark.sample(1, pool="mistakes")
def test_the_model_notices_descriptors_with_a_rank(monkeypatch):
    """Above what is within a block, an address has the block's rank, which would lengthen the step to the next 64 columns."""

    def whole(k_major):
        bits = layout_bits(k_major)
        return device(lambda address: address >> 4 | bits)

    monkeypatch.setattr(mainloop, "describe", whole)
    body.wgmma.cache_clear()
    with pytest.raises(AssertionError):
        run(PAIR, product(72, 136, 64))
    body.wgmma.cache_clear()
