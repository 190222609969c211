"""Reductions over axes on both sides of a kept one, without a GPU: what is taken, what is computed, and that they are chosen."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import MORE, VARIANTS, assert_close, channel_variance, desc, operands_for, reference, region
from machines.on_host import OnHost
from test_fused_maps import fresh_seed

from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.registry.select import Selector
from aicf.types import bf16, f16, f32

H200, PLANES = preset("h200"), "cuda.reduce_planes.v2"
OVER = {"axes": (0, 2, 3), "keepdims": True}


@pytest.mark.sample(6, pool="on the host")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", [c for c in MORE if c.variant == PLANES], ids=str)
def test_code_run_on_the_host_agrees_with_numpy(case):
    """In runs and one by one, split and not, with maps on either side; memory is NaN where nothing was written."""
    r, variant = case.region, VARIANTS[PLANES]
    assert (reject := variant.supported(r, H200)) is None, reject
    operands = operands_for(case, fresh_seed())
    results = [np.full(t.nbytes, 255, np.uint8).view(t.dtype.numpy).reshape(t.shape) for t in r.results]
    workspace = np.full(variant.query_workspace(r, H200), 255, np.uint8)
    for launch in variant.build(r, H200):
        OnHost(launch, r)(operands.memory, results, workspace)
    assert_close(case, results, reference(case, operands.arrays))


def names(r):
    return [launch.body.__name__ for launch in VARIANTS[PLANES].build(r, H200)]


@pytest.mark.parametrize("shape, dtype, alignment, run", [
    ((8, 3, 7, 8), bf16, 256, 8), ((8, 3, 7, 8), f32, 256, 8), ((8, 3, 3, 4), f16, 256, 4), ((8, 3, 7, 7), f32, 256, 1),
    ((8, 3, 7, 8), bf16, 2, 1), ((8, 3, 7, 8), f32, 8, 1),
])  # fmt: skip
def test_runs_are_whole_and_aligned(shape, dtype, alignment, run):
    (first, *_) = names(region("reduce_sum", desc(shape, dtype, alignment=alignment), **OVER))
    assert first.startswith(f"reduce_planes{run}_")


def test_few_planes_are_split_and_many_are_not():
    assert len(names(region("reduce_sum", (64, 2, 64, 64), **OVER))) == 2
    assert len(names(region("reduce_sum", (64, 2000, 4, 4), **OVER))) == 1


@pytest.mark.parametrize("x, axes, reason", [
    ((4, 5, 6), (2,), "are not on both sides of one that is kept"),
    ((4, 5, 6, 7), (0, 2), "are not on both sides of one that is kept"),
    (desc((4, 5, 6, 7), f32, (210, 42, 1, 6)), (0, 2, 3), "an operand is broadcast or strided within axes"),
])  # fmt: skip
def test_refuses_with_the_value_seen(x, axes, reason):
    assert reason in str(VARIANTS[PLANES].supported(region("reduce_sum", x, axes=axes), H200))


@pytest.mark.parametrize("device", ["a100", "h200"])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_statistics_of_channels_take_near_what_their_bytes_do(device, dtype):
    """Of a layer of ResNet-50, where one thread for each channel would take a thousand times as long."""
    spec = preset(device)
    select = Selector(default_registry(), spec)
    for r in (
        region("reduce_mean", desc((32, 256, 56, 56), dtype), **OVER),
        channel_variance((32, 256, 56, 56), dtype),
    ):
        chosen = select(r).chosen
        assert chosen.variant.id == PLANES
        assert chosen.us < 2 * r.nbytes / spec.bandwidth * 1e-3
