"""How rows are cut, which kernel has them and why, and how exact functions are for halves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_cases import (
    CLUSTER,
    HELD,
    SERIAL,
    STREAMED,
    VARIANTS,
    desc,
    layer_norm,
    logsumexp,
    region,
    repeated_rows,
    rms_norm,
    softmax,
    softmax_grad,
)

import aicf
from aicf.cuda_kernels.rows import row_tiles as tiles
from aicf.device.spec import preset
from aicf.registry.select import select
from aicf.registry.variant import Num
from aicf.types import bf16, f16, f32

H200, A100 = preset("h200"), preset("a100")


@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    "r, width, cut, loose",
    [
        (softmax((7, 1024), f16), 8, False, 0),
        (softmax((7, 1023), f16), 8, True, 0),
        (softmax((7, 1023), f32), 4, True, 0),
        (softmax((7, 1020), f16), 4, False, 0),
        (softmax((7, 15), f16), 4, True, 0),
        (layer_norm((7, 1023), bf16), 2, True, 2),  # weight and bias lie otherwise in each row
        (layer_norm((7, 1023), f32), 1, False, 0),
        (rms_norm((1, 1023), bf16), 8, True, 0),
        (region("softmax", desc((7, 1024), f16, (1031, 1))), 8, True, 1),
        (region("softmax", desc((7, 1024), f16, alignment=2)), 8, True, 1),
    ],
)
def test_runs_of_neighbours(r, width, cut, loose):
    if loose == 1:  # rows of the result lie otherwise than those of the operand
        width = 2
    found = tiles.cut_of(r)
    assert (found.width, found.anchor >= 0, sum(found.loose)) == (width, cut, loose)


@pytest.mark.spec("A12")
def test_tiles_cover_rows_within_registers():
    rng = np.random.default_rng()
    for make, dtype in itertools.product((softmax, softmax_grad, layer_norm), (f32, f16)):
        for _ in range(20):
            shape = tuple(int(2 ** rng.uniform(0, k)) for k in (16, 18))
            r = make(shape, dtype)
            streamed = tiles.streamed(r, True)
            for tile in (tiles.resident_tile(r), tiles.clustered(r), streamed):
                if tile is None:
                    continue
                assert (
                    tile.block % 32 == 0
                    and tile.lanes * max(1, tile.block // tile.lanes) == tile.block <= 512
                )
                assert tile.cluster == 1 or tile.lanes == tile.block
                assert tile.words <= 48
                step = tile.lanes * tile.cluster * tile.cut.width
                if tile.cut.anchor >= 0:
                    assert tile.lanes * tile.cluster >= 2 * tile.cut.width - 2
                if tile is not streamed:
                    assert tile.chunks * step + 2 * (tile.cut.width - 1) >= shape[1]
                    assert tile.whole * step + (tile.cut.width - 1) * (tile.cut.anchor >= 0) <= shape[1]


@pytest.mark.spec("A12")
def test_kernels_of_neighbours_refuse_an_operand_that_repeats_one_element():
    """The kernel of a thread for each row takes it, by the stride 0 as an argument."""
    for r in repeated_rows():
        for kernel in (HELD, CLUSTER, STREAMED):
            reject = VARIANTS[kernel].supported(r, H200)
            assert reject is not None and "has stride 0 along the columns, needs 1" in str(reject), (
                kernel,
                r,
            )
        (launch,) = VARIANTS[SERIAL].build(r, H200)
        assert Num(0) in launch.args[5]
    (launch,) = VARIANTS[HELD].build(region("softmax", desc((20, 1), f32, (1, 0))), H200)
    assert launch.args[5] == ()


@pytest.mark.spec("B8")
@pytest.mark.parametrize(
    "r, device, chosen",
    [
        (softmax((4096, 1024), bf16), H200, HELD),
        (softmax((11, 112885), f16), H200, CLUSTER),
        (softmax((1, 131072), f32), H200, CLUSTER),
        (softmax((11, 112885), f16), A100, STREAMED),
        (softmax_grad((53, 262144), f32), H200, STREAMED),
        (softmax((128, 300, 256), f32, 1), H200, SERIAL),
    ],
)
def test_which_kernel_has_the_rows(r, device, chosen):
    assert select(r, device, aicf.default_registry()).kernel_id == chosen


@pytest.mark.spec("B7")
def test_the_trace_says_why_several_blocks_share_a_row():
    few = softmax((11, 112885), f16)
    terms = VARIANTS[CLUSTER].cost(few, H200).terms
    assert terms["cluster"] > 0
    assert VARIANTS[STREAMED].cost(few, A100).terms["turns of blocks"] > terms.get("turns of blocks", 0.0)
    reject = VARIANTS[HELD].supported(few, H200)
    assert reject is not None and "a row of 112885 is too long for the registers of 512 threads" in str(
        reject
    )
    assert VARIANTS[CLUSTER].supported(few, A100).condition == "needs"


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_exp_by_a_power_of_two_is_exact_enough_for_halves(dtype):
    """Of every number of the type, beside exp in f64; ex2.approx is off by 2^-22 of its result at most, as the PTX manual says."""
    x = np.arange(2**16, dtype=np.uint16).view(dtype.numpy).astype(np.float32)
    x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        exact, power = (
            np.exp(x.astype(np.float64)),
            np.exp2((x * np.float32(1.4426950408889634)).astype(np.float64)),
        )
    normal = (exact > 2.0**-126) & (exact < np.finfo(np.float32).max)
    off = np.abs(power[normal] / exact[normal] - 1) + 2.0**-22
    assert off.max() < 2.0**-17
    assert (power[~normal & (x < 0)] < 2.0**-125).all()


def test_logsumexp_of_f32_is_as_exact_as_ever():
    """What halves may do is done where all results are halves only."""
    from aicf.cuda_kernels.rows.rows import _fast

    assert (
        _fast(logsumexp((3, 5), f16))
        and not _fast(logsumexp((3, 5), f32))
        and not _fast(layer_norm((3, 5), bf16))
    )
