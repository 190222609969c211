"""Results of rows that TMA can't store: which leave in lines, that they are right on the model of the machine, whole lines at a time, and
that nothing else is written."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from clean_kernels import are_new
from fused_gemm_cases import Product, biased, pitched, summed
from kernel_cases import HALVES, Case, assert_close, desc, reference
from machines.hopper_bodies import Cuda
from machines.hopper_model import Machine
from test_wgmma import assert_clean, compiled
from test_wgmma_model import LITTLE, PAIR, PINGPONG, QUARTERED, SMALL, WIDE, run
from test_wgmma_results import FULL_WIDE, TALL
from wgmma_cases import (
    ALL,
    H200,
    MIXED_WIDTHS,
    STREAMS,
    TILINGS,
    activated,
    backward,
    gemm_launch,
    product,
    residual,
    stashed,
    two_rows,
)

import aicf
from aicf.cuda_kernels.gemm import wgmma_results, wgmma_tiling
from aicf.cuda_kernels.gemm.wgmma_columns import lane_distributed
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import DType, bf16, f16, f32, i64

TALL_WIDE = WgmmaTiling(128, 128, 1, registers=None)  # two blocks of rows, two runs of columns
THREE = WgmmaTiling(64, 192, 2, ping_pong=True)


def rows_of(m: int, n: int, k: int, dtype: DType = f16, **more) -> RegionSpec:
    return product(m, n, k, dtype=dtype, tb=True, **more)


def of_alignment(r: RegionSpec, alignment: int) -> RegionSpec:
    """Its results."""
    tensors = [
        dataclasses.replace(t, alignment=alignment) if i in r.outputs else t for i, t in enumerate(r.tensors)
    ]
    return dataclasses.replace(r, tensors=tuple(tensors))


# --- which ------------------------------------------------------------------------------------------------------------


def mapped(m, n, k, op, dtype=f16, **given):
    return (
        rows_of(m, n, k, dtype=dtype)
        if op is None
        else product(m, n, k, op, dtype=dtype, tb=True, given=given)
    )


ROW = ("u", "bias_add", "y", "row")


@pytest.mark.parametrize("r, taken", [
    (rows_of(64, 131, 64), True),
    (rows_of(64, 132, 64), True),  # rows at multiples of 8 bytes
    (rows_of(64, 136, 64), False),  # TMA stores them
    (of_alignment(rows_of(64, 136, 64), 8), True),
    (rows_of(64, 131, 64, bf16), True),
    (product(64, 131, 64, ("w", "convert", "y", {"dtype": f32.id}), tb=True), False),
    (product(64, 131, 64, ("w", "convert", "y", {"dtype": bf16.id}), tb=True), True),
    (product(64, 131, 64, ("w", "convert", "y", {"dtype": bf16.id}), tb=True, keep=("y", "w")), False),
    (mapped(64, 131, 64, ROW, row=desc((131,), f16)), True),
    (mapped(64, 131, 64, ROW, row=desc((131,), f16, alignment=2)), True),
    (mapped(64, 131, 64, ("u", "add", "y", "s"), s=desc((64, 1), f16)), True),  # a number for a row
    (residual(64, 131, 64, tb=True), False),  # an operand of odd rows
    (residual(64, 132, 64, tb=True), True),  # read in pairs
    (pitched(Product(64, 132, 64, f16, trans_b=True)), True),
    (stashed(64, 131, 64, tb=True), False),
    (activated(64, 131, 64, tb=True, keep=("d",), act="relu"), True),
    (activated(64, 131, 64, tb=True, keep=("d",), act="gelu"), False),  # another function in pairs
    (backward(64, 132, 64, tb=True, act="relu"), False),  # sums of columns
    (summed(Product(64, 131, 64, f16, trans_b=True)), False),
    (mapped(64, 131, 64, ("d", "dropout", "y", "rng", {"rate": 0.5, "layer": 0}), rng=desc((2,), i64)), False),
])  # fmt: skip
def test_which_results_leave_in_lines(r, taken):
    assert wgmma_results.in_lines(r) == taken
    assert not taken or wgmma_results.staged(SMALL, r) == 1


def test_operands_by_column_that_are_not_aligned_have_to_be_preloaded():
    """There is room for two of 128 columns, for one of 256."""
    odd, even = (two_rows(64, n, 64) for n in (131, 132))
    assert wgmma_results.in_lines(odd) and wgmma_results.in_lines(even)
    assert [wgmma_results.staged(t, odd) for t in (SMALL, WIDE)] == [1, 0]
    assert [wgmma_results.staged(t, even) for t in (SMALL, WIDE)] == [1, 1]


# --- on the model -----------------------------------------------------------------------------------------------------


class Lines(Machine):
    """Knows what each instruction of a warp has stored."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lines: dict[int, set[int]] = defaultdict(set)
        self.alone = 0

    def store_pair_below(self):
        store = super().store_pair_below()

        def store_word(address, word, place, limit):
            store(address, word, place, limit)
            if 0 <= place < limit:
                at, lane = address.ctypes.data, self.current.index % 32
                assert at % 128 == 4 * lane, "lanes of a warp have the words of one line"
                assert lane not in self.lines[at // 128], "a word is stored once"
                self.lines[at // 128].add(lane)

        return store_word

    def store_half_below(self):
        store = super().store_half_below()

        def store_half(address, word, place, limit):
            store(address, word, place, limit)
            self.alone += 0 <= place < limit

        return store_half


def run_between_guards(
    t: WgmmaTiling, r: RegionSpec, shift: int, machine: type[Machine] = Lines
) -> tuple[Any, int]:
    """The result begins at any half, and what lies around it stays as it is. (The machine, and where the result began, in halves)"""
    seed, (out,) = random.randrange(2**32), r.results
    rng, guard = np.random.default_rng(seed), 256
    ins = [rng.integers(-2, 3, d.shape).astype(d.dtype.numpy) for d in r.operands]
    memory = np.full(out.numel + 2 * guard, np.nan).astype(out.dtype.numpy)
    first = guard + shift
    model, launch = machine(seed), gemm_launch(t, r, H200)
    model.launch(launch, [x.ravel() for x in ins], [memory[first:]], t.cluster)
    got = memory[first : first + out.numel].reshape(out.shape)
    assert_close(Case("", r, tolerance=HALVES[out.dtype]), [got], reference(Case("", r), ins))
    around = np.concatenate([memory[:first], memory[first + out.numel :]]).astype(np.float32)
    assert np.isnan(around).all(), "written outside of the result"
    return model, memory.ctypes.data // 2 + first


SIZES = [(72, 131), (64, 17), (3, 1), (70, 64), (65, 129), (1, 199), (72, 130), (8, 2)]
TILES = [SMALL, PINGPONG, PAIR, WIDE, TALL, TALL_WIDE, THREE, LITTLE]
EVERY = [(t, m, n) for t in TILES for m, n in SIZES]


@pytest.mark.sample(3, pool="on the model")
@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("t, m, n", EVERY, ids=str)
def test_results_begin_anywhere(t, m, n):
    """More tiles than blocks, and fewer columns than a line; results aligned to a half."""
    dtype = random.choice((f16, bf16))
    r = of_alignment(rows_of(m, n, 72, dtype), 2)
    assert wgmma_results.staged(t, r) == 1
    run_between_guards(t, r, random.randrange(64))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.parametrize("n", [131, 132, 256])
def test_within_a_tile_only_its_ends_are_halves_by_themselves(n):
    """And those only where a row begins or ends at an odd half."""
    model, start = run_between_guards(WIDE, of_alignment(rows_of(64, n, 72), 2), random.randrange(64))
    ends = [(start + row * n, start + (row + 1) * n) for row in range(64)]
    assert model.alone == sum(first % 2 + last % 2 for first, last in ends)
    assert sum(map(len, model.lines.values())) == sum(last // 2 - (first + 1) // 2 for first, last in ends)


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("D7", "D9")
@pytest.mark.parametrize("t", [SMALL, PAIR, TALL_WIDE, QUARTERED, FULL_WIDE], ids=str)
@pytest.mark.parametrize("make", [
    lambda m, n: activated(m, n, 72, tb=True, keep=("d",), act="relu"),
    lambda m, n: two_rows(m, n, 72),
    lambda m, n: residual(m, n + n % 2, 72, tb=True),
    lambda m, n: mapped(m, n, 72, ("u", "add", "y", "s"), s=desc((m, 1), f16)),
    lambda m, n: Product(m, n, 72, f16, batch=(3,), trans_b=True).then({}),
    lambda m, n: biased(Product(m, n, 72, bf16, batch=(2,), trans_b=True), n, "relu"),
], ids=["bias, relu", "two rows", "bias, residual", "by row", "batch", "batch, bias"])  # fmt: skip
def test_epilogues(t, make):
    """Nothing outside of an operand is read: a bias of odd length ends in half of a word."""
    for n in (131, 65):
        r = make(t.m + 3, n)
        if wgmma_results.staged(t, r):
            run(t, r, random.randrange(2**32), 2 * t.together, tolerance=HALVES[r.results[0].dtype])


@pytest.mark.sample(1, pool="on the model")
def test_a_bias_of_odd_length_is_distributed():
    r = activated(67, 131, 72, tb=True, keep=("d",), act="relu")
    t = WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 112))
    epilogue = wgmma_results.direct_results(t, r).finish
    assert wgmma_results.staged(t, r) == 1 and epilogue.width == 1 and lane_distributed(t, epilogue, (0,))
    run(t, r, random.randrange(2**32), tolerance=HALVES[f16])


class NobodyWaits(Machine):
    """What lanes write is not seen by the others."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.cuda = Alone(self)


class Alone(Cuda):
    def syncwarp(self) -> None:
        pass


@pytest.mark.sample(1, pool="mistakes")
def test_the_model_notices_what_lanes_do_not_wait_for():
    with pytest.raises(AssertionError):
        run_between_guards(SMALL, rows_of(64, 131, 72), 0, NobodyWaits)


# --- machine code and cost --------------------------------------------------------------------------------------------

EPILOGUES = {
    "plain": rows_of,
    "bias": lambda m, n, k, dtype: activated(m, n, k, dtype, tb=True, keep=("d",), act="relu"),
    "residual": lambda m, n, k, dtype: residual(m, n + 1, k, dtype, tb=True),
    "batch": lambda m, n, k, dtype: biased(Product(m, n, k, dtype, batch=(3, 2), trans_b=True), n),
}
CODE = [
    (t, f16, then) for t in (*TILINGS, *wgmma_tiling.MIXED_WIDTHS, *wgmma_tiling.STREAM) for then in EPILOGUES
]
LOGITS = [(t, bf16, "plain") for t in TILINGS if str(t) in ("128x128_pingpong", "128x256_cluster2")]


def is_new(t: WgmmaTiling, dtype: DType, then: str) -> bool:
    r = EPILOGUES[then](1000, 1001, 1000, dtype)
    return wgmma_results.staged(t, r) > 0 and are_new([gemm_launch(t, r, H200)], r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, dtype, then", CODE if ALL else LOGITS, ids=str)
def test_compiles_without_spills_or_serialized_products(t, dtype, then):
    r = EPILOGUES[then](1000, 1001, 1000, dtype)
    if wgmma_results.staged(t, r):
        compiled(t, r)


@pytest.mark.sample(1, pool="machine code")
def test_a_warp_waits_for_nobody():
    """Stores are of words and of halves, none is TMA's, and no barrier is for a warpgroup's results."""
    from aicf.cuda_kernels.compiler import engine

    t = WgmmaTiling(128, 128, 2, ping_pong=True)
    r = rows_of(8192, 50257, 768, bf16)
    launch, made = compiled(t, r)
    assert_clean(t, made)
    ptx = engine.ptx_of(launch, r, H200.target)
    assert "cp.async.bulk.tensor.2d.global" not in ptx and "st.global.b32" in ptx
    assert ptx.count("bar.sync") == 1 + 2, (
        "at the beginning, and one at which each turn group waits for its turn"
    )
    assert ptx.count("stmatrix") == 16


@pytest.mark.spec("B7", "D5")
def test_logits_of_odd_rows_are_predicted_to_take_what_they_took():
    """1,092 us, and rows that are padded 901."""
    odd, aligned = rows_of(8192, 50257, 768, bf16), rows_of(8192, 50264, 768, bf16)
    chosen = [select(r, H200, aicf.default_registry()) for r in (odd, aligned)]
    assert all("gemm_wgmma." in c.kernel_id for c in chosen)
    assert chosen[0].chosen.us == pytest.approx(1092, rel=0.1)
    assert chosen[1].chosen.us == pytest.approx(901, rel=0.1)


def test_mixed_widths_and_stream_k_take_them_too():
    r = rows_of(4096, 4095, 1024, bf16)
    for variant in (*MIXED_WIDTHS.values(), *STREAMS.values()):
        assert variant.supported(r, H200) is None
        assert "_lines" in variant.build(r, H200)[0].body.__name__
