"""Gradients of convolutions of channels last for the tests of their kernels."""

from __future__ import annotations

import math
from typing import Any

from convolution_cases import H200, SHAPES
from kernel_cases import HALVES, VARIANTS, Case, desc, region

from aicf.ops.windows import windows_of
from aicf.rows import RegionSpec
from aicf.types import DType, bf16, f16, f32

WEIGHT_TILED, DATA_TILED = "cuda.weight_gradient_tiled.v1", "cuda.data_gradient_tiled.v1"
WEIGHT_COLUMNS, DATA_TURNED = "cuda.weight_gradient_columns.v1", "cuda.data_gradient_turned.v1"
STEPS = "strides", "dilation", "low", "high", "input_dilation"

# what no kernel on tensor cores takes: groups, three axes, channels of any number, spread operands
OTHERS: dict[str, Any] = {
    "groups": ((2, 6, 5, 12), (8, 3, 3, 3), {"groups": 4, "low": (1, 1), "high": (1, 1)}),
    "depthwise": ((2, 7, 6, 5), (10, 3, 3, 1), {"groups": 5, "strides": (2, 1), "low": (1, 0)}),
    "three axes": ((2, 4, 5, 6, 3), (7, 2, 3, 2, 3), {"strides": (2, 1, 2), "low": (1, 0, 1), "high": (0, 2, 1)}),
    "spread": ((2, 4, 3, 5), (6, 3, 2, 5), {"input_dilation": (2, 3), "strides": (1, 2), "low": (1, 1), "high": (1, 0)}),
    "odd": ((3, 9, 11, 3), (5, 3, 3, 3), {"strides": (2, 2), "low": (1, 1), "high": (1, 1)}),
    "one axis": ((3, 17, 7), (6, 4, 7), {"dilation": (3,), "low": (-2,), "high": (5,)}),
    "beyond": ((2, 11, 9, 4), (3, 2, 2, 4), {"strides": (4, 3)}),
    "no windows": ((2, 2, 4), (3, 3, 4), {}),
    "no images": ((0, 5, 4), (3, 3, 4), {}),
    "no channels": ((2, 5, 0), (3, 3, 0), {}),
    "no results": ((2, 5, 4), (0, 3, 4), {}),
}  # fmt: skip


def made(x, w, attrs) -> tuple[int, ...]:
    """The shape of the convolution's result."""
    steps = {name: attrs.get(name, ()) for name in STEPS}
    return (x[0], *windows_of(tuple(w[1:-1]), **steps).made(tuple(x[1:-1])), w[0])


def weight_gradient(x, w, dtype: DType = f32, **attrs) -> RegionSpec:
    dy = made(x, w, attrs)
    return region("convolution_weight_gradient_channels_last", desc(x, dtype), desc(dy, dtype), kernel=tuple(w[1:-1]), **attrs)  # fmt: skip


def data_gradient(x, w, dtype: DType = f32, **attrs) -> RegionSpec:
    dy = made(x, w, attrs)
    return region("convolution_data_gradient_channels_last", desc(dy, dtype), desc(w, dtype), sizes=tuple(x[1:-1]), **attrs)  # fmt: skip


def tiled_cases(dtype: DType, tolerance: float) -> list[Case]:
    """Both gradients of all of them, by f32 arithmetic."""
    cases = []
    for x, w, attrs in (*OTHERS.values(), *SHAPES.values()):
        cases.append(Case(WEIGHT_TILED, weight_gradient(x, w, dtype, **attrs), tolerance))
        cases.append(Case(DATA_TILED, data_gradient(x, w, dtype, **attrs), tolerance))
    return cases


def chain_cases(dtype: DType, tolerance: float) -> list[Case]:
    """Both gradients by kernels that are there already, of what these take. What f32 rounds grows with the root of how many are added."""
    cases = []
    for x, w, attrs in (*OTHERS.values(), *SHAPES.values(), *LARGE.values()):
        dy = made(x, w, attrs)
        longer = [
            max(1.0, math.sqrt(n) / 8) if dtype is f32 else 1.0
            for n in (math.prod(dy[:-1]), math.prod(w[:-1]))
        ]
        cases.append(Case(WEIGHT_COLUMNS, weight_gradient(x, w, dtype, **attrs), tolerance * longer[0]))
        cases.append(Case(DATA_TURNED, data_gradient(x, w, dtype, **attrs), tolerance * longer[1]))
    return [c for c in cases if VARIANTS[c.variant].supported(c.region, H200) is None]


# More tiles than multiprocessors, longer and shorter rows of windows than a K-tile; ResNet-50's own
LARGE: dict[str, Any] = {
    "3x3": ((16, 56, 56, 64), (64, 3, 3, 64), {"low": (1, 1), "high": (1, 1)}),
    "steps": ((16, 57, 55, 128), (136, 3, 3, 128), {"low": (1, 1), "high": (1, 1), "strides": (2, 2)}),
    "wide": ((2, 3, 300, 40), (96, 3, 3, 40), {"low": (1, 1), "high": (1, 1)}),
    "small images": ((300, 3, 3, 256), (264, 3, 3, 256), {"low": (1, 1), "high": (1, 1)}),
    "1x1": ((9, 28, 28, 512), (128, 1, 1, 512), {}),
    "1x1 steps": ((9, 28, 27, 256), (136, 1, 1, 256), {"strides": (2, 2)}),
    "stem": ((4, 112, 112, 8), (64, 7, 7, 8), {"low": (3, 3), "high": (3, 3), "strides": (2, 2)}),
    "even": ((4, 20, 20, 72), (64, 4, 4, 72), {"low": (1, 1), "high": (1, 1), "strides": (2, 2)}),
}


def hopper_cases(variant: str, turn: int = 0, large: bool = False) -> list[Case]:
    """Of all that a kernel on tensor cores takes, from one in turn on, f16 and bf16 in turns."""
    make = weight_gradient if ".weight_" in variant else data_gradient
    shapes = [*SHAPES.values(), *(list(LARGE.values())[turn % 3 :: 3] if large else ())]
    made = []
    for i, (x, w, attrs) in enumerate(shapes[turn % len(shapes) :] + shapes[: turn % len(shapes)]):
        dtype = (f16, bf16)[(i + turn) % 2]
        r = make(x, w, dtype, **attrs)
        if VARIANTS[variant].supported(r, H200) is None:
            made.append(Case(variant, r, HALVES[dtype]))
    return made
