"""Transposed convolutions over one to three spatial axes, channels first: (N, C, …)."""

from __future__ import annotations

from typing import Any

from ..errors import VerifyError
from ..ir import Initializer, Value
from . import checks
from .convolutions import biased, channels_of, starts
from .layer import Layer
from .spatial import batched, check_channels, each


class _ConvTranspose(Layer):
    axes = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, ...] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, ...] = 1,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        kind = type(self).__name__
        self.in_channels, self.out_channels = channels_of(kind, in_channels, out_channels, groups)
        self.kernel_size = each(f"{kind}: kernel_size", kernel_size, self.axes, 1)
        self.stride = each(f"{kind}: stride", stride, self.axes, 1)
        self.padding = each(f"{kind}: padding", padding, self.axes)
        self.output_padding = each(f"{kind}: output_padding", output_padding, self.axes)
        self.dilation = each(f"{kind}: dilation", dilation, self.axes, 1)
        self.groups, self.bias = groups, checks.yes_or_no(f"{kind}: bias", bias)
        if any(
            n >= max(step, apart) for n, step, apart in zip(self.output_padding, self.stride, self.dilation)
        ):
            raise VerifyError(
                f"{kind}: output_padding={self.output_padding}", expected=f"less than stride={self.stride} or dilation={self.dilation}"
            )  # fmt: skip
        shape = (self.in_channels, self.out_channels // groups, *self.kernel_size)
        self.weight_init, self.bias_init = starts(shape, weight_init, bias_init)

    def emit(self, ctx: Any, x: Value) -> Value:
        return batched(ctx, type(self).__name__, x, self.axes, lambda v: self._emit(ctx, v))

    def _emit(self, ctx: Any, x: Value) -> Value:
        kind = type(self).__name__
        check_channels(
            ctx,
            kind,
            x,
            self.in_channels,
            f"nn.{kind}({x.shape[1]}, {self.out_channels}, {self.kernel_size})" if self.groups == 1 else None,
        )
        x = ctx.computed(x)
        shape = (self.in_channels, self.out_channels // self.groups, *self.kernel_size)
        weight = ctx.param("weight", shape, self.weight_init, x.dtype)
        high = tuple([n - more for n, more in zip(self.padding, self.output_padding)])
        y = ctx.convolution_transposed(
            x,
            weight,
            strides=self.stride,
            low=self.padding,
            high=high,
            dilation=self.dilation,
            groups=self.groups,
        )
        return biased(self, ctx, y)


class ConvTranspose1d(_ConvTranspose):
    """Each element of x times a kernel, added up where they overlap: the gradient of a Conv1d, as PyTorch's ConvTranspose1d.

    Shapes: x (N, C, L) or (C, L), weight (in_channels, out_channels / groups, kernel_size), bias (out_channels,), y (N, out_channels, M) with
    M = (L - 1) * stride - 2 * padding + dilation * (kernel_size - 1) + output_padding + 1.

    stride          how far apart in y what two neighbours of x make begins
    padding         how much is cut off at both ends
    output_padding  how much is added behind: which of the lengths that a Conv1d of that stride maps to L is meant
    """

    axes = 1


class ConvTranspose2d(_ConvTranspose):
    """ConvTranspose1d of images: x (N, C, H, W) or (C, H, W), weight (in_channels, out_channels / groups, height, width).

    kernel_size, stride, padding, output_padding and dilation are a number for both axes, or one for each.
    """

    axes = 2


class ConvTranspose3d(_ConvTranspose):
    """ConvTranspose1d of volumes: x (N, C, D, H, W) or (C, D, H, W), weight (in_channels, out_channels / groups, depth, height, width)."""

    axes = 3
