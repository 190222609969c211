"""Products of TF32 whose k is contiguous in one operand only, which goes through registers: without a GPU."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from clean_kernels import are_new, found_clean
from fused_gemm_cases import Product
from hopper_run import run_launch
from machines.hopper_bodies import in_python
from machines.hopper_copies import moved
from machines.hopper_model import Machine, Stuck, Words
from test_wgmma import assert_clean
from test_wgmma_split import in_place_of_the_workspace
from wgmma_cases import ALL, H200, activated, assert_refused, gemm_launch, product, residual, stashed

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import copied
from aicf.cuda_kernels.gemm import wgmma as gemm_wgmma
from aicf.cuda_kernels.gemm.schedule.split_k import KSplit
from aicf.cuda_kernels.gemm.wgmma_tiling import RS_CONFIGS, WgmmaTiling
from aicf.cuda_kernels.ptx.register_operand import PLACES, register_operand_mn, register_operand_place
from aicf.registry.select import select
from aicf.registry.variant import Out
from aicf.rows import RegionSpec
from aicf.types import Precision, bf16, f32

BY_NAME = {v.name: v for v in (*gemm_wgmma.RS, *copied.PACKED[2])}
RS_TILINGS = [c.tiling for c in RS_CONFIGS if not c.split]
PACKED = {name: v for name, v in BY_NAME.items() if name.endswith(" packed]")}
SPLITS = {name: v for name, v in BY_NAME.items() if name.endswith(" split]")}
PLAIN = {name: v for name, v in BY_NAME.items() if name.endswith(" rs]")}
LITTLE, TWO, PINGPONG = (
    WgmmaTiling(64, 64, 1, registers=None),
    WgmmaTiling(128, 64, 2),
    WgmmaTiling(64, 64, 2, ping_pong=True),
)
ORDERS = [(False, False), (True, True)]  # b in registers, a in registers


def rs_product(m: int, n: int, k: int, ta: bool, tb: bool, make=product, **more) -> RegionSpec:
    """Rows padded to 16 bytes."""
    pitch = tuple(-(-x // 4) * 4 for x in (m if ta else k, k if tb else n))
    return make(m, n, k, dtype=f32, ta=ta, tb=tb, pitch=pitch, precision=Precision.tf32, **more)


def run(
    t: WgmmaTiling, r: RegionSpec, seed: int = 0, grid: int = 1, machine: type[Machine] = Machine
) -> None:
    run_launch(gemm_launch(t, r, H200, path="rs"), r, seed, grid, machine)


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variants, r, reason", [
    (PLAIN, product(64, 64, 64, dtype=f32), "the product is to be exact, this one is tf32"),
    (PLAIN, product(64, 64, 64, dtype=bf16), "a is bf16, this one is for f32"),
    (PLAIN, rs_product(64, 64, 64, False, True), "k is contiguous in a and b"),
    (PLAIN, rs_product(64, 64, 64, True, False), "k is contiguous neither in a nor in b"),
    (PLAIN, product(64, 62, 64, dtype=f32, precision=Precision.tf32), "b is f32[64x62], needs rows that begin at multiples of 16 bytes"),
    (PACKED, rs_product(64, 64, 64, False, True), "k is contiguous in a and b"),
    (PACKED, rs_product(64, 64, 64, False, False), "a and b are read where they are"),
])  # fmt: skip
def test_refuses_with_the_value_seen(variants, r, reason):
    assert_refused(variants, r, reason)


@pytest.mark.parametrize("ta, tb", [*ORDERS, (True, False)])
def test_large_products_take_rs_kernels(ta, tb):
    """One operand of them, where both would have to be copied otherwise."""
    r = rs_product(4096, 4096, 4096, ta, tb)
    chosen = select(r, H200, aicf.default_registry()).kernel_id
    assert chosen == "cuda.gemm_wgmma.v1[128x256 rs" + " packed" * (ta > tb) + "]"


def test_tiles_are_of_the_lines_in_registers():
    """128 of n and 256 of m, if b is."""
    for order, tiles in zip(ORDERS, (5 * 2, 4 * 3)):
        assert gemm_launch(
            WgmmaTiling(128, 256, 2), rs_product(500, 600, 64, *order), H200, path="rs"
        ).grid == (tiles,)


# --- what is computed -------------------------------------------------------------------------------------------------


def test_a_warp_reads_all_banks():
    """Half of it at a time, and every word of 64 lines and 32 k once."""
    place, line = in_python(register_operand_place()), in_python(register_operand_mn())
    seen = {}
    for warp in range(4):
        for k, at in enumerate(PLACES):
            addresses = [moved(place(warp, lane), at) for lane in range(32)]
            for half in (addresses[:16], addresses[16:]):
                assert len({a % 128 for a in half}) == 16 and not any(a % 8 for a in half)
            for lane, address in enumerate(addresses):
                seen[address] = line(warp, lane), 4 * k + lane % 4
    assert len(seen) == 32 * 32 == len(set(seen.values()))
    for address, (x, k) in seen.items():
        assert address == x // 32 * 4096 + k * 128 + (x % 32 // 4 ^ k % 8) * 16 + x % 4 * 4


SIZES = [(product, (72, 136, 200)), (product, (61, 53, 29)), (product, (64, 64, 33)), (product, (130, 67, 65)),
         (residual, (72, 72, 72)), (stashed, (61, 131, 100))]  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.spec("D9", "D10", "F2")
@pytest.mark.parametrize("ta, tb", ORDERS)
@pytest.mark.parametrize("make, sizes", SIZES)
@pytest.mark.parametrize("t", [LITTLE, TWO, PINGPONG], ids=str)
def test_every_number_goes_where_it_belongs(t, make, sizes, ta, tb):
    """More tiles than blocks, edges in every direction; more slices than stages, an odd number, an even one, one."""
    run(t, rs_product(*sizes, ta, tb, make), random.randrange(2**32))


def batch(m: int, n: int, k: int, ta: bool, tb: bool, shared: str = "", heads: bool = False) -> RegionSpec:
    p = Product(m, n, k, f32, batch=(2, 3), trans_a=ta, trans_b=tb, shared=shared, heads=heads)
    return p.then({}, precision=Precision.tf32)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("ta, tb", ORDERS)
@pytest.mark.parametrize("shared, heads", [("", False), ("a", False), ("b", True)])
def test_batches(ta, tb, shared, heads):
    run(PINGPONG, batch(72, 76, 40, ta, tb, shared, heads), random.randrange(2**32), grid=2)


@pytest.mark.sample(1)
@pytest.mark.spec("B10")
@pytest.mark.parametrize("ta, tb", ORDERS)
@pytest.mark.parametrize("t", [LITTLE, PINGPONG], ids=str)
def test_every_part_goes_where_it_belongs(t, ta, tb):
    """The last one shorter."""
    m, n, k, split = 72, 136, 200, KSplit(3, 96)
    r, seed = rs_product(m, n, k, ta, tb), random.randrange(2**32)
    launch = gemm_launch(t, r, H200, split, path="rs")
    launch = replace(launch, args=in_place_of_the_workspace(launch.args, Out(0)))
    a, b = (np.random.default_rng(seed).integers(-2, 3, d.shape).astype(np.float32) for d in r.operands)
    out = np.full(split.number * m * n, np.nan, np.float32)
    Machine(seed).launch(launch, [a.ravel(), b.ravel()], [out], 1)
    a, b = a.T if ta else a, b.T if tb else b
    for i, part in enumerate(out.reshape(split.number, m, n)):
        of_k = slice(i * split.k, (i + 1) * split.k)
        np.testing.assert_array_equal(part, a[:, of_k] @ b[of_k], f"part {i}, seed {seed}")


class NoWaitForProducts(Machine):
    """Words come while products still read those that were there."""

    def wait_products(self, pending):
        return (lambda: None) if pending else super().wait_products(pending)


class OneSet(Machine):
    """Words of a slice come to where those of the one before are."""

    def load_register_operand(self):
        load, sets = super().load_register_operand(), {}
        return lambda words, address: load(sets.setdefault(self.current, Words()), address)


class NoWaitForSlices(Machine):
    def wait_phase(self):
        wait = super().wait_phase()
        return lambda at, parity: wait(at, parity) if self.current.index == 0 else None


class EarlyRelease(Machine):
    """The producer does not wait until a stage is empty."""

    def wait_phase(self):
        wait = super().wait_phase()
        return lambda at, parity: None if self.current.index == 0 else wait(at, parity)


@pytest.mark.sample(1, pool="mistakes")
@pytest.mark.parametrize(
    "machine", [NoWaitForProducts, OneSet, NoWaitForSlices, EarlyRelease], ids=lambda m: m.__name__
)
def test_the_model_notices(machine):
    """Without any one of these, some order gives wrong numbers, or none comes to an end."""
    with pytest.raises((AssertionError, Stuck)):
        for seed in range(20):
            run(LITTLE, rs_product(72, 72, 300, False, False), seed, machine=machine)


# --- machine code -----------------------------------------------------------------------------------------------------

MAKES = {"plain": product, "residual": residual, "stashed": stashed, "activated": activated}
CODE = [(t, *order, then) for t in RS_TILINGS for order in ORDERS for then in MAKES]
EACH = [random.Random(f"{t}").choice([c for c in CODE if c[0] == t]) for t in RS_TILINGS]


def launch_of(t: WgmmaTiling, ta: bool, tb: bool, then: str):
    r = rs_product(1000, 1016, 1000, ta, tb, MAKES[then])
    return gemm_launch(t, r, H200, path="rs"), r


def is_new(t: WgmmaTiling, ta: bool, tb: bool, then: str) -> bool:
    launch, r = launch_of(t, ta, tb, then)
    return are_new([launch], r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, ta, tb, then", CODE if ALL else EACH, ids=str)
def test_compiles_without_spills_or_serialized_products(t, ta, tb, then):
    launch, r = launch_of(t, ta, tb, then)
    made = engine.compile_launch(launch, r, H200.target)
    assert_clean(t, made)
    found_clean(launch, r, H200.target)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("name", [str(c.tiling) for c in RS_CONFIGS if c.split])
@pytest.mark.parametrize("ta, tb", ORDERS)
@pytest.mark.parametrize("n", [1000, 1001])
def test_parts_compile_without_spills_or_serialized_products(name, ta, tb, n):
    t, r = next(t for t in RS_TILINGS if str(t) == name), rs_product(1000, n, 4096, ta, tb)
    made = engine.compile_launch(gemm_launch(t, r, H200, KSplit(4, 1024), path="rs"), r, H200.target)
    assert_clean(t, made)
