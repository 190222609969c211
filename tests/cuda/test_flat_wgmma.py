"""Products of few rows of a transposed a, which is loaded as one piece of memory and goes through registers: without a GPU."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from clean_kernels import are_new, found_clean
from draws.seeds import rng
from fused_gemm_cases import Product
from hopper_run import run_launch
from kernel_cases import HALVES
from machines.hopper_bodies import in_python
from machines.hopper_model import Machine, Stuck, Words
from test_wgmma import assert_clean
from wgmma_cases import (
    ALL,
    BY_NAME,
    H200,
    TRANSPOSES,
    activated,
    assert_refused,
    gemm_launch,
    named,
    product,
    residual,
    stashed,
)

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import wgmma as gemm_wgmma
from aicf.cuda_kernels.gemm.wgmma_tiling import FEW_ROWS, FLAT_CONFIGS, WgmmaTiling
from aicf.cuda_kernels.ptx.register_operand import flat_operand_place
from aicf.device.calibration import DEFAULT
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32

FLAT = {v.name: v for v in gemm_wgmma.FLAT}
TILINGS = [c.tiling for c in FLAT_CONFIGS]
LITTLE, PAIR = (
    WgmmaTiling(64, 64, 1, registers=None),
    WgmmaTiling(64, 64, 1, cluster_split=2, registers=None),
)
PINGPONG = WgmmaTiling(64, 64, 2, ping_pong=True)
MAKES = {"plain": product, "residual": residual, "stashed": stashed, "activated": activated}


def flat_product(m: int, n: int, k: int, tb: bool, then: str = "plain", dtype=f16, **more) -> RegionSpec:
    return MAKES[then](m, n, k, ta=True, tb=tb, dtype=dtype, **more)


def whole_lines(m: int, k: int) -> int:
    """k, or a little more, so that m k numbers are whole lines of 64, and k whole eights."""
    unit = max(8, 64 // math.gcd(m, 64))
    return -(-k // unit) * unit


def drawn(generator: np.random.Generator, most_n: int, most_k: int) -> tuple[RegionSpec, str]:
    """Any number of rows, odd ones and whole eights; k and n whatever b's layout takes; and what was drawn."""
    m = int(generator.choice([generator.integers(2, 64), 8 * generator.integers(1, 8)]))
    tb, then = bool(generator.integers(2)), str(generator.choice(list(MAKES)))
    eights = 8 * int(generator.integers(1, 1 + (most_k if tb else most_n) // 8))
    other = int(generator.integers(1, 1 + (most_n if tb else most_k)))
    n, k = (other, max(eights, 136)) if tb else (eights, max(other, 129))
    k = whole_lines(m, k)
    dtype = (f16, bf16)[generator.integers(2)]
    return flat_product(m, n, k, tb, then, dtype), f"m {m} n {n} k {k} b transposed {tb} {then} {dtype}"


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r, reason", [
    (product(65, 64, 64, ta=True), "m is 65, at most 64 rows are one tile's"),
    (product(64, 64, 64, ta=True), "64 rows of a are lines of 128 bytes"),
    (product(8, 64, 64), "k is contiguous in a"),
    (product(1, 64, 64, ta=True), "k is contiguous in a"),
    (product(8, 64, 64, ta=True, pitch=(16, None)), "needs all rows of a k right behind those of the k before"),
    (product(3, 64, 200, ta=True), "needs whole lines of 64 numbers altogether"),
    (product(8, 64, 64, ta=True, alignment=8), "a is aligned to 8 bytes, needs 16"),
    (product(8, 60, 64, ta=True), "b is f16[64x60], needs rows that begin at multiples of 16 bytes"),
    (product(8, 64, 64, ta=True, dtype=f32), "the product is to be exact, this one is tf32"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(FLAT, r, reason)


def test_a_block_of_a_cluster_has_a_k_tile():
    reasons = {name: str(v.supported(flat_product(8, 64, 64, True), H200)) for name, v in FLAT.items()}
    assert {name for name, reason in reasons.items() if "K-tiles 1 is under" in reason} == {
        name for name in FLAT if " cluster split" in name
    }


@pytest.mark.spec("D9")
def test_few_rows_of_a_transposed_a_take_it(request):
    """Of drawn weights of more than 3,000 columns, and up to eight rows: no other kernel is predicted to be 10 % faster."""
    generator = rng(request.node.nodeid)
    for _ in range(12):
        m, tb = int(generator.integers(2, 9)), bool(generator.integers(2))
        n, k = (64 * int(x) for x in generator.integers(48, 200, 2))
        ranked = select(flat_product(m, n, k, tb, dtype=bf16), H200, aicf.default_registry()).ranked
        flat = next(c for c in ranked if c.variant.id.endswith(" flat]"))
        assert flat.us < 1.1 * ranked[0].us, f"{m}x{n}x{k}, b transposed {tb}: {ranked[0].variant.id}"


def test_time_is_that_of_contiguous_k():
    """As predicted by constants alone: to 10 %, and before the others."""
    device = replace(H200, calibration=DEFAULT)
    for m, n, k in ((8, 4096, 14336), (8, 4608, 3584), (3, 8192, 8192)):
        us = [select(r, device, aicf.default_registry()).ranked for r in (product(m, n, k, tb=True), flat_product(m, n, k, True))]  # fmt: skip
        others = min(c.us for c in us[1] if not c.variant.id.endswith(" flat]"))
        assert us[1][0].us < 1.1 * us[0][0].us and others > us[1][0].us


# --- what is computed -------------------------------------------------------------------------------------------------


def test_matrices_of_a_warp_begin_where_their_rows_do():
    """Lane 8 j + i says where row i of matrix j begins: rows 8 (j % 2) on, k 8 (j // 2) + i."""
    place = in_python(flat_operand_place(True))
    for rows in (8, 40, 56):
        for warp in range(4):
            for lane in range(32):
                j, i = divmod(lane, 8)
                assert place(rows, warp, lane) == 2 * ((j // 2 * 8 + i) * rows + warp * 16 + j % 2 * 8)


@pytest.mark.sample(1)
@pytest.mark.spec("D9", "D10", "F2")
@pytest.mark.parametrize("t", [LITTLE, PAIR, PINGPONG], ids=str)
@pytest.mark.parametrize("number", range(4))
def test_every_number_goes_where_it_belongs(t, number, request):
    """Drawn rows, more tiles than blocks, more K-tiles than stages, an odd number of them and an even one."""
    r, what = drawn(rng(request.node.nodeid), 200, 500)
    print(what)
    launch = gemm_launch(t, r, H200, path="flat")
    tolerance = HALVES[r.operands[0].dtype] if "activated" in what else 0.0
    run_launch(launch, r, random.randrange(2**32), 0 if t.cluster_split > 1 else 1, tolerance=tolerance)


@pytest.mark.sample(1)
@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("shared, m", [("", 8), ("a", 3), ("b", 24)])
def test_batches(shared, m):
    r = Product(m, 72, 128, f16, batch=(2, 3), trans_a=True, shared=shared).then({})
    run_launch(gemm_launch(LITTLE, r, H200, path="flat"), r, random.randrange(2**32), 2)


class NoWaitForProducts(Machine):
    """Words come while products still read those that were there."""

    def wait_products(self, pending):
        return (lambda: None) if pending else super().wait_products(pending)


class OneSet(Machine):
    """Words of a K-tile come to where those of the one before are."""

    def load_flat_operand(self, eights):
        load, sets = super().load_flat_operand(eights), {}
        return lambda words, *given: load(sets.setdefault(self.current, Words()), *given)


class EarlyRelease(Machine):
    """The producer does not wait until a stage is empty."""

    def wait_phase(self):
        wait = super().wait_phase()
        return lambda at, parity: None if self.current.index == 0 else wait(at, parity)


@pytest.mark.sample(1, pool="mistakes")
@pytest.mark.parametrize("machine", [NoWaitForProducts, OneSet, EarlyRelease], ids=lambda m: m.__name__)
def test_the_model_notices(machine):
    """Without any one of these, some order gives wrong numbers, or none comes to an end."""
    r = flat_product(12, 72, 1024, True)
    with pytest.raises((AssertionError, Stuck)):
        for seed in range(20):
            run_launch(gemm_launch(LITTLE, r, H200, path="flat"), r, seed, 1, machine)


# --- machine code -----------------------------------------------------------------------------------------------------

FEW_CODE = [(t, *order, then) for t in FEW_ROWS for order in TRANSPOSES for then in MAKES]
FEW_EACH = [random.Random(f"{t}").choice([c for c in FEW_CODE if c[0] == t]) for t in FEW_ROWS]
CODE = [(t, m, tb, then) for t in TILINGS for m in (8, 33) for tb in (False, True) for then in MAKES]
EACH = [
    random.Random(f"{t}{m}").choice([c for c in CODE if c[:2] == (t, m)]) for t in TILINGS for m in (8, 33)
]


def launch_of(t: WgmmaTiling, m: int, tb: bool, then: str):
    r = flat_product(m, 1000, 1024, tb, then, bf16)
    return gemm_launch(t, r, H200, path="flat"), r


def is_new(t: WgmmaTiling, m: int, tb: bool, then: str) -> bool:
    launch, r = launch_of(t, m, tb, then)
    return are_new([launch], r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, m, tb, then", CODE if ALL else EACH, ids=str)
def test_compiles_without_spills_or_serialized_products(t, m, tb, then):
    launch, r = launch_of(t, m, tb, then)
    assert_clean(t, engine.compile_launch(launch, r, H200.target))
    found_clean(launch, r, H200.target)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, ta, tb, then", FEW_CODE if ALL else FEW_EACH, ids=str)
def test_tilings_for_few_rows_compile_without_spills(t, ta, tb, then):
    r = MAKES[then](40, 1000, 1000, ta=ta, tb=tb, dtype=bf16)
    assert_clean(t, engine.compile_launch(gemm_launch(t, r, H200), r, H200.target))


@pytest.mark.sample(1)
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
@pytest.mark.parametrize("t", FEW_ROWS, ids=str)
def test_tilings_for_few_rows(t, ta, tb):
    r = residual(40, 136, 1000, ta=ta, tb=tb)
    launch = gemm_launch(t, r, H200)
    run_launch(launch, r, random.randrange(2**32), launch.grid[0] if t.cluster_split > 1 else 1)


def test_tilings_for_few_rows_take_no_more():
    assert_refused({named(t): BY_NAME[named(t)] for t in FEW_ROWS}, product(65, 64, 64), "m 65 is over 64")


def test_no_other_number_of_rows_is_another_kernel():
    """Whole eights have one, all others another."""
    bodies = {m: gemm_launch(PAIR, flat_product(m, 72, 256, True), H200, path="flat").body for m in (2, 5, 33, 8, 40)}  # fmt: skip
    assert bodies[2] is bodies[5] is bodies[33] and bodies[8] is bodies[40] and bodies[2] is not bodies[8]
