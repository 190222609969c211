"""The Hopper GEMM without a GPU: what it takes, that its machine code is what it should be, and that it computes the right
numbers on a model of the machine (hopper_model.py), whatever the order in which things happen there."""

from __future__ import annotations

import itertools
import os
import random
import re

import numpy as np
import pytest
from hopper_bodies import bodies
from hopper_model import Machine, Stuck
from kernel_cases import Case, desc, fused, reference

import aicf
from aicf.cuda_kernels import engine, gemm_wgmma
from aicf.cuda_kernels.bodies.gemm_wgmma import GROUP, place
from aicf.cuda_kernels.gemm_wgmma import CHUNK_BYTES, SHARED, Tiling
from aicf.device.spec import preset
from aicf.registry.select import select
from aicf.registry.variant import KernelVariant
from aicf.rows import RegionSpec
from aicf.types import ActKind, DType, bf16, f16, f32, i64

H200 = preset("h200")
VARIANTS = {v.name: v for v in vars(gemm_wgmma).values() if isinstance(v, KernelVariant)}
TRANSPOSES = list(itertools.product((False, True), repeat=2))
# `make test-all` looks at every configuration
ALL = bool(os.environ.get("AICF_TEST_ALL"))


def matrix(rows, columns, dtype=f16, pitch=None, alignment=256):
    return desc((rows, columns), dtype, (pitch or columns, 1), alignment)


def product(
    m,
    n,
    k,
    *then,
    dtype=f16,
    ta=False,
    tb=False,
    pitch=(None, None),
    keep=(),
    alignment=256,
    given=(),
    **attrs,
):
    """y = op(a) op(b), and ops that follow, as for `fused`; `pitch`: elements from row to row of a and b."""
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    operands = {"a": matrix(*a, dtype, pitch[0], alignment), "b": matrix(*b, dtype, pitch[1]), **dict(given)}
    c, bias = (name if name in operands else None for name in ("c", "bias"))
    more = {"trans_a": ta, "trans_b": tb, **attrs}
    return fused(operands, (("y", "z") if attrs.get("save_preact") else "y", "gemm", "a", "b", c, bias, more), *then,
                 keep=keep)  # fmt: skip


def residual(m, n, k, dtype=f16, **more):
    given = {"row": desc((n,), dtype), "x": desc((m, n), dtype)}
    return product(m, n, k, ("u", "bias_add", "y", "row"), ("r", "relu", "u"), ("d", "add", "x", "r"), dtype=dtype,
                   given=given, **more)  # fmt: skip


def stashed(m, n, k, dtype=f16, **more):
    """alpha, beta, c, a bias, an activation and its operand."""
    given = {"c": desc((m, n), dtype), "bias": desc((n,), dtype)}
    return product(
        m, n, k, dtype=dtype, given=given, act=ActKind.relu, save_preact=True, alpha=2.0, beta=-1.0, **more
    )


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r, reason", [
    (product(64, 64, 64, dtype=f32), "the product is in f32, needs f16 or bf16"),
    (product(64, 64, 0), "k 0 is under 1"),
    (product(64, 64, 60), "a is f16[64x60]"),
    (product(64, 60, 64), "b is f16[64x60]"),
    (product(64, 64, 64, pitch=(68, None)), "needs rows that begin at multiples of 16 bytes"),
    (product(64, 64, 64, pitch=(32, None)), "needs rows"),
    (product(64, 64, 64, alignment=8), "a is aligned to 8 bytes, needs 16"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    for variant in VARIANTS.values():
        reject = variant.supported(r, H200)
        assert reject is not None and reason in str(reject), reject


def test_needs_hopper_itself():
    for device in (preset("a100"), preset("b200")):
        assert all(v.supported(product(64, 64, 64), device).condition == "needs" for v in VARIANTS.values())


@pytest.mark.spec("D9")
@pytest.mark.parametrize("r, fast", [
    (product(40, 48, 56), (True, False)),
    (product(40, 48, 56, ta=True, tb=True), (False, True)),
    (product(37, 53, 29, pitch=(32, 56)), (True, False)),  # any extents, if rows lie well
    (product(1, 53, 29, tb=True, pitch=(None, 32)), (True, True)),  # a single row lies anywhere
    (product(37, 8, 1), (False, False)),  # a's only column is a row as well
])  # fmt: skip
def test_takes_either_order(r, fast):
    assert all(v.supported(r, H200) is None for v in VARIANTS.values())
    assert tuple(o.k_fast for o in gemm_wgmma.operands(r)) == fast


@pytest.mark.parametrize("r, boxes", [
    (product(64, 64, 64), True),
    (product(64, 60, 64, pitch=(None, 64)), False),  # rows of the result are not 16-byte aligned
    (residual(64, 64, 64), True),
    (stashed(64, 64, 64), False),  # two results
    (product(64, 64, 64, ("w", "convert", "y", {"dtype": f32.id})), False),
    (product(64, 64, 64, ("w", "convert", "y", {"dtype": bf16.id})), True),
    (product(64, 64, 64, ("d", "dropout", "y", "rng", {"rate": 0.5, "layer": 0}), given={"rng": desc((2,), i64)}), False),
])  # fmt: skip
def test_how_results_leave(r, boxes):
    assert gemm_wgmma.staged(SMALL, r) == boxes


# --- what a block is made of ------------------------------------------------------------------------------------------

TILINGS = [
    Tiling(m, n, 2, cluster) for m, n in ((128, 256), (256, 128), (128, 128)) for cluster in (1, 2)
] + [Tiling(64, 256, 1, registers=None), Tiling(64, 128, 1, blocks=2, registers=(40, 216))]  # fmt: skip


def test_the_tilings_are_those_of_the_variants():
    assert {f"gemm_wgmma_{t}" for t in TILINGS} == set(VARIANTS)


@pytest.mark.parametrize("t", TILINGS, ids=str)
@pytest.mark.parametrize("staged", [False, True])
def test_shared_memory_and_registers_suffice(t, staged):
    assert t.stages(staged) >= 3
    assert t.shared(staged) <= SHARED and t.blocks * (t.shared(staged) + 1024) <= SHARED + 1024
    assert (
        t.stage_bytes % 1024 == t.a_bytes % 1024 == t.own_bytes % 1024 == t.b_bytes // t.cluster % 1024 == 0
    )
    assert t.sums // 32 % 2 == 0, "chunks take turns between two places, tile after tile"
    assert t.barriers_at(staged) >= t.stages(staged) * t.stage_bytes + staged * 2 * t.consumers * CHUNK_BYTES
    assert t.m == 64 * t.row_blocks * t.consumers
    per_thread = 65536 // (t.threads * t.blocks) // 8 * 8
    if t.registers is None:
        assert per_thread >= 255
    else:
        keep, take = t.registers
        assert keep % 8 == take % 8 == 0 and 24 <= keep <= per_thread <= take <= 256
        assert 128 * (keep + t.consumers * take) <= t.threads * per_thread


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 5), (GROUP, 2), (2 * GROUP + 3, 7), (1, 20), (40, 1)])
def test_every_tile_is_visited_once_and_neighbours_in_time_are_near(rows, columns):
    where = bodies(Machine(0)).of(place)
    visited = [where(tile, rows, columns) for tile in range(rows * columns)]
    assert sorted(visited) == [(r, c) for r in range(rows) for c in range(columns)]
    assert all(abs(a[0] - b[0]) < GROUP for a, b in itertools.pairwise(visited) if a[1] == b[1])


# --- what it computes -------------------------------------------------------------------------------------------------


def run(t: Tiling, r: RegionSpec, seed: int = 0, grid: int = 0, machine: type[Machine] = Machine) -> None:
    """On the model, with small whole numbers: sums are exact, whatever their order. What lies between rows is NaN."""
    rng, ins, arrays = np.random.default_rng(seed), [], []
    for d in r.operands:
        arrays.append(rng.integers(-2, 3, d.shape).astype(d.dtype.numpy))
        memory = np.full(1 + sum((e - 1) * s for e, s in zip(d.shape, d.stride)), np.nan).astype(
            d.dtype.numpy
        )
        np.lib.stride_tricks.as_strided(memory, d.shape, [s * d.dtype.itemsize for s in d.stride])[...] = (
            arrays[-1]
        )
        ins.append(memory)
    outs = [np.full(d.numel, np.nan).astype(d.dtype.numpy) for d in r.results]
    machine(seed).launch(gemm_wgmma._launch(t, r, H200), ins, outs, grid or t.cluster)
    for got, want, d in zip(outs, reference(Case("", r), arrays), r.results):
        np.testing.assert_array_equal(got.reshape(d.shape).astype(np.float64), want)


WIDE, SMALL = TILINGS[-2:]


@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_every_number_goes_where_it_belongs(ta, tb, dtype):
    """More tiles than blocks, more slices than stages, edges in every direction."""
    run(SMALL, product(72, 136, 200, dtype=dtype, ta=ta, tb=tb), seed=random.randrange(2**32))


@pytest.mark.parametrize("make", [residual, stashed])
@pytest.mark.parametrize("sizes, pitch", [((72, 136, 136), (None, None)), ((61, 131, 72), (None, 136))])
def test_epilogues_read_and_write_what_they_should(make, sizes, pitch):
    """In boxes and in runs, of two columns and of one; nothing outside of an operand is read."""
    run(SMALL, make(*sizes, pitch=pitch))


@pytest.mark.parametrize("m, n, k", [(1, 8, 1), (1, 1, 1), (3, 8, 65), (64, 128, 64), (2, 130, 9)])
def test_tiny_problems(m, n, k):
    run(SMALL, product(m, n, k, tb=True, pitch=(-(-k // 8) * 8, -(-k // 8) * 8)))


def tiles_of(t: Tiling):
    """A problem that hangs over a tile both ways, in two clusters of blocks."""
    return t.m * t.cluster + 8, t.n + 8, 136


SAMPLE = {str(t): TRANSPOSES[i % 4] for i, t in enumerate(TILINGS[:-1])}


@pytest.mark.slow
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("t, ta, tb", [
    pytest.param(t, *order, id=f"{t} {order}") for t in TILINGS[:-1] for order in TRANSPOSES
    if ALL or (order == SAMPLE[str(t)] and t.cluster * t.sums == 128)
])  # fmt: skip
def test_every_tiling_computes(t, ta, tb):
    run(t, product(*tiles_of(t), ta=ta, tb=tb), seed=random.randrange(2**32))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8 if ALL else 1))
def test_blocks_of_a_cluster_wait_for_each_other(seed):
    """Whatever the order in which the two get on."""
    t = Tiling(128, 128, 2, cluster=2)
    run(t, stashed(*tiles_of(t)), seed=random.randrange(2**32))


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


class NoRelease(Machine):
    def arrive(self):
        return lambda at: None


class EarlyRelease(Machine):
    """The producer does not wait until a stage is empty."""

    def wait_phase(self):
        wait = super().wait_phase()
        return lambda at, parity: None if self.current.index == 0 else wait(at, parity)


@pytest.mark.parametrize("machine", [NoFence, NoWaitForStores, NoWaitForProducts, NoRelease, EarlyRelease])
def test_the_model_notices(machine):
    """Without any one of these, some order gives wrong numbers, or none comes to an end."""
    with pytest.raises((AssertionError, Stuck)):
        for seed in range(20):
            run(WIDE, product(136, 264, 328), seed, machine=machine)


# --- machine code -----------------------------------------------------------------------------------------------------


def compiled(t: Tiling, r: RegionSpec):
    launch = gemm_wgmma._launch(t, r, H200)
    made = engine.compile_launch(launch, r, H200.target)
    assert made.registers > 0, f"the log can't be read:\n{made.log}"
    assert (made.spill_bytes, made.stack_bytes) == (0, 0), made.log
    assert not re.findall(r"C75\d\d", made.log), made.log  # serialized products, ignored setmaxnreg
    assert made.registers * launch.block[0] * t.blocks <= 65536
    return launch, made


EPILOGUES = {"plain": product, "residual": residual, "stashed": stashed}
CODE = list(itertools.product(TILINGS, TRANSPOSES, (f16, bf16), EPILOGUES))
CHOSEN = CODE if ALL else random.Random(0).sample(CODE, 12)


@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, order, dtype, then", CHOSEN, ids=lambda v: str(v))
def test_compiles_without_spills_or_serialized_products(t, order, dtype, then):
    compiled(t, EPILOGUES[then](1000, 1000, 1000, dtype=dtype, ta=order[0], tb=order[1]))


@pytest.mark.parametrize("t", TILINGS if ALL else TILINGS[1:2], ids=str)
def test_compiles_what_takes_the_most_registers(t):
    """Dropout, a column-major residual, results of other widths, rows of odd length."""
    given = {"rng": desc((2,), i64), "x": desc((1000, 1001), f16, (1, 1000))}
    ops = (
        ("d", "dropout", "y", "rng", {"rate": 0.4, "layer": 3}),
        ("s", "sub", "d", "x"),
        ("w", "convert", "s", {"dtype": DType.f32.id}),
    )
    compiled(t, product(1000, 1001, 1000, *ops, tb=True, given=given, keep=("w", "d")))


def test_the_code_has_the_instructions_that_it_should():
    t, r = TILINGS[1], product(1000, 1000, 1000, ta=True)
    launch, _ = compiled(t, r)
    ptx = engine.ptx_of(launch, r, H200.target)
    for instruction, count in {
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16": 4,
        "wgmma.fence": 1,
        "wgmma.commit_group": 1,
        "wgmma.wait_group": 2,
        "setmaxnreg.dec": 1,
        "setmaxnreg.inc": 1,
        "barrier.cluster.arrive": 2,
        "bar.sync": 4 * 2 * 2,  # for each chunk, before and after, of either consumer
        "stmatrix": 16,
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group": 4,
    }.items():
        assert ptx.count(instruction) == count, f"{instruction}: what a warp does together is nowhere copied"
    assert "multicast::cluster" in ptx
    assert ".release.cluster" not in re.sub(r"(fence|barrier)\S*", "", ptx), "a MEMBAR in the main loop"
    assert "f64" not in re.sub(r"\.reg.*", "", ptx)


@pytest.mark.spec("D5")
def test_costs_tell_large_from_small():
    """The prototype's tile wins where there is much to do; a small one where it alone fills the chip."""

    def best(*sizes):
        r = product(*sizes)
        return min(VARIANTS.values(), key=lambda v: v.cost(r, H200).us).name

    assert best(8192, 8192, 8192).endswith("_cluster2")
    assert "64x" in best(64, 4096, 4096)
    assert best(512, 512, 4096) == "gemm_wgmma_64x128"


@pytest.mark.spec("B7", "B8")
def test_beside_the_others_a_tiling_is_chosen_where_it_can_be_and_the_reason_told_where_not():
    """In a registry with all; by default none is: nothing is chosen for anybody that has not run."""
    kernels = aicf.default_registry().copy()
    assert not any("wgmma" in v.id for v in kernels)
    kernels.add_module(gemm_wgmma)
    assert "gemm_wgmma" in select(product(4096, 4096, 4096, dtype=bf16, tb=True), H200, kernels).kernel_id
    ragged = select(product(4097, 4095, 4095), H200, kernels)
    assert "gemm_wgmma" not in ragged.kernel_id and "16 bytes" in str(ragged)
    assert "gemm_wgmma" not in select(product(4096, 4096, 4096), preset("a100"), kernels).kernel_id
