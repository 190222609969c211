"""Convolutions of channels last for the tests of their kernels."""

from __future__ import annotations

from kernel_cases import desc, fused

from aicf.cuda_kernels.conv import wgmma as conv_wgmma
from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import DType, f16

H200 = preset("h200")
VARIANTS = {v.name: v for v in conv_wgmma.ConvolutionWgmma}


def convolution(
    x, w, *then, dtype: DType = f16, given=(), keep=(), alignment: int = 256, strict: bool = False, **attrs
) -> RegionSpec:
    """y = x * w, and ops that follow, as for `fused`."""
    operands = {"x": desc(x, dtype, alignment=alignment), "w": desc(w, dtype), **dict(given)}
    return fused(
        operands, ("y", "convolution_channels_last", "x", "w", attrs), *then, keep=keep, strict=strict
    )


def biased(x, w, dtype: DType = f16, **attrs) -> RegionSpec:
    """A bias, a residual and relu, of a convolution whose results have the shape `of`."""
    plain = convolution(x, w, dtype=dtype, **attrs).results[0]
    given = {"row": desc((w[0],), dtype), "r": desc(plain.shape, dtype)}
    ops = ("u", "bias_add", "y", "row"), ("s", "add", "u", "r"), ("z", "relu", "s")
    return convolution(x, w, *ops, dtype=dtype, given=given, **attrs)


# what a window may be like: edges on both sides and one, steps, places apart, one axis; channels under a K-tile, over it, and of two
SHAPES = {
    "3x3": ((2, 7, 9, 16), (24, 3, 3, 16), {"low": (1, 1), "high": (1, 1)}),
    "strides": ((3, 9, 8, 72), (40, 3, 3, 72), {"low": (1, 1), "high": (1, 1), "strides": (2, 2)}),
    "uneven": ((2, 8, 11, 24), (72, 2, 3, 24), {"low": (0, 2), "high": (1, 0), "strides": (3, 1)}),
    "apart": ((2, 12, 10, 8), (16, 3, 2, 8), {"dilation": (3, 2), "low": (2, 0), "high": (1, 2)}),
    "1x1": ((5, 6, 7, 136), (8, 1, 1, 136), {}),
    "1x1 strides": ((2, 9, 7, 64), (66, 1, 1, 64), {"strides": (2, 3)}),
    "one axis": ((3, 37, 40), (48, 5, 40), {"low": (2,), "high": (2,), "strides": (2,)}),
    "cut": ((2, 9, 9, 16), (8, 3, 3, 16), {"low": (-1, 1), "high": (0, -2)}),
    "large": ((1, 20, 20, 32), (16, 7, 7, 32), {"low": (3, 3), "high": (3, 3), "strides": (2, 2)}),
}

# what other kernels take: channels and groups of any number, three axes, zeros between elements, windows that are x as it lies
COLUMNS, DIRECT = "cuda.convolution_columns.v1", "cuda.convolution_direct.v1"
FORMS = {
    **SHAPES,
    "odd": ((2, 7, 9, 3), (5, 3, 3, 3), {"low": (1, 1), "high": (1, 1)}),
    "groups": ((2, 5, 6, 8), (12, 3, 3, 4), {"groups": 2, "low": (1, 1), "high": (0, 1)}),
    "depthwise": ((2, 6, 7, 16), (16, 3, 3, 1), {"groups": 16, "low": (1, 1), "high": (1, 1), "strides": (2, 1)}),
    "odd depthwise": ((2, 6, 7, 5), (5, 3, 2, 1), {"groups": 5, "low": (1, 1), "high": (1, 1)}),
    "multiplied": ((2, 6, 7, 3), (6, 3, 2, 1), {"groups": 3}),
    "three axes": ((2, 4, 5, 6, 3), (4, 2, 3, 2, 3), {"low": (1, 0, 1), "high": (0, 1, 0), "strides": (1, 2, 1)}),
    "transposed": ((2, 4, 5, 6), (7, 3, 3, 6), {"input_dilation": (2, 3), "low": (2, 1), "high": (1, 2)}),
    "transposed depthwise": ((1, 4, 5, 6), (6, 3, 3, 1), {"groups": 6, "input_dilation": (2, 1), "low": (2, 1), "high": (1, 2)}),
    "deep": ((1, 3, 3, 2500), (3, 3, 1, 2500), {}),
    "wide": ((1, 3, 5, 4), (300, 3, 3, 4), {}),
}  # fmt: skip
