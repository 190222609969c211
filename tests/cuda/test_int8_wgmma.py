"""Products of 8-bit integers on Hopper, without a GPU: what is taken, what is computed on a model of it, and machine code."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from clean_kernels import are_new, found_clean
from hopper_run import run_launch
from int8_cases import SIGNS, assert_exact, operands_of, residual, scaled, whole
from kernel_cases import VARIANTS
from machines.hopper_model import NOTHING, Machine
from test_wgmma import assert_clean
from wgmma_cases import ALL, H200, assert_refused, gemm_launch, product

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import copied
from aicf.cuda_kernels.gemm import wgmma as gemm_wgmma
from aicf.cuda_kernels.gemm.wgmma_tiling import INT8_CONFIGS, WgmmaTiling
from aicf.device.spec import preset
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import DType, bf16, i8

BY_NAME = {v.name: v for v in (*gemm_wgmma.INT8, *copied.PACKED[1])}
INT8_TILINGS = [c.tiling for c in INT8_CONFIGS]
PACKED = {name: v for name, v in BY_NAME.items() if name.endswith(" packed]")}
PLAIN = {name: v for name, v in BY_NAME.items() if name.endswith(" int8]")}
NAIVE = "cuda.gemm_naive_int8.v1"
LITTLE, TWO, PINGPONG, CLUSTER = (
    WgmmaTiling(64, 64, 1, registers=None),
    WgmmaTiling(128, 64, 2),
    WgmmaTiling(64, 64, 2, ping_pong=True),
    WgmmaTiling(64, 64, 1, cluster=2, registers=None),
)

# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variants, r, reason", [
    (PLAIN, product(64, 64, 64, dtype=bf16, tb=True), "a is bf16, this one is for i8 and u8"),
    (PLAIN, whole(64, 64, 64, tb=False), "needs rows of k, as tensor cores read i8, that begin at multiples of 16 bytes"),
    (PLAIN, whole(64, 64, 63, apart=lambda n: n), "needs rows of k, as tensor cores read i8"),
    (PLAIN, whole(64, 64, 0), "k 0 is under 1"),
    (PACKED, whole(64, 64, 64), "a and b are read where they are"),
])  # fmt: skip
def test_refuses_with_the_value_seen(variants, r, reason):
    assert_refused(variants, r, reason)


@pytest.mark.parametrize("types", SIGNS, ids=str)
@pytest.mark.parametrize("make", [whole, scaled, residual])
def test_large_products_are_theirs(make, types):
    """With the scales behind them in one kernel; of b that lies along n, with a copy of it."""
    for tb in (True, False):
        chosen = select(make(4096, 4096, 4096, types, tb=tb), H200, aicf.default_registry()).kernel_id
        assert " int8" in chosen and chosen.endswith(" packed]") is not tb


def test_integers_are_predicted_to_be_faster_than_halves():
    registry = aicf.default_registry()
    us = [
        registry.by_id(select(r, H200, registry).kernel_id).cost(r, H200).us
        for r in (scaled(8192, 8192, 8192), product(8192, 8192, 8192, dtype=bf16, tb=True))
    ]
    assert 1.6 < us[1] / us[0] < 2.1


# --- what is computed -------------------------------------------------------------------------------------------------


def run(t: WgmmaTiling, r: RegionSpec, seed: int, grid: int = 1) -> None:
    """On the model of a Hopper multiprocessor, with all of the range of integers."""
    given = operands_of(r, seed)
    outs = [np.full(d.numel, 1, d.dtype.numpy) for d in r.results]
    Machine(seed).launch(gemm_launch(t, r, H200), given.memory, outs, grid, NOTHING, 0)
    assert_exact(r, [x.reshape(d.shape) for x, d in zip(outs, r.results)], given.arrays)


SIZES: list[Any] = [(whole, (72, 136, 200)), (whole, (61, 53, 29)), (whole, (64, 64, 33)), (scaled, (72, 72, 272)), (scaled, (130, 67, 65)),
                    (residual, (72, 72, 72)), (residual, (61, 131, 100))]  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("types", SIGNS, ids=str)
@pytest.mark.parametrize("make, sizes", SIZES)
@pytest.mark.parametrize("t", [LITTLE, TWO, PINGPONG], ids=str)
def test_every_number_goes_where_it_belongs(t, make, sizes, types):
    """More tiles than blocks, edges in every direction; more K-tiles than one, the last one short; results alone and in boxes."""
    run(t, make(*sizes, types), random.randrange(2**32))


def test_clusters_share_b():
    run(CLUSTER, whole(136, 72, 300), random.randrange(2**32), 2)


def test_whole_numbers_of_floats_agree():
    """As other kernels' tests have them."""
    run_launch(gemm_launch(LITTLE, scaled(64, 72, 48), H200), scaled(64, 72, 48), 3, tolerance=1e-2)


# --- machine code -----------------------------------------------------------------------------------------------------

MAKES = {"plain": whole, "scaled": scaled, "residual": residual}
CODE = [(t, then, types) for t in INT8_TILINGS for then in MAKES for types in SIGNS]
EACH = [random.Random(f"{t}").choice([c for c in CODE if c[0] == t]) for t in INT8_TILINGS]


def is_new(t: WgmmaTiling, then: str, types: tuple[DType, DType]) -> bool:
    r = MAKES[then](1000, 1008, 1000, types)
    return are_new([gemm_launch(t, r, H200)], r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.parametrize("t, then, types", CODE if ALL else EACH, ids=str)
def test_compiles_without_spills_or_serialized_products(t, then, types):
    r = MAKES[then](1000, 1008, 1000, types)
    launch = gemm_launch(t, r, H200)
    made = engine.compile_launch(launch, r, H200.target)
    assert_clean(t, made)
    found_clean(launch, r, H200.target)
    a, b = ("s8" if x is i8 else "u8" for x in types)
    assert f"m64n{t.n}k32.s32.{a}.{b} " in engine.ptx_of(launch, r, H200.target)


# --- on other GPUs ------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("ta, tb", [(False, False), (True, True)])
@pytest.mark.parametrize("make", [whole, scaled, residual])
def test_before_hopper_a_thread_has_an_element(make, ta, tb):
    """However operands lie; it compiles for each architecture, or for a drawn one. What it computes: simulate.py."""
    r = make(37, 29, 77, random.choice(SIGNS), ta=ta, tb=tb, apart=lambda n: n + 1)
    for device in ("a100", "l4"):
        assert select(r, preset(device), aicf.default_registry()).kernel_id == NAIVE
    (launch,) = VARIANTS[NAIVE].build(r, H200)
    targets = "sm_75", "sm_80", "sm_90a"
    for target in targets if ALL else random.sample(targets, 1):
        made = engine.compile_launch(launch, r, target)
        assert made.spill_bytes == made.stack_bytes == 0
