"""How the results of a Hopper product leave: several of them in boxes, and sums of columns beside them, on the model of the machine."""

from __future__ import annotations

import dataclasses
import random
from functools import partial

import numpy as np
import pytest
from fused_gemm_cases import Product, every_value, own, pitched, residuals, spread, summed_alone
from kernel_cases import HALVES, Case, assert_close, desc, reference
from machines.hopper_copies import offset
from machines.hopper_model import Machine, Stuck
from test_wgmma_model import PAIR, PINGPONG, SMALL, run
from test_wgmma_split import in_place_of_the_workspace
from wgmma_cases import (
    H200,
    OTHERS,
    TILINGS,
    VARIANTS,
    activated,
    backward,
    batches,
    gemm_launch,
    other,
    product,
    residual,
    stashed,
)

from aicf.cuda_kernels.gemm import wgmma_results
from aicf.cuda_kernels.gemm.wgmma_columns import lane_distributed, preloaded_reads
from aicf.cuda_kernels.gemm.wgmma_tiling import OF_C, WgmmaTiling
from aicf.cuda_kernels.hopper.units import WARPS
from aicf.registry.variant import Out
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32

TALL = WgmmaTiling(128, 64, 1, registers=None)  # two blocks of rows for a consumer


def two_operands(p: Product) -> RegionSpec:
    return residuals(p, 2)


def backward_alone(p: Product) -> RegionSpec:
    return p.then({"x": p.matrix()}, ("d", "relu_grad", "y", "x"))


def run_with_sums(t: WgmmaTiling, r: RegionSpec, seed: int = 0, machine: type[Machine] = Machine) -> None:
    """As `run`; the last result is sums of columns, whose lines are added up here."""
    rng, (m, n) = (
        np.random.default_rng(seed),
        r.operands[-1].shape if len(r.operands) > 2 else r.results[0].shape,
    )
    arrays = [rng.integers(-2, 3, d.shape).astype(d.dtype.numpy) for d in r.operands]
    lines = -(-m // t.rows) * WARPS
    outs = [np.full(d.numel, np.nan).astype(d.dtype.numpy) for d in r.results]
    launch = gemm_launch(t, r, H200)
    launch = dataclasses.replace(launch, args=in_place_of_the_workspace(launch.args, Out(len(outs))))
    written = np.full(lines * n, np.nan, np.float32)
    machine(seed).launch(launch, [a.ravel() for a in arrays], [*outs, written], t.cluster)
    outs[-1] = written.reshape(lines, n).sum(0).astype(r.results[-1].dtype.numpy)
    assert VARIANTS["gemm_wgmma[64x64]"].query_workspace(r, H200) == -(-m // 64) * WARPS * n * 4
    got = [x.reshape(d.shape) for x, d in zip(outs, r.results)]
    assert_close(Case("", r, tolerance=HALVES[r.operands[0].dtype]), got, reference(Case("", r), arrays))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D7", "D10")
@pytest.mark.parametrize("t", [SMALL, PINGPONG, PAIR, TALL], ids=str)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_several_results_leave_in_boxes(t, dtype):
    """More subtiles than buffers, tiles that hang over both ways."""
    r = activated(t.m * t.cluster + 8, t.n + 72, 72, dtype, act="relu")
    assert wgmma_results.staged(t, r) == 2
    run(t, r, random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
def test_three_results_leave_in_boxes():
    r = every_value(Product(72, 136, 72, f16))
    assert wgmma_results.staged(SMALL, r) == 3
    run(SMALL, r, tolerance=HALVES[f16])


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D8", "D10")
@pytest.mark.parametrize("t", [SMALL, PINGPONG, PAIR, TALL], ids=str)
@pytest.mark.parametrize("n, boxes", [(136, True), (131, False)])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_columns_are_added_up_beside_the_product(t, n, boxes, dtype):
    """In boxes and in runs; rows outside add nothing, nor do tiles of a cluster that lie outside altogether."""
    for m in (200, 8):
        r = backward(m, n, 72, dtype, act="relu", tb=True)
        assert not boxes or t.row_blocks > 1 or wgmma_results.staged(t, r)
        run_with_sums(t, r, random.randrange(2**32))


@pytest.mark.parametrize("r, positions", [
    (product(64, 64, 64), ()),
    (residual(64, 64, 64), (1,)),  # behind the bias
    (stashed(64, 64, 64), (OF_C,)),
    (backward(64, 64, 64), (0,)),
    (pitched(Product(64, 64, 64, f16)), (1,)),
    (spread(Product(64, 64, 64, f16)), ()),  # a column-major operand, and one on every second column
    (own(Product(64, 64, 64, f16)), (OF_C, 1)),
    (own(Product(64, 64, 64, f16, out=f32)), ()),
    (batches(64, 64, 64)["alone"], ()),
])  # fmt: skip
def test_which_operands_come_in_boxes(r, positions):
    assert wgmma_results.tma_sources(r) == positions


WIDE = WgmmaTiling(64, 192, 2, ping_pong=True)  # three subtiles of a tile, in two places


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D7", "D10")
@pytest.mark.parametrize("t", [SMALL, PAIR, TALL, WIDE], ids=str)
@pytest.mark.parametrize("make", [pitched, own, two_operands], ids=lambda f: f.__name__)
def test_operands_come_in_boxes(t, make):
    """Several tiles for each block; rows apart, two operands and two results, two operands and one."""
    p = Product(t.m * t.cluster + 8, 2 * t.n + 8, 72, f16)
    run(t, make(p), random.randrange(2**32), tolerance=HALVES[f16])


# Tilings of so many sums that words of a row are distributed among lanes: of one read and of two, by slices, of two axes of a batch.
FULL, FULL_TALL = (
    WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 112)),
    WgmmaTiling(128, 64, 1, registers=(40, 104)),
)
FULL_PAIR, FULL_WIDE = (
    WgmmaTiling(128, 128, 2, registers=(40, 168)),
    WgmmaTiling(64, 256, 1, registers=(40, 224)),
)


def two_rows(m, n, k, dtype=f16, out=None, **more):
    kind = out or dtype
    given = {"row": desc((n,), kind), "second": desc((n,), kind), "x": desc((m, n), kind)}
    ops = ("u", "mul", "y", "row"), ("v", "bias_add", "u", "second"), ("d", "add", "v", "x")
    return product(m, n, k, *ops, dtype=dtype, given=given, **more)


def backward_of_a_row(m, n, k):
    given = {"row": desc((n,), f16), "x": desc((m, n), f16)}
    ops = (
        ("z", "bias_add", "y", "row"),
        ("d", "relu_grad", "z", "x"),
        ("s", "reduce_sum", "d", {"axes": (0,)}),
    )
    return product(m, n, k, *ops, given=given, keep=("d", "s"))


DEALT = {
    f"{make.__name__}_{t}": (t, make) for t in (FULL, FULL_TALL) for make in (activated, residual, stashed)
} | {
    "two_rows_of_fp8": (FULL_PAIR, partial(other, types=OTHERS[1], make=two_rows)),
    "activated_of_fp8": (FULL_PAIR, partial(other, types=OTHERS[1], make=activated)),
    "heads": (FULL_WIDE, lambda m, n, k: batches(m, n, k)["heads"]),
}


def are_distributed(t: WgmmaTiling, r: RegionSpec) -> bool:
    epilogue = wgmma_results.direct_results(t, r).finish
    return wgmma_results.staged(t, r) > 0 and lane_distributed(t, epilogue, preloaded_reads(t, epilogue))


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("D7", "D10")
@pytest.mark.parametrize("t, make", DEALT.values(), ids=DEALT.keys())
def test_words_of_a_row_are_distributed(t, make):
    r = make(t.m + 8, t.n + 72, 72)
    assert are_distributed(t, r)
    run(t, r, random.randrange(2**32), tolerance=HALVES[f16])


@pytest.mark.sample(1, pool="on the model")
def test_words_of_a_row_are_distributed_beside_sums_of_columns():
    t, r = dataclasses.replace(FULL_PAIR, promoted=True), backward_of_a_row(136, 200, 72)
    assert are_distributed(t, r)
    run_with_sums(t, r, random.randrange(2**32))


def test_words_are_distributed_where_registers_are_short():
    """Of fp8, beside sums of a slice; of heads, beside steps of two axes."""
    fp8, heads = other(64, 64, 64, OTHERS[1], activated), batches(64, 64, 64)["heads"]
    found = [str(t) for t in TILINGS if t.can_promote and are_distributed(t, fp8)]
    assert found == ["256x128", "256x128_cluster2", "128x192"]
    assert [str(t) for t in TILINGS if are_distributed(t, heads)] == ["128x256", "128x256_cluster2"]
    assert not any(are_distributed(t, activated(64, 64, 64)) for t in TILINGS)


class OwnWords(Machine):
    """Nobody asks the others."""

    def _warp(self, name, value):
        given = super()._warp(name, value)
        return [value] * 32 if name == "shfl" else given


@pytest.mark.sample(1, pool="mistakes")
def test_the_model_notices_words_of_other_columns():
    with pytest.raises(AssertionError):
        run(FULL, residual(72, 136, 72), machine=OwnWords)


class NoWaitForOperands(Machine):
    """What is read where operands will be is what was there."""

    def wait_phase(self):
        wait = super().wait_phase()
        return lambda at, parity: None if self._of_chunks(at) else wait(at, parity)

    def _of_chunks(self, at):
        return offset(at) > max(self.current.block.barriers) - 8 * SMALL.subtiles


class EarlyOperands(Machine):
    """Operands are asked for while results leave from there."""

    def wait_stores_read(self, pending):
        return lambda: None


@pytest.mark.sample(1, pool="mistakes")
@pytest.mark.parametrize("machine", [NoWaitForOperands, EarlyOperands])
def test_the_model_notices(machine):
    with pytest.raises((AssertionError, Stuck)):
        for seed in range(20):
            run(SMALL, backward_alone(Product(72, 136, 72, f16)), seed, machine=machine)


@pytest.mark.sample(1, pool="on the model")
def test_nothing_but_sums_leaves():
    run_with_sums(SMALL, backward(72, 136, 72, act="relu", keep=("s",)))
    run_with_sums(SMALL, summed_alone(Product(72, 136, 72, f16)))


class OtherLanes(Machine):
    """Sums stay in the lanes that they were in."""

    def scatter_sums(self, count):
        return lambda tile: tile[: count // 8]


@pytest.mark.sample(1, pool="mistakes")
def test_the_model_notices_sums_of_other_columns():
    with pytest.raises(AssertionError):
        run_with_sums(SMALL, backward(72, 136, 72, act="relu"), machine=OtherLanes)
