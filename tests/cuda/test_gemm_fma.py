"""Hopper's exact f32 products without a GPU: what they take, their machine code, and what they compute on the model of a machine."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from clean_kernels import are_new, found_clean
from fused_gemm_cases import Product
from hopper_run import run_launch
from kernel_cases import PARTS
from machines.hopper_bodies import bodies
from machines.hopper_model import Machine, Stuck
from wgmma_cases import (
    ALL,
    H200,
    TRANSPOSES,
    activated,
    assert_refused,
    backward,
    batches,
    product,
    residual,
    stashed,
)

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import fma as gemm_fma
from aicf.cuda_kernels.gemm import fma_body as body
from aicf.cuda_kernels.gemm import fma_stages as slices
from aicf.cuda_kernels.gemm.schedule import split_k as gemm_split
from aicf.cuda_kernels.gemm.tilings import FmaTiling, Order
from aicf.registry.variant import variants_in
from aicf.rows import RegionSpec
from aicf.types import Precision, f32

VARIANTS = {v.name: v for v in variants_in(gemm_fma) if v.id not in PARTS}
WHOLE = {name: v for name, v in VARIANTS.items() if not name.endswith(" split]")}

PAIR, SINGLE = FmaTiling(64, 64, 16, 1, raws=2, warp_groups=2), FmaTiling(64, 64, 32, 1)


def padded(m: int, n: int, k: int, make=product, ta=False, tb=False, **more) -> RegionSpec:
    """With rows that begin at multiples of 16 bytes, whatever the sizes."""
    pitch = tuple(-(-x // 4) * 4 for x in (m if ta else k, k if tb else n))
    return make(m, n, k, dtype=f32, ta=ta, tb=tb, pitch=pitch, **more)


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r, reason", [
    (product(64, 64, 64), "the product is in f16, needs f32"),
    (product(64, 64, 0, dtype=f32), "least extent 0 is under 1"),
    (product(64, 64, 63, dtype=f32), "a is f32[64x63], needs rows that begin at multiples of 16 bytes"),
    (product(64, 63, 64, dtype=f32), "b is f32[64x63], needs rows that begin at multiples of 16 bytes"),
    (product(64, 64, 64, dtype=f32, alignment=8), "a is aligned to 8 bytes, needs 16"),
    (Product(1, 4, 4, f32, batch=(2**31,)).then({}), "tiles of 64 x 64 2147483648 is over"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(VARIANTS, r, reason)


def test_takes_every_transpose_and_any_size():
    for ta, tb in TRANSPOSES:
        for variant in WHOLE.values():
            assert variant.supported(padded(37, 53, 29, ta=ta, tb=tb), H200) is None
            assert variant.supported(padded(37, 53, 29, ta=ta, tb=tb, precision=Precision.tf32), H200) is None


@pytest.mark.spec("A15")
def test_strict_takes_sums_in_one_piece():
    r = replace(product(1024, 1024, 1024, dtype=f32), strict=True)
    taken = {name for name, v in VARIANTS.items() if v.supported(r, H200) is None}
    assert taken == {name for name in WHOLE if " sliced" not in name}


# --- where things lie -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k_major", [False, True])
@pytest.mark.parametrize("lanes", [body.LANES_M, body.LANES_N])
def test_halves_of_a_warp_read_all_banks_once(k_major, lanes):
    """Of 16 lanes, the runs that differ lie in different 16 bytes of 128: whichever run of whichever k."""
    place = slices.places(Order(k_major, ()), 128, lanes)
    of, own = bodies(Machine(0)).of(slices.lanes_of(gemm_fma.SQUARE)), 2 if lanes == body.LANES_M else 3
    for k in range(4):
        for line in range(0, 64 // lanes, 4):
            flipped, added = place(line, k)
            for half in (0, 16):
                picked = [of(lane)[own] for lane in range(half, half + 16)]
                runs = {(256 + 16 * x ^ flipped) + added for x in picked}
                assert len(runs) == len(set(picked)) == len({run % 128 // 16 for run in runs}), (k, line)


class Watched(Machine):
    """Where threads read rows of matrices and store runs when they transpose slices."""

    def transpose_runs(self, sources, targets):
        def transpose(source, target):
            for kind, at, places in ("read", source, sources), ("write", target, targets):
                for i, (flipped, added) in enumerate(places):
                    self.seen.setdefault((kind, i), []).append((at ^ flipped) + added)

        return transpose


@pytest.mark.parametrize("t", gemm_fma.TILINGS[:3], ids=str)
@pytest.mark.parametrize("is_a", [False, True])
def test_eight_lanes_that_turn_slices_find_all_banks(t, is_a):
    """But for rows of 64 bytes, which lie in half of them; and all lanes together read everything once."""
    machine, lines = Watched(0), t.m if is_a else t.n
    machine.seen = seen = {}
    transpose = bodies(machine).of(slices.transpose_of(t, Order(True, ()), is_a))
    for member in range(t.warps_threads):
        transpose(0x8000, 0, member, 3)
    for kind in ("read", "write"):
        each = [at for (k, _), at in seen.items() if k == kind]
        for at in each:
            for first in range(0, len(at), 8):
                banks = {x % 128 // 16 for x in at[first : first + 8]}
                assert len(banks) == (4 if t.step == 16 and kind == "read" else 8)
        assert len({x for at in each for x in at}) == sum(map(len, each)) == lines * t.step // 4


# --- what is computed -------------------------------------------------------------------------------------------------

BATCHES = batches(20, 36, 40, f32)


@pytest.mark.sample(1)
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
@pytest.mark.parametrize("t", [PAIR, SINGLE], ids=str)
@pytest.mark.parametrize("n", [68, 66])
def test_every_number_goes_where_it_belongs(t, n, ta, tb):
    """More slices than stages, edges in every direction, results in runs of four and one by one."""
    k = t.step * t.warp_groups * (t.stages + 2 if ALL else 2) + 20
    r = padded(70 if ALL else 30, n, k, ta=ta, tb=tb)
    run_launch(gemm_fma.launch(t, r), r, random.randrange(2**32))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D5", "D7")
@pytest.mark.parametrize("make", [residual, stashed, activated, backward])
@pytest.mark.parametrize("t", [PAIR, SINGLE], ids=str)
def test_epilogues(t, make):
    r = padded(18, 36, 40, make, tb=True)
    run_launch(gemm_fma.launch(t, r), r, random.randrange(2**32), tolerance=2e-5)


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("D9")
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name):
    r = BATCHES[name]
    run_launch(gemm_fma.launch(SINGLE, r), r, random.randrange(2**32), tolerance=2e-5)


def test_a_split_reads_its_part_of_k():
    """Each part's sums by themselves: those of a product of these k alone."""
    r = product(20, 24, 100, dtype=f32, tb=True)
    rng = np.random.default_rng()
    a, b = (rng.integers(-2, 3, d.shape).astype(np.float32) for d in r.operands)
    work = np.full(4 * 2 * 20 * 24, 0xFF, np.uint8)
    launch = gemm_fma.launch(SINGLE, r, gemm_split.KSplit(2, 64))
    Machine(0).launch(launch, [a.reshape(-1), b.reshape(-1)], [], workspace=work)
    got = work.view(np.float32).reshape(2, 20, 24)
    np.testing.assert_array_equal(got, [a[:, :64] @ b[:, :64].T, a[:, 64:] @ b[:, 64:].T])


def test_sums_are_in_the_order_of_k():
    """Of numbers whose sum depends on it: as by one fused multiply-add after the other."""
    r = product(8, 8, 72, dtype=f32, tb=True)
    rng = np.random.default_rng()
    a, b = (rng.standard_normal(d.shape).astype(np.float32) for d in r.operands)
    want = np.zeros((8, 8), np.float32)
    for i in range(72):
        want = (np.outer(a[:, i].astype(np.float64), b[:, i].astype(np.float64)) + want).astype(np.float32)
    out = np.full(64, np.nan, np.float32)
    Machine(0).launch(gemm_fma.launch(SINGLE, r), [a.reshape(-1), b.reshape(-1)], [out])
    np.testing.assert_array_equal(out.reshape(8, 8), want)


class Forgetful(Machine):
    """One instruction less."""

    left_out = ""

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "left_out"):
            return lambda *config: lambda *args: None
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("left_out", ["wait_phase", "arrive"])
def test_needs_its_barriers(left_out):
    """Slices are waited for, and stages are not filled before they are read."""
    machine = type("", (Forgetful,), {"left_out": left_out})
    r = padded(24, 24, SINGLE.step * 6, tb=True)
    with pytest.raises((AssertionError, Stuck)):
        run_launch(gemm_fma.launch(SINGLE, r), r, 0, machine=machine)


# --- machine code -----------------------------------------------------------------------------------------------------

CONFIGURATIONS = [
    (name, ta, tb, make, n)
    for name in VARIANTS for ta, tb in TRANSPOSES for make in (product, residual, stashed, activated, backward) for n in (1024, 1022)
    if make is product or name in WHOLE
]  # fmt: skip
SAMPLE = random.Random(3).sample(CONFIGURATIONS, 24)


def is_new(name, ta, tb, make, n) -> bool:
    r = padded(1000, n, 1000, make, ta=ta, tb=tb)
    return are_new(VARIANTS[name].build(r, H200)[:1], r, "sm_90a")


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("name, ta, tb, make, n", CONFIGURATIONS if ALL else SAMPLE)
def test_machine_code(name, ta, tb, make, n):
    """No spills, no stack, no warnings, no f64; and as many multiply-adds as two quads have."""
    check_code(name, padded(1000, n, 1000, make, ta=ta, tb=tb))


def check_code(name: str, r: RegionSpec) -> None:
    launch, *_ = VARIANTS[name].build(r, H200)
    made = engine.compile_launch(launch, r, "sm_90a")
    assert (made.spill_bytes, made.stack_bytes) == (0, 0), made.log
    assert "warning" not in made.log.lower() and not re.findall(r"C75\d\d", made.log), made.log
    tiling = next(
        t
        for t in gemm_fma.TILINGS[:3]
        if VARIANTS[name].config.removesuffix(" split") == str(t).replace("_", " ")
    )
    assert made.registers <= 65536 // (tiling.threads * tiling.blocks_per_sm)
    ptx = engine.ptx_of(launch, r, "sm_90a")
    assert not re.findall(r"\.f64", ptx)
    assert len(re.findall(r"^\s*fma\.rn\.f32", ptx, re.MULTILINE)) >= 1024
    found_clean(launch, r, "sm_90a")


@pytest.mark.skipif(not ALL, reason="make test-all")
@pytest.mark.parametrize("name", sorted(BATCHES))
def test_machine_code_of_batches(name):
    check_code("gemm_fma[128x128]", BATCHES[name])
