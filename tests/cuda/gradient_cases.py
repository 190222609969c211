"""Gradients of convolutions of channels last for the tests of their kernels."""

from __future__ import annotations

from typing import Any

from convolution_cases import SHAPES
from kernel_cases import Case, desc, region

from aicf.ops.windows import windows_of
from aicf.rows import RegionSpec
from aicf.types import DType, f32

WEIGHT_TILED, DATA_TILED = "cuda.weight_gradient_tiled.v1", "cuda.data_gradient_tiled.v1"
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
