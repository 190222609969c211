"""The Hopper GEMM with k split: what is taken and chosen, that each part is right on the model, that its code is what it should be.

The second launch is gemm/schedule/split_k.py's, and tested there.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from machines.hopper_model import Machine
from test_wgmma import assert_clean
from wgmma_cases import (
    ALL,
    BY_NAME,
    H200,
    SPLITS,
    TRANSPOSES,
    VARIANTS,
    assert_refused,
    gemm_launch,
    named,
    product,
    residual,
)

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import wgmma_cost
from aicf.cuda_kernels.gemm.schedule import split_k as gemm_split
from aicf.cuda_kernels.gemm.schedule.split_k import KSplit
from aicf.cuda_kernels.gemm.wgmma_tiling import CONFIGS, WgmmaTiling
from aicf.registry.variant import Out, Work
from aicf.types import bf16

SPLIT = [c.tiling for c in CONFIGS if c.split]


@pytest.mark.parametrize("r, reason", [
    (product(64, 64, 128), "k 128 is under 129"),
    (dataclasses.replace(product(64, 64, 256), strict=True), "strict takes one sum"),
    (product(64, 64, 260), "needs rows"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(SPLITS, r, reason)


def test_the_workspace_holds_every_part_and_the_grid_their_tiles():
    r = residual(200, 304, 8192)
    for t in SPLIT:
        variant, (_, split) = SPLITS[named(t, "split")], wgmma_cost.best_split(t, r, H200)
        first, second = variant.build(r, H200)
        assert split.number > 1 and variant.query_workspace(r, H200) == 4 * split.number * 200 * 304
        assert second.args[1].value == split.number
        assert t.cluster <= first.grid[0] <= 132 * t.blocks and first.grid[0] % t.cluster == 0


@pytest.mark.spec("B8", "B10", "D5")
@pytest.mark.parametrize("sizes, split", [
    ((512, 512, 16384), True), ((1024, 1024, 8192), False), ((128, 4096, 4096), False), ((256, 256, 256), False),
    ((1024, 1024, 1024), False), ((4096, 4096, 4096), False), ((8192, 8192, 512), False),
])  # fmt: skip
def test_chosen_for_few_results_of_long_sums(sizes, split):
    r = product(*sizes, dtype=bf16, tb=True)
    taken = [v for v in BY_NAME.values() if v.supported(r, H200) is None]
    best = min(taken, key=lambda v: v.cost(r, H200).us)
    assert (best.name in SPLITS) == split
    if split:
        assert best.cost(r, H200).terms["sum of parts"] > 0
        assert best.cost(r, H200).us < min(v.cost(r, H200).us for v in VARIANTS.values())


PINGPONG = WgmmaTiling(64, 128, 2, ping_pong=True)


@pytest.mark.sample(2, pool="on the model")
@pytest.mark.spec("B10", "F2")
@pytest.mark.parametrize("t, sizes, depth", [
    (WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 216)), (72, 136, 712), 128), (PINGPONG, (72, 136, 712), 256),
    (PINGPONG, (64, 128, 1400), 640), (WgmmaTiling(64, 64, 1, registers=None), (70, 57, 200), 128),
])  # fmt: skip
def test_every_part_goes_where_it_belongs(t, sizes, depth):
    """KSplit of whole slices, the last one shorter; of turn groups, each steps over as many slices as the other's tile has."""
    m, n, k = sizes
    r, rng, seed = (
        product(m, n, k, pitch=(None, -(-n // 8) * 8)),
        np.random.default_rng(),
        random.randrange(2**32),
    )
    a, b = rng.integers(-2, 3, (m, k)), rng.integers(-2, 3, (k, n))
    rows = np.full((k, -(-n // 8) * 8), np.nan, np.float16)
    rows[:, :n] = b
    split = KSplit(-(-k // depth), depth)
    launch = gemm_launch(t, r, H200, split)
    launch = dataclasses.replace(launch, args=in_place_of_the_workspace(launch.args, Out(0)))
    out = np.full(split.number * m * n, np.nan, np.float32)
    Machine(seed).launch(launch, [a.astype(np.float16).ravel(), rows.ravel()], [out], t.cluster)
    for i, part in enumerate(out.reshape(split.number, m, n)):
        of_k = slice(i * depth, (i + 1) * depth)
        np.testing.assert_array_equal(part, a[:, of_k] @ b[of_k], f"part {i}, seed {seed}")


def in_place_of_the_workspace(args, out):
    if isinstance(args, tuple) and not isinstance(args, Work):
        return tuple(in_place_of_the_workspace(arg, out) for arg in args)
    return out if isinstance(args, Work) else args


CODE = [(t, order, n) for t in SPLIT for order in TRANSPOSES for n in (1000, 1001)]


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("t, order, n", CODE if ALL else random.Random(0).sample(CODE, 3), ids=str)
def test_compiles_without_spills_or_serialized_products(t, order, n):
    ta, tb = order
    r = product(1000, n, 4096, ta=ta, tb=tb, pitch=(None, None if tb else 1008))
    launch = gemm_launch(t, r, H200, gemm_split.divide(4096, 4, 64))
    assert_clean(t, engine.compile_launch(launch, r, H200.target))
