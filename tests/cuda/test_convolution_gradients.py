"""Gradients of convolutions without a GPU: what is taken, numbers in numba's simulator and on a model of Hopper, and that they compile."""

from __future__ import annotations

import random

import pytest
from clean_kernels import are_new, found_clean
from convolution_cases import H200, SHAPES, convolution
from draws.seeds import rng
from gradient_cases import (
    DATA_TILED,
    DATA_TURNED,
    OTHERS,
    WEIGHT_COLUMNS,
    WEIGHT_TILED,
    data_gradient,
    weight_gradient,
)
from gradient_runs import run_strided_data_gradient, run_weight_gradient
from hopper_run import run_launch
from kernel_cases import GRADIENTS, VARIANTS, desc, fused
from simulated import outcomes_of
from test_wgmma import assert_clean
from wgmma_cases import assert_refused

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.conv import operands
from aicf.cuda_kernels.conv import wgmma as of_data
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.registry.select import Selector
from aicf.types import bf16, f16, f32

SMALL = WgmmaTiling(64, 128, 1, blocks=2, registers=(40, 216))
PINGPONG = WgmmaTiling(64, 192, 2, ping_pong=True)
WEIGHTS, DATA, STRIDED = (
    {v: VARIANTS[v] for v in GRADIENTS if v.startswith(f"cuda.{of}_wgmma")}
    for of in ("weight_gradient", "data_gradient", "data_gradient_strided")
)
UNDER = {"low": (1, 1), "high": (1, 1)}


@pytest.mark.sample(1, pool="simulated")
@pytest.mark.spec("D13", "F2")
def test_simulated_gradients_agree_with_numpy():
    assert len(outcomes_of("simulate_gradients.py")) >= 2 * 2 * len(OTHERS) // 6


@pytest.mark.spec("D13")
@pytest.mark.parametrize("device", ["t4", "a100", "h200", "b200"])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_every_gradient_has_a_kernel_everywhere(dtype, device):
    for name, (x, w, attrs) in OTHERS.items():
        for variant, make in ((WEIGHT_TILED, weight_gradient), (DATA_TILED, data_gradient)):
            r = make(x, w, dtype, **attrs)
            assert VARIANTS[variant].supported(r, preset(device)) is None, name
            assert VARIANTS[variant].cost(r, preset(device)).us > 0, name


@pytest.mark.parametrize("r, reason", [
    (weight_gradient((2, 8, 8, 16), (8, 3, 3, 8), groups=2), "groups 2 is over 1"),
    (weight_gradient((2, 2, 8, 16), (8, 3, 3, 16)), "least extent 0 is under 1"),
    (weight_gradient((256, 224, 224, 8), (8, 3, 3, 8)), "bytes of windows 3633610752 is over 1073741824"),
    (data_gradient((2, 2, 8, 16), (8, 3, 3, 16)), "least extent 0 is under 1"),
])  # fmt: skip
def test_chains_refuse_with_the_value_seen(r, reason):
    of = WEIGHT_COLUMNS if r.ops[0].kind.name == "convolution_weight_gradient_channels_last" else DATA_TURNED
    assert_refused({of: VARIANTS[of]}, r, reason)


@pytest.mark.parametrize("device", ["t4", "a100", "h200"])
def test_chains_have_tensor_cores_and_products_where_windows_are_x_as_it_lies(device):
    spec, x, w = preset(device), (32, 28, 28, 64), (128, 1, 1, 64)
    assert (
        len(VARIANTS[WEIGHT_COLUMNS].build(weight_gradient(x, w, f32), spec)) <= 2
    )  # a product, and maybe the sum of its splits
    r = data_gradient((32, 28, 28, 64), (128, 3, 3, 64), f16, **UNDER)
    turned, others = VARIANTS[DATA_TURNED].cost(r, spec).us, VARIANTS[DATA_TILED].cost(r, spec).us
    assert turned < others


@pytest.mark.parametrize("r, reason", [
    (weight_gradient((2, 8, 8, 16), (8, 3, 3, 16)), "x is f32, needs f16 or bf16"),
    (weight_gradient((2, 8, 8, 16), (8, 3, 3, 8), f16, groups=2), "groups 2 is over 1"),
    (weight_gradient((2, 4, 8, 8, 16), (8, 3, 3, 3, 16), f16), "spatial axes 3 is over 2"),
    (weight_gradient((2, 8, 8, 12), (8, 3, 3, 12), f16), "channels of x 12 is not a multiple of 8"),
    (weight_gradient((2, 8, 8, 16), (12, 3, 3, 16), f16), "channels of dy 12 is not a multiple of 8"),
    (weight_gradient((2, 8, 8, 16), (8, 3, 3, 16), f16, input_dilation=(2, 2)), "input_dilation is (2, 2), needs 1"),
    (weight_gradient((2, 40, 40, 16), (8, 3, 3, 16), f16, strides=(9, 1)), "stride 9 is over 8"),
    (weight_gradient((2, 600, 8, 16), (8, 3, 3, 16), f16, dilation=(128, 1)), "elements from a window's first to its last 256 is over 255"),
    (weight_gradient((2, 300, 8, 16), (8, 200, 3, 16), f16), "padding 198 is over 127"),
    (weight_gradient((2, 2, 8, 16), (8, 3, 3, 16), f16), "least extent 0 is under 1"),
])  # fmt: skip
def test_weight_gradients_refuse_with_the_value_seen(r, reason):
    assert_refused(WEIGHTS, r, reason)


@pytest.mark.parametrize("r, reason", [
    (data_gradient((2, 8, 8, 16), (8, 3, 3, 16)), "dy is f32, needs f16 or bf16"),
    (data_gradient((2, 8, 8, 16), (8, 3, 3, 8), f16, groups=2), "groups 2 is over 1"),
    (data_gradient((2, 8, 8, 16), (12, 3, 3, 16), f16), "channels 12 is not a multiple of 8"),
    (data_gradient((2, 8, 8, 12), (8, 3, 3, 12), f16), "channels of w 12 is not a multiple of 8"),
    (data_gradient((2, 8, 8, 16), (8, 3, 3, 16), f16, strides=(2, 1)), "strides is (2, 1), needs 1"),
])  # fmt: skip
def test_data_gradients_refuse_with_the_value_seen(r, reason):
    assert_refused(DATA, r, reason)


@pytest.mark.parametrize("r, reason", [
    (data_gradient((2, 8, 8, 16), (8, 3, 3, 16), strides=(2, 2)), "dy is f32, needs f16 or bf16"),
    (data_gradient((2, 8, 8, 16), (8, 3, 3, 8), f16, groups=2, strides=(2, 2)), "groups 2 is over 1"),
    (data_gradient((2, 8, 8, 16), (12, 3, 3, 16), f16, strides=(2, 2)), "channels of dy 12 is not a multiple of 8"),
    (data_gradient((2, 8, 8, 12), (8, 3, 3, 12), f16, strides=(2, 2)), "channels of w 12 is not a multiple of 8"),
    (data_gradient((2, 8, 8, 16), (8, 3, 3, 16), f16), "greatest stride 1 is under 2"),
    (data_gradient((2, 18, 18, 16), (8, 3, 3, 16), f16, strides=(5, 4)), "phases 20 is over 16"),
    (data_gradient((2, 1600, 8, 16), (8, 3, 3, 16), f16, strides=(2, 1), dilation=(512, 1), low=(600, 0)), "elements from a window's first to its last 512 is over 255"),
    (data_gradient((2, 300, 8, 16), (8, 3, 3, 16), f16, strides=(2, 1), low=(300, 0)), "padding 150 is over 127"),
    (data_gradient((2, 2, 8, 16), (8, 3, 3, 16), f16, strides=(2, 2)), "least extent 0 is under 1"),
])  # fmt: skip
def test_data_gradients_of_strides_refuse_with_the_value_seen(r, reason):
    assert_refused(STRIDED, r, reason)


@pytest.mark.parametrize("make", [convolution, weight_gradient, data_gradient])
def test_an_image_without_elements_has_a_kernel(make):
    """Windows of padding alone, or none over dy: drawn. Hopper's kernels refuse these, of which there is no map."""
    draw, select = rng("images without elements", make.__name__), Selector(default_registry(), H200)
    hopper = [v for v in VARIANTS.values() if v.kernel.endswith("_wgmma.v1") and v.needs]
    for _ in range(8):
        axes = int(draw.integers(1, 3))
        sizes, window = draw.integers(1, 4, axes).tolist(), draw.integers(1, 4, axes).tolist()
        attrs = {}
        empty = int(draw.integers(axes))
        if make is data_gradient:
            window[empty] = sizes[empty] + 1
        else:
            sizes[empty] = 0
            attrs = {"low": tuple(window), "high": tuple(draw.integers(0, 3, axes).tolist())}
        r = make((2, *sizes, 8), (16, *window, 8), dtype=f16, **attrs)
        refused = {str(v.supported(r, H200)) for v in hopper if r.kind.name in v.kinds}
        assert any("least extent" in reason for reason in refused) and "None" not in refused, (refused, r)
        assert select(r).chosen.variant.build(r, H200), r


def test_phases_are_a_partition_and_multiply_nothing_twice():
    for x, w, attrs in SHAPES.values():
        r = data_gradient(x, w, f16, **attrs)
        phases = operands.phases(r)
        assert sum(p.elements for p in phases) == r.results[0].numel // x[0] // x[-1]
        assert sum(p.taps for p in phases) <= r.operands[1].numel // w[0] // w[-1]


def test_hopper_s_are_chosen_where_they_can_be():
    x, w = (32, 28, 28, 128), (128, 3, 3, 128)
    of = (
        (weight_gradient, WEIGHTS, {}),
        (data_gradient, DATA, {}),
        (data_gradient, STRIDED, {"strides": (2, 2)}),
    )
    for make, kernels, strides in of:
        r = make(x, w, bf16, **UNDER, **strides)
        us = {
            v: kernel.cost(r, H200).us for v, kernel in kernels.items() if kernel.supported(r, H200) is None
        }
        assert us.keys() == kernels.keys() and min(us.values()) < 20
        assert all(kernel.supported(r, preset("b200")).condition == "needs" for kernel in kernels.values())


def masked(x, w, dtype, **attrs):
    """A data gradient, and that of the relu before."""
    plain = data_gradient(x, w, dtype, **attrs)
    dy, kernel = plain.operands
    given = {"dy": dy, "w": kernel, "y": desc(x, dtype)}
    op = "dx", "convolution_data_gradient_channels_last", "dy", "w", {"sizes": tuple(x[1:-1]), **attrs}
    return fused(given, op, ("z", "relu_grad", "dx", "y"))


@pytest.mark.sample(2, pool="on the model", always=lambda name, dtype: False)
@pytest.mark.spec("D13", "F2")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_every_number_of_a_weight_gradient_goes_where_it_belongs(name, dtype):
    x, w, attrs = SHAPES[name]
    r = weight_gradient(x, (8 * -(-w[0] // 8), *w[1:]), dtype, **attrs)
    tiling, splits = random.choice((SMALL, PINGPONG)), random.choice((1, 2, 3))
    run_weight_gradient(tiling, r, random.randrange(2**32), splits, 2**-8 if dtype is bf16 else 0.0)


STRAIGHT = [name for name, (_, _, attrs) in SHAPES.items() if max(attrs.get("strides", (1,))) == 1]


@pytest.mark.sample(2, pool="on the model", always=lambda name, make, dtype: False)
@pytest.mark.spec("D13", "F2")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("make", [data_gradient, masked])
@pytest.mark.parametrize("name", STRAIGHT)
def test_every_number_of_a_data_gradient_goes_where_it_belongs(name, make, dtype):
    x, w, attrs = SHAPES[name]
    r = make(x, w, dtype, **attrs)
    tiling, rounding = random.choice((SMALL, PINGPONG)), 2**-8 if dtype is bf16 else 0.0
    launch = of_data.launch(tiling, r, H200, transposed=True)
    run_launch(launch, r, random.randrange(2**32), 1, tolerance=rounding)


LEAPING = {
    **{name: case for name, case in SHAPES.items() if name not in STRAIGHT},
    "apart": (
        (2, 11, 12, 16),
        (8, 3, 3, 16),
        {"strides": (2, 3), "dilation": (3, 2), "low": (2, 1), "high": (2, 3)},
    ),
    "1x1": ((2, 9, 7, 64), (72, 1, 1, 64), {"strides": (2, 3)}),
    "even": ((2, 10, 10, 24), (16, 4, 4, 24), {"strides": (2, 2), "low": (1, 1), "high": (1, 1)}),
}


@pytest.mark.sample(1, pool="on the model", always=lambda name, dtype: False)
@pytest.mark.spec("D13", "F2")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", LEAPING)
def test_every_number_of_a_data_gradient_of_strides_goes_where_it_belongs(name, dtype):
    """Phases that no place of the kernel reaches are zeros."""
    x, w, attrs = LEAPING[name]
    r = data_gradient(x, (8 * -(-w[0] // 8), *w[1:]), dtype, **attrs)
    tiling, rounding = random.choice((SMALL, PINGPONG)), 2**-8 if dtype is bf16 else 0.0
    run_strided_data_gradient(tiling, r, random.randrange(2**32), rounding)


def launches_of(variant):
    make, t = weight_gradient if variant in WEIGHTS else data_gradient, random.Random(variant)
    strides = {"strides": (2, 2)} if variant in STRIDED else {}
    r = make((8, 56, 56, 64), (72, 3, 3, 64), t.choice((f16, bf16)), **UNDER, **strides)
    launches = VARIANTS[variant].build(r, H200)
    return r, launches[:1] if variant in STRIDED else launches  # a kernel for all phases


def is_new(variant):
    r, launches = launches_of(variant)
    return are_new(launches, r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D13")
@pytest.mark.parametrize("variant", GRADIENTS)
def test_compiles_without_spills_or_serialized_products(variant):
    r, (product, *others) = launches_of(variant)
    assert_clean(VARIANTS[variant].settings, engine.compile_launch(product, r, H200.target))
    assert ".im2col." in engine.ptx_of(product, r, H200.target)
    for launch in others:
        compiled = engine.compile_launch(launch, r, H200.target)
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)
    for launch in (product, *others):
        found_clean(launch, r, H200.target)
