"""Tiles that sum each half of k by itself: their results have the bits of `cluster split2`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_gpu_kernels
from draws.seeds import rng
from hopper_run import run_launch
from kernel_cases import ALL, Case, operands_for
from machines.hopper_model import NOTHING, Machine
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_wgmma import assert_clean
from wgmma_cases import (
    BY_NAME,
    H200,
    HALVED,
    activated,
    gemm_launch,
    named,
    other,
    product,
    residual,
    stashed,
)

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import wgmma_tiling
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling, tilings
from aicf.rows import RegionSpec
from aicf.types import bf16, f8e4m3, f16, f32

LITTLE = WgmmaTiling(128, 64, 2, halved=True)
PAIR = WgmmaTiling(64, 64, 1, cluster_split=2, registers=None)
EPILOGUES = {"plain": product, "residual": residual, "stashed": stashed, "activated": activated}
ORDERS = [(False, False), (False, True), (True, False), (True, True)]


def invariant(r: RegionSpec) -> RegionSpec:
    return replace(r, strict=True, invariant=True)


def drawn(generator: np.random.Generator, most: int) -> RegionSpec:
    """A product of two K-tiles at least, in any layout."""
    m, n = (8 * int(x) for x in generator.integers(1, most // 8, 2))
    k = 8 * int(generator.integers(9, 5 * most // 8))
    ta, tb = (bool(x) for x in generator.integers(2, size=2))
    then = str(generator.choice(["plain", "residual"]))
    return EPILOGUES[then](m, n, k, ta=ta, tb=tb, dtype=(f16, bf16)[generator.integers(2)])


@pytest.mark.sample(1)
@pytest.mark.spec("D9", "F2")
@pytest.mark.parametrize("number", range(6))
def test_results_are_those_of_the_product(number, request):
    """Small whole numbers; more tiles than blocks, more K-tiles than stages, odd numbers of them and even ones."""
    r = drawn(rng(request.node.nodeid), 160)
    print(r)
    run_launch(gemm_launch(LITTLE, r, H200), r, random.randrange(2**32), 1)


class Rounding(Machine):
    """Accumulators are f32 when they are read."""

    def finish_products(self, count: int, pending: int = 0) -> Any:
        finish = super().finish_products(count, pending)
        return lambda acc: tuple(map(np.float32, finish(acc)))


@pytest.mark.sample(1)
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("number", range(3))
def test_bits_are_those_of_two_blocks_that_share_a_tile(number, request):
    """On the model of a multiprocessor, whose sums are exact until they are rounded: those of each half, and then both together."""
    generator = rng(request.node.nodeid)
    m, n, k = (
        64 * int(generator.integers(1, 3)),
        8 * int(generator.integers(4, 20)),
        64 * int(generator.integers(3, 9)),
    )
    r = product(m, n, k, dtype=f16, tb=True, out_dtype=f32.id)
    print(r)
    a, b = (generator.integers(-64, 65, t.shape).astype(np.float64) for t in r.operands)
    a *= 2.0 ** (-12 * generator.integers(0, 2, a.shape))  # sums need 27 bits and more
    ins = [x.astype(np.float16).reshape(-1) for x in (a, b)]

    def run(t: WgmmaTiling, grid: int) -> np.ndarray:
        out = np.full(m * n, np.nan, np.float32)
        Rounding(0).launch(gemm_launch(t, r, H200), ins, [out], grid, NOTHING, 0)
        return out

    half = k // 64 // 2 * 64
    low, high = ((a[:, at] @ b[:, at].T).astype(np.float32) for at in (slice(half), slice(half, k)))
    assert run(PAIR, 0).tobytes() == run(LITTLE, 1).tobytes() == (low + high).tobytes()
    assert (
        run(WgmmaTiling(128, 64, 2), 1).tobytes()
        == (a @ b.T).astype(np.float32).tobytes()
        != (low + high).tobytes()
    )


@pytest.mark.spec("A15", "B14")
def test_the_class_is_that_of_clusters_of_two():
    for variant in HALVED.values():
        for dtype, k in ((bf16, 4096), (f16, 1000)):
            r = invariant(product(300, 264, k, dtype=dtype, tb=True))
            assert variant.numeric_class(r, H200) == BY_NAME[
                "gemm_wgmma[64x128 cluster split2]"
            ].numeric_class(r, H200)
            assert variant.numeric_class(r, H200) != BY_NAME["gemm_wgmma[128x128]"].numeric_class(r, H200)


@pytest.mark.parametrize("r, reason", [
    (product(64, 64, 4096), "rows of equal bits in any batch"),
    (invariant(product(64, 64, 64)), "K-tiles 1 is under 2"),
    (invariant(other(64, 64, 256, (f8e4m3, f8e4m3, bf16))), "needs two consumers that multiply at once, and registers for both"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    for variant in HALVED.values():
        assert reason in str(variant.supported(r, H200))


CODE = [(t, ta, tb, then) for t in wgmma_tiling.HALVED for ta, tb in ORDERS for then in EPILOGUES]
EACH = [random.Random(f"{t}").choice([c for c in CODE if c[0] == t]) for t in wgmma_tiling.HALVED]


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, ta, tb, then", CODE if ALL else EACH, ids=str)
def test_compiles_without_spills_or_serialized_products(t, ta, tb, then):
    r = invariant(EPILOGUES[then](1000, 1000, 1000, ta=ta, tb=tb, dtype=bf16))
    assert_clean(t, engine.compile_launch(gemm_launch(t, r, H200), r, H200.target))


@pytest.mark.gpu
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("then", ["plain", "residual"])
def test_all_kernels_of_the_class_give_equal_bits(gpu, then, request, monkeypatch):  # noqa: F811
    """Drawn products, of normal numbers: every tile of clusters of two, and every halved one."""
    generator = rng(request.node.nodeid)
    kernels: dict[str, Any] = {v.id: v for v in (*HALVED.values(), *(BY_NAME[named(t)] for t in tilings(
        "64x64_cluster_split2 64x128_cluster_split2 128x64_cluster_split2 128x128_cluster_split2")))}  # fmt: skip
    monkeypatch.setattr(test_gpu_kernels, "VARIANTS", {**test_gpu_kernels.VARIANTS, **kernels})
    for _ in range(4):
        m, n, k = (
            int(generator.integers(1, 700)),
            8 * int(generator.integers(1, 90)),
            8 * int(generator.integers(9, 700)),
        )
        r = invariant(EPILOGUES[then](m, n, k, tb=True, dtype=(f16, bf16)[generator.integers(2)]))
        operands = operands_for(Case(next(iter(kernels)), r), int(generator.integers(2**31)))
        got = {id: launch_case(gpu, Case(id, r), operands.memory)[0].tobytes() for id in kernels}
        assert len({*got.values()}) == 1, (
            f"{m}x{n}x{k} {r.operands[0].dtype}: {[id for id in got if got[id] != next(iter(got.values()))]}"
        )
