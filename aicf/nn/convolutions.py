"""Convolutions over one to three spatial axes, channels first: (N, C, …)."""

from __future__ import annotations

import math
from typing import Any

from ..errors import VerifyError
from ..ir import Initializer, Value
from . import checks, init
from .layer import Layer
from .spatial import batched, check_channels, check_fits, each

MODES = ("zeros", "reflect", "replicate", "circular")


class _Conv(Layer):
    axes = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        kind = type(self).__name__
        self.in_channels, self.out_channels = channels_of(kind, in_channels, out_channels, groups)
        self.kernel_size = each(f"{kind}: kernel_size", kernel_size, self.axes, 1)
        self.stride = each(f"{kind}: stride", stride, self.axes, 1)
        self.dilation = each(f"{kind}: dilation", dilation, self.axes, 1)
        self.groups, self.bias = groups, checks.yes_or_no(f"{kind}: bias", bias)
        if padding_mode not in MODES:
            raise VerifyError(f"{kind}: padding_mode={padding_mode!r}", expected=", ".join(MODES))
        self.padding_mode = padding_mode
        self.low, self.high = self._paddings(kind, padding)
        shape = (self.out_channels, self.in_channels // groups, *self.kernel_size)
        self.weight_init, self.bias_init = starts(shape, weight_init, bias_init)

    @property
    def span(self) -> tuple[int, ...]:
        """How many places the kernel covers along each axis."""
        return tuple([(n - 1) * apart + 1 for n, apart in zip(self.kernel_size, self.dilation)])

    def _paddings(self, kind: str, padding: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(before, behind) along each axis."""
        if padding == "same":
            if set(self.stride) != {1}:
                raise VerifyError(
                    f"{kind}: padding='same' with stride={self.stride}", expected="a stride of 1",
                    hint="padding=kernel_size // 2 makes ceil(size / stride) of a kernel of odd size",
                )  # fmt: skip
            total = [n - 1 for n in self.span]
            return tuple([n // 2 for n in total]), tuple([n - n // 2 for n in total])
        if isinstance(padding, str) and padding != "valid":
            raise VerifyError(f"{kind}: padding={padding!r}", expected="numbers, 'valid' or 'same'")
        pads = each(f"{kind}: padding", 0 if padding == "valid" else padding, self.axes)
        return pads, pads

    def emit(self, ctx: Any, x: Value) -> Value:
        return batched(ctx, type(self).__name__, x, self.axes, lambda v: self._emit(ctx, v))

    def _emit(self, ctx: Any, x: Value) -> Value:
        kind = type(self).__name__
        hint = (
            f"nn.{kind}({x.shape[1]}, {self.out_channels}, {self.kernel_size})" if self.groups == 1 else None
        )
        check_channels(ctx, kind, x, self.in_channels, hint)
        padded = tuple([n + a + b for n, a, b in zip(x.shape[2:], self.low, self.high)])
        check_fits(ctx, kind, x, self.span, padded)
        x = ctx.computed(x)
        shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        weight = ctx.param("weight", shape, self.weight_init, x.dtype)
        low, high = self.low, self.high
        if self.padding_mode != "zeros" and any((*low, *high)):
            x = padded_by(ctx, x, low, high, self.padding_mode)
            low = high = (0,) * self.axes
        y = ctx.convolution(
            x, weight, strides=self.stride, low=low, high=high, dilation=self.dilation, groups=self.groups
        )
        return biased(self, ctx, y)


def channels_of(kind: str, in_channels: Any, out_channels: Any, groups: Any) -> tuple[int, int]:
    made = [checks.whole(f"{kind}: {name}", n) for name, n in (("in_channels", in_channels), ("out_channels", out_channels))]  # fmt: skip
    checks.whole(f"{kind}: groups", groups, 1)
    for name, n in zip(("in_channels", "out_channels"), made):
        if n % groups:
            raise VerifyError(
                f"{kind}: {name}={n} in {groups} groups", expected=f"a multiple of groups={groups}"
            )
    return made[0], made[1]


def starts(
    shape: tuple[int, ...], weight_init: Initializer | None, bias_init: Initializer | None
) -> tuple[Initializer, Initializer]:
    """PyTorch's: uniform, by what one result reads."""
    edge = 1.0 / math.sqrt(max(math.prod(shape[1:]), 1))
    weight = checks.initializer("weight_init", weight_init or init.kaiming_uniform(math.sqrt(5.0)))
    return weight, checks.initializer("bias_init", bias_init or init.uniform(-edge, edge))


def biased(layer: Any, ctx: Any, y: Value) -> Value:
    """With a number added to each channel, if the layer has those."""
    if not layer.bias:
        return y
    bias = ctx.param("bias", (layer.out_channels,), layer.bias_init, y.dtype, "bias")
    added: Value = ctx.add(y, bias.reshape(layer.out_channels, *[1] * (y.rank - 2)))
    return added


def padded_by(ctx: Any, x: Value, low: tuple[int, ...], high: tuple[int, ...], mode: str) -> Value:
    """x (N, C, …) with more around its spatial axes: its own elements, mirrored, repeated or from the other end."""
    if mode == "circular":
        return _circular(ctx, x, low, high)
    op = {"reflect": ctx.pad_reflect, "replicate": ctx.pad_edge}[mode]
    padded: Value = op(x, low=(0, 0, *low), high=(0, 0, *high))
    return padded


def _circular(ctx: Any, x: Value, low: tuple[int, ...], high: tuple[int, ...]) -> Value:
    for axis, (before, behind) in enumerate(zip(low, high), 2):
        size = x.shape[axis]
        if max(before, behind) > size:
            raise VerifyError(
                f"circular padding of ({before}, {behind}) around {size} elements", expected=f"at most {size}", where=ctx.here()
            )  # fmt: skip
        parts = [(size - before, size)] * bool(before) + [(0, size)] + [(0, behind)] * bool(behind)
        cuts = [_cut(ctx, x, axis, *part) for part in parts]
        x = ctx.concatenate(*cuts, axis=axis) if len(cuts) > 1 else x
    return x


def _cut(ctx: Any, x: Value, axis: int, first: int, last: int) -> Value:
    if (first, last) == (0, x.shape[axis]):
        return x
    start = tuple([first if a == axis else 0 for a in range(x.rank)])
    cut: Value = ctx.slice(
        x, start=start, limit=tuple([last if a == axis else n for a, n in enumerate(x.shape)])
    )
    return cut


class Conv1d(_Conv):
    """Sums of products of a kernel with each window along one axis, as PyTorch's Conv1d: the kernel is not reversed.

    Shapes: x (N, C, L) or (C, L), weight (out_channels, in_channels / groups, kernel_size), bias (out_channels,), y (N, out_channels, windows).

    padding       numbers before and behind the axis; "same", so that y has as many windows as x has elements, or "valid", none
    dilation      how far apart the elements of a window are
    groups        channels of each group are computed of those of the same group alone
    padding_mode  what is before and behind: "zeros", "reflect", "replicate" or "circular"
    """

    axes = 1


class Conv2d(_Conv):
    """Sums of products of a kernel with each window of an image, as PyTorch's Conv2d: the kernel is not reversed.

    Shapes: x (N, C, H, W) or (C, H, W), weight (out_channels, in_channels / groups, height, width), bias (out_channels,), y (N, out_channels,
    windows down, windows across). kernel_size, stride, padding and dilation are a number for both axes, or one for each.

    padding       numbers around the image; "same", so that y is as large as x, or "valid", none
    dilation      how far apart the elements of a window are
    groups        channels of each group are computed of those of the same group alone
    padding_mode  what is around the image: "zeros", "reflect", "replicate" or "circular"
    """

    axes = 2


class Conv3d(_Conv):
    """Sums of products of a kernel with each window of a volume, as PyTorch's Conv3d: the kernel is not reversed.

    Shapes: x (N, C, D, H, W) or (C, D, H, W), weight (out_channels, in_channels / groups, depth, height, width), bias (out_channels,),
    y (N, out_channels, …). The arguments are those of Conv2d, with numbers for three axes.
    """

    axes = 3
