"""Layers that put elements around the spatial axes of (N, C, …) or (C, …)."""

from __future__ import annotations

from typing import Any

from ..errors import TypeInferenceError, VerifyError
from ..ir import Value
from . import checks
from .convolutions import padded_by
from .layer import Layer
from .spatial import batched


class _Pad(Layer):
    axes = 0
    mode = "zeros"
    value = 0.0

    def __init__(self, padding: int | tuple[int, ...]) -> None:
        kind, least = type(self).__name__, None if self.mode == "zeros" else 0
        many = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * (2 * self.axes)
        if len(many) != 2 * self.axes:
            raise VerifyError(
                f"{kind}: padding={padding!r}",
                expected=f"a whole number, or {2 * self.axes}: before and behind, the last axis first",
            )
        self.padding = tuple(
            [checks.whole(f"{kind}: padding", n, -(2**31) if least is None else least) for n in many]
        )

    def emit(self, ctx: Any, x: Value) -> Value:
        return batched(ctx, type(self).__name__, x, self.axes, lambda v: self._padded(ctx, v))

    def _padded(self, ctx: Any, x: Value) -> Value:
        low, high = self.padding[::2][::-1], self.padding[1::2][::-1]
        if any(n + a + b < 0 for n, a, b in zip(x.shape[2:], low, high)):
            raise TypeInferenceError(
                f"{type(self).__name__}: padding={self.padding} cuts off more than there is", expected="a result of no negative size",
                got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        if self.mode != "zeros":
            return padded_by(ctx, x, low, high, self.mode)
        y: Value = ctx.pad(x, value=self.value, low=(0, 0, *low), high=(0, 0, *high))
        return y


class ZeroPad1d(_Pad):
    """x with zeros before and behind its axis: x (N, C, L) or (C, L); a number for both ends, or one for each. Negative ones cut off."""

    axes = 1


class ZeroPad2d(_Pad):
    """x with zeros around it: x (N, C, H, W) or (C, H, W); a number for all sides, or (left, right, top, bottom). Negative ones cut off."""

    axes = 2


class ZeroPad3d(_Pad):
    """x with zeros around it: x (N, C, D, H, W) or (C, D, H, W); a number, or (left, right, top, bottom, front, back). Negative ones cut off."""

    axes = 3


class _ConstantPad(_Pad):
    def __init__(self, padding: int | tuple[int, ...], value: float) -> None:
        super().__init__(padding)
        self.value = checks.anything(f"{type(self).__name__}: value", value)


class ConstantPad1d(_ConstantPad):
    """ZeroPad1d with another value than 0."""

    axes = 1


class ConstantPad2d(_ConstantPad):
    """ZeroPad2d with another value than 0."""

    axes = 2


class ConstantPad3d(_ConstantPad):
    """ZeroPad3d with another value than 0."""

    axes = 3


class ReflectionPad1d(_Pad):
    """x with its own elements before and behind it, mirrored at the ends, which are not repeated; the numbers are as ZeroPad1d's."""

    axes, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """x with its own elements around it, mirrored at the edges, which are not repeated; the numbers are as ZeroPad2d's."""

    axes, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """ReflectionPad2d of volumes; the numbers are as ZeroPad3d's."""

    axes, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """x with its first and last element repeated before and behind it; the numbers are as ZeroPad1d's."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """x with the elements of its edges repeated around it; the numbers are as ZeroPad2d's."""

    axes, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """ReplicationPad2d of volumes; the numbers are as ZeroPad3d's."""

    axes, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """x with the elements of its other end before and behind it; the numbers are as ZeroPad1d's."""

    axes, mode = 1, "circular"


class CircularPad2d(_Pad):
    """x with the elements of the opposite edges around it; the numbers are as ZeroPad2d's."""

    axes, mode = 2, "circular"


class CircularPad3d(_Pad):
    """CircularPad2d of volumes; the numbers are as ZeroPad3d's."""

    axes, mode = 3, "circular"
