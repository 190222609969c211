"""Convolutions on Hopper without a GPU: what is taken, what a model of the machine computes, and that they compile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from clean_kernels import are_new, found_clean
from convolution_cases import H200, SHAPES, VARIANTS, biased, convolution
from hopper_run import run_launch
from kernel_cases import desc
from test_wgmma import assert_clean
from wgmma_cases import assert_refused

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.conv import wgmma as conv_wgmma
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling
from aicf.device.spec import preset
from aicf.types import bf16, f16, f32

SMALL = WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 216))
PINGPONG = WgmmaTiling(64, 128, 2, ping_pong=True)


@pytest.mark.parametrize("r, reason", [
    (convolution((2, 8, 8, 16), (8, 3, 3, 16), dtype=f32), "x is f32, needs f16 or bf16"),
    (convolution((2, 8, 8, 16), (8, 3, 3, 8), groups=2), "groups 2 is over 1"),
    (convolution((2, 4, 8, 8, 16), (8, 3, 3, 3, 16)), "spatial axes 3 is over 2"),
    (convolution((2, 8, 8, 12), (8, 3, 3, 12)), "channels 12 is not a multiple of 8"),
    (convolution((2, 8, 8, 16), (8, 3, 3, 16), alignment=8), "x is aligned to 8 bytes, needs 16"),
    (convolution((2, 8, 8, 16), (8, 3, 3, 16), input_dilation=(2, 2)), "input_dilation is (2, 2), needs 1"),
    (convolution((2, 40, 40, 16), (8, 3, 3, 16), strides=(9, 1)), "stride 9 is over 8"),
    (convolution((2, 600, 8, 16), (8, 3, 3, 16), dilation=(128, 1)), "elements from a window's first to its last 256 is over 255"),
    (convolution((2, 300, 8, 16), (8, 200, 3, 16)), "padding 198 is over 127"),
    (convolution((2, 2, 8, 16), (8, 3, 3, 16)), "least extent of results 0 is under 1"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(VARIANTS, r, reason)


def test_needs_hopper_itself():
    r = convolution((2, 8, 8, 16), (8, 3, 3, 16))
    for device in (preset("a100"), preset("b200")):
        assert all(v.supported(r, device).condition == "needs" for v in VARIANTS.values())


def test_a_broadcast_along_images_is_no_row():
    """Of what differs from image to image only, rows are not one walk."""
    x, w, attrs = SHAPES["3x3"]
    r = convolution(
        x, w, ("z", "add", "y", "per_image"), given={"per_image": desc((2, 1, 1, 24), f16)}, **attrs
    )
    assert_refused(VARIANTS, r, "axes of the batch 1 is over 0")


@pytest.mark.sample(3, pool="on the model", always=lambda name, make, dtype: False)
@pytest.mark.spec("D13", "F2")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("make", [convolution, biased])
@pytest.mark.parametrize("name", SHAPES)
def test_every_number_goes_where_it_belongs(name, make, dtype):
    """More tiles than blocks, more K-tiles than stages, edges in every direction; nothing outside of the tensor is read."""
    x, w, attrs = SHAPES[name]
    r = make(x, w, dtype=dtype, **attrs)
    tiling = random.choice((SMALL, PINGPONG))
    rounding = 2**-8 if dtype is bf16 else 0.0  # sums of small whole numbers, of which bf16 has those to 256
    run_launch(conv_wgmma.launch(tiling, r, H200), r, random.randrange(2**32), 1, tolerance=rounding)


def test_windows_of_the_model_are_those_of_numpy():
    """The model of the machine is what the others are held to."""
    x, w, attrs = SHAPES["uneven"]
    run_launch(conv_wgmma.launch(SMALL, convolution(x, w, **attrs), H200), convolution(x, w, **attrs), 3, 2)
    wrong = replace(conv_wgmma.launch(SMALL, convolution(x, w, **attrs), H200))
    (maps, *rest) = wrong.args
    moved = replace(maps[0], first=(maps[0].first[0], maps[0].first[1] - 1))
    with pytest.raises(AssertionError):
        run_launch(replace(wrong, args=((moved, *maps[1:]), *rest)), convolution(x, w, **attrs), 3, 2)


def region_of(t, then):
    x, w, attrs = (8, 56, 56, 64), (72, 3, 3, 64), {"low": (1, 1), "high": (1, 1)}
    return then(x, w, dtype=random.Random(f"{t}").choice((f16, bf16)), **attrs)


def is_new(t, then):
    r = region_of(t, then)
    return are_new([conv_wgmma.launch(t, r, H200)], r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D13")
@pytest.mark.parametrize("then", [convolution, biased])
@pytest.mark.parametrize("t", conv_wgmma.WHOLE, ids=str)
def test_compiles_without_spills_or_serialized_products(t, then):
    r = region_of(t, then)
    launch = conv_wgmma.launch(t, r, H200)
    assert_clean(t, engine.compile_launch(launch, r, H200.target))
    found_clean(launch, r, H200.target)
    assert ".im2col." in engine.ptx_of(launch, r, H200.target)
