"""Pooling over one to three spatial axes, channels first: (N, C, …). It has no weights."""

from __future__ import annotations

import math
from typing import Any

from ..errors import VerifyError
from ..ir import Value
from . import checks
from .layer import Layer
from .spatial import batched, check_fits, each

Size = int | tuple[int, ...]


class _Pool(Layer):
    axes = 0
    dilation: tuple[int, ...]

    def __init__(self, kernel_size: Size, stride: Size | None, padding: Size, ceil_mode: bool) -> None:
        kind = type(self).__name__
        self.kernel_size = each(f"{kind}: kernel_size", kernel_size, self.axes, 1)
        self.stride = self.kernel_size if stride is None else each(f"{kind}: stride", stride, self.axes, 1)
        self.padding = each(f"{kind}: padding", padding, self.axes)
        if any(2 * n > size for n, size in zip(self.padding, self.kernel_size)):
            raise VerifyError(
                f"{kind}: padding={self.padding} around windows of {self.kernel_size}",
                expected="at most half a window",
            )
        self.ceil_mode = checks.yes_or_no(f"{kind}: ceil_mode", ceil_mode)
        self.dilation = (1,) * self.axes

    def emit(self, ctx: Any, x: Value) -> Value:
        return batched(ctx, type(self).__name__, x, self.axes, lambda v: self._checked(ctx, v))

    def _checked(self, ctx: Any, x: Value) -> Value:
        span = tuple([(n - 1) * apart + 1 for n, apart in zip(self.kernel_size, self.dilation)])
        padded = tuple([n + 2 * p for n, p in zip(x.shape[2:], self.padding)])
        if not self.ceil_mode:
            check_fits(ctx, type(self).__name__, x, span, padded)
        behind = [
            _behind(n, p, width, step) if self.ceil_mode else p
            for n, p, width, step in zip(x.shape[2:], self.padding, span, self.stride)
        ]
        return self._pooled(ctx, x, tuple(behind))

    def _pooled(self, ctx: Any, x: Value, high: tuple[int, ...]) -> Value:
        raise NotImplementedError


def _behind(size: int, padding: int, span: int, step: int) -> int:
    """What is added behind an axis so that windows of its last elements are there: one that would begin behind them all is not."""
    made = max(-(-(size + 2 * padding - span) // step), 0) + 1
    if (made - 1) * step >= size + padding:
        made -= 1
    return max((made - 1) * step + span - size - padding, 0)


class _MaxPool(_Pool):
    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode)
        self.dilation = each(f"{type(self).__name__}: dilation", dilation, self.axes, 1)

    def _pooled(self, ctx: Any, x: Value, high: tuple[int, ...]) -> Value:
        y: Value = ctx.max_pool(
            x,
            window=self.kernel_size,
            strides=self.stride,
            low=self.padding,
            high=high,
            dilation=self.dilation,
        )
        return y


class MaxPool1d(_MaxPool):
    """The maximum of each window along an axis. Shapes: x (N, C, L) or (C, L), y (N, C, windows).

    stride     the step from window to window, by default the window
    padding    how far windows may begin before the axis and end behind it, at most half a window; nothing is there
    dilation   how far apart the elements of a window are
    ceil_mode  whether there is a window of the last elements where it does not fit into the axis
    """

    axes = 1


class MaxPool2d(_MaxPool):
    """The maximum of each window of an image. Shapes: x (N, C, H, W) or (C, H, W), y (N, C, windows down, windows across).

    kernel_size, stride, padding, dilation   numbers for both axes, or one for each; else as for MaxPool1d
    """

    axes = 2


class MaxPool3d(_MaxPool):
    """The maximum of each window of a volume: x (N, C, D, H, W) or (C, D, H, W). The arguments are those of MaxPool1d."""

    axes = 3


class _AvgPool(_Pool):
    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode)
        kind = type(self).__name__
        self.count_include_pad = checks.yes_or_no(f"{kind}: count_include_pad", count_include_pad)
        self.divisor_override = (
            None
            if divisor_override is None
            else checks.whole(f"{kind}: divisor_override", divisor_override, 1)
        )

    def _pooled(self, ctx: Any, x: Value, high: tuple[int, ...]) -> Value:
        of = {"window": self.kernel_size, "strides": self.stride}
        beyond = any(n > p for n, p in zip(high, self.padding))
        if self.divisor_override is not None:
            y = ctx.avg_pool(x, low=self.padding, high=high, **of)
            return ctx.mul(y, math.prod(self.kernel_size) / self.divisor_override)
        if not (beyond and self.count_include_pad):
            return ctx.avg_pool(x, low=self.padding, high=high, count_padding=self.count_include_pad, **of)
        # zeros of the padding count, what a last window has beyond them does not
        around = (0, 0, *self.padding)
        x = ctx.pad(x, low=around, high=around)
        rest = tuple([max(n - p, 0) for n, p in zip(high, self.padding)])
        return ctx.avg_pool(x, high=rest, count_padding=False, **of)


class AvgPool1d(_AvgPool):
    """The mean of each window along an axis. Shapes: x (N, C, L) or (C, L), y (N, C, windows).

    stride             the step from window to window, by default the window
    padding            zeros before and behind the axis, at most half a window
    ceil_mode          whether there is a window of the last elements where it does not fit into the axis
    count_include_pad  whether zeros of the padding count
    divisor_override   what sums are divided by instead of the count
    """

    axes = 1


class AvgPool2d(_AvgPool):
    """The mean of each window of an image. Shapes: x (N, C, H, W) or (C, H, W), y (N, C, windows down, windows across).

    kernel_size, stride, padding   numbers for both axes, or one for each; else as for AvgPool1d
    """

    axes = 2


class AvgPool3d(_AvgPool):
    """The mean of each window of a volume: x (N, C, D, H, W) or (C, D, H, W). The arguments are those of AvgPool1d."""

    axes = 3


class _Adaptive(Layer):
    axes = 0
    op = ""

    def __init__(self, output_size: int | tuple[int | None, ...] | None) -> None:
        asked = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * self.axes
        name = f"{type(self).__name__}: output_size"
        if len(asked) != self.axes:
            raise VerifyError(
                f"{name}={output_size!r}", expected=f"a whole number or None, or {self.axes} of them"
            )
        self.output_size = tuple([None if n is None else checks.whole(name, n, 1) for n in asked])

    def emit(self, ctx: Any, x: Value) -> Value:
        def made(v: Value) -> Value:
            sizes = tuple([size if n is None else n for n, size in zip(self.output_size, v.shape[2:])])
            y: Value = ctx.op(self.op, v, sizes=sizes)
            return y

        return batched(ctx, type(self).__name__, x, self.axes, made)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.output_size})"


class AdaptiveAvgPool1d(_Adaptive):
    """The mean of each of output_size windows, whatever the length: x (N, C, L) or (C, L), y (N, C, output_size).

    Window i of m over n elements is those from floor(i n / m) to ceil((i + 1) n / m). None keeps the axis as it is.
    """

    axes, op = 1, "adaptive_avg_pool"


class AdaptiveAvgPool2d(_Adaptive):
    """The mean of each of output_size windows, whatever the image's size: x (N, C, H, W) or (C, H, W), y (N, C, *output_size).

    output_size  a number for both axes, or one for each; 1 is the mean of the image, None keeps an axis as it is
    """

    axes, op = 2, "adaptive_avg_pool"


class AdaptiveAvgPool3d(_Adaptive):
    """AdaptiveAvgPool2d of volumes: x (N, C, D, H, W) or (C, D, H, W), y (N, C, *output_size)."""

    axes, op = 3, "adaptive_avg_pool"


class AdaptiveMaxPool1d(_Adaptive):
    """The maximum of each of output_size windows, which are those of AdaptiveAvgPool1d."""

    axes, op = 1, "adaptive_max_pool"


class AdaptiveMaxPool2d(_Adaptive):
    """The maximum of each of output_size windows, which are those of AdaptiveAvgPool2d."""

    axes, op = 2, "adaptive_max_pool"


class AdaptiveMaxPool3d(_Adaptive):
    """The maximum of each of output_size windows of a volume, as AdaptiveMaxPool2d."""

    axes, op = 3, "adaptive_max_pool"
