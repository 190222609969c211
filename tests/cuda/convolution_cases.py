"""Convolutions of channels last for the tests of their kernels."""

from __future__ import annotations

from kernel_cases import desc, fused

from aicf.cuda_kernels.conv import wgmma as conv_wgmma
from aicf.device.spec import preset
from aicf.registry.variant import KernelVariant
from aicf.rows import RegionSpec
from aicf.types import DType, f16

H200 = preset("h200")
VARIANTS = {v.name: v for v in vars(conv_wgmma).values() if isinstance(v, KernelVariant)}


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
