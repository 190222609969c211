"""Convolutions and pooling. PyTorch's own kernels are faster, so that only what has no PyTorch beside it takes them: `from_torch`, and
fallback="error"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....ir import Value
from ..rules import Site, rule
from ..types import Unsupported


def _each(numbers: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """One for each spatial axis."""
    listed = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return listed * axes if len(listed) == 1 else listed


@rule("convolution", heavy=True, slower=True)
def _convolution(
    s: Site, x: Value, w: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    if transposed:
        raise Unsupported("transposed convolutions")
    axes = x.rank - 2
    pads = _each(padding, axes)
    y = s.ctx.convolution(
        x, w, strides=_each(stride, axes), low=pads, high=pads, dilation=_each(dilation, axes), groups=groups
    )
    return y if bias is None else s.ctx.add(y, s.reshape(bias, (*bias.shape, *[1] * axes)))


@rule("max_pool2d_with_indices", heavy=True, slower=True)
def _max_pool(
    s: Site, x: Value, size: Sequence[int], stride: Sequence[int] = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
) -> Any:  # fmt: skip
    if ceil_mode or x.rank != 4:
        raise Unsupported("pooling that rounds up, or of one image")
    window, pads = _each(size, 2), _each(padding, 2)
    made = s.ctx.max_pool(
        x,
        window=window,
        strides=_each(stride, 2) if stride else window,
        low=pads,
        high=pads,
        dilation=_each(dilation, 2),
    )
    return made, None


@rule("avg_pool2d", heavy=True, slower=True)
def _avg_pool(
    s: Site, x: Value, size: Sequence[int], stride: Sequence[int] = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    if ceil_mode or x.rank != 4 or divisor_override is not None:
        raise Unsupported("pooling that rounds up, of one image, or with a divisor of its own")
    window, pads = _each(size, 2), _each(padding, 2)
    return s.ctx.avg_pool(
        x,
        window=window,
        strides=_each(stride, 2) if stride else window,
        low=pads,
        high=pads,
        count_padding=count_include_pad,
    )
