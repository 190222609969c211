"""Layers that make images larger: by interpolation, or of what lies in their channels."""

from __future__ import annotations

import math
from typing import Any

from ..errors import TypeInferenceError, VerifyError
from ..ir import Value
from . import checks
from .layer import Layer

# mode: (op's attributes, number of spatial axes, or None for any)
MODES: dict[str, tuple[dict[str, str], int | None]] = {
    "nearest": ({"mode": "nearest", "coordinates": "asymmetric", "nearest": "floor"}, None),
    "nearest-exact": ({"mode": "nearest", "coordinates": "half_pixel", "nearest": "prefer_ceil"}, None),
    "linear": ({"mode": "linear"}, 1),
    "bilinear": ({"mode": "linear"}, 2),
    "trilinear": ({"mode": "linear"}, 3),
    "bicubic": ({"mode": "cubic"}, 2),
}


class Upsample(Layer):
    """x with other sizes along its spatial axes, by the nearest element or by interpolation, as PyTorch's Upsample.

    Shapes: x (N, C, …), y (N, C, *size). One of `size` and `scale_factor` is given, a number for all axes or one for each; a size is
    floor(scale_factor * size of x).

    mode           "nearest", "nearest-exact", and, of one, two, two and three spatial axes, "linear", "bilinear", "bicubic" and "trilinear"
    align_corners  whether the first and last elements of x and y lie on each other; else the edges of x and y do
    """

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        if (size is None) == (scale_factor is None):
            raise VerifyError(
                f"Upsample: size={size!r}, scale_factor={scale_factor!r}", expected="one of them"
            )
        if mode not in MODES:
            raise VerifyError(f"Upsample: mode={mode!r}", expected=", ".join(MODES))
        if align_corners is not None:
            checks.yes_or_no("Upsample: align_corners", align_corners)
            if mode.startswith("nearest"):
                raise VerifyError(
                    f"Upsample: align_corners={align_corners} with mode={mode!r}",
                    expected="a mode that interpolates",
                )
        many = size if isinstance(size, (tuple, list)) else (size,)
        self.size = None if size is None else tuple([checks.whole("Upsample: size", n) for n in many])
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,)
        self.scale_factor = (
            None
            if scale_factor is None
            else tuple([checks.positive("Upsample: scale_factor", n) for n in factors])
        )
        self.mode, self.align_corners = mode, align_corners

    def emit(self, ctx: Any, x: Value) -> Value:
        attrs: dict[str, Any]
        attrs, wanted = MODES[self.mode]
        axes = x.rank - 2
        if not 1 <= axes <= 3 or wanted not in (None, axes):
            raise TypeInferenceError(
                f"Upsample: mode {self.mode!r} of x of rank {x.rank}", expected=f"shape (N, C, {wanted or 'one to three'} spatial axes)",
                got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        given: tuple[Any, ...] = self.size if self.size is not None else self.scale_factor or ()
        if len(given) not in (1, axes):
            raise TypeInferenceError(
                f"Upsample: {given} for {axes} spatial axes",
                expected=f"one number, or {axes}",
                got=str(x.spec),
                where=ctx.here(),
            )
        each = given * axes if len(given) == 1 else given
        if self.size is None:
            attrs = attrs | {"scales": (1.0, 1.0, *each)}
            each = tuple([math.floor(n * by) for n, by in zip(x.shape[2:], each)])
        if self.align_corners:
            attrs = attrs | {"coordinates": "align_corners"}
        y: Value = ctx.resize(x, sizes=(*x.shape[:2], *each), **attrs)
        return y

    def __repr__(self) -> str:
        by = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        return f"Upsample({by}, mode={self.mode!r}, align_corners={self.align_corners})"


class PixelShuffle(Layer):
    """Channels laid out as places of a larger image: (N, C r², H, W) as (N, C, H r, W r), with r = upscale_factor (Shi et al. 2016)."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = checks.whole("PixelShuffle: upscale_factor", upscale_factor, 1)

    def emit(self, ctx: Any, x: Value) -> Value:
        r = self.upscale_factor
        if x.rank < 3 or x.shape[-3] % (r * r):
            raise TypeInferenceError(
                f"PixelShuffle: x does not have {r * r} channels for each of its result", expected=f"shape (…, C * {r * r}, H, W)",
                got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        *batch, c, h, w = x.shape
        b = len(batch)
        apart = x.reshape(*batch, c // (r * r), r, r, h, w)
        moved = apart.transpose(*range(b), b, b + 3, b + 1, b + 4, b + 2)
        return moved.reshape(*batch, c // (r * r), h * r, w * r)


class PixelUnshuffle(Layer):
    """Places of an image laid out as channels, the reverse of PixelShuffle: (N, C, H r, W r) as (N, C r², H, W), with r = downscale_factor."""

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = checks.whole("PixelUnshuffle: downscale_factor", downscale_factor, 1)

    def emit(self, ctx: Any, x: Value) -> Value:
        r = self.downscale_factor
        if x.rank < 3 or any(n % r for n in x.shape[-2:]):
            raise TypeInferenceError(
                f"PixelUnshuffle: {r} does not divide the sizes of x", expected=f"shape (…, C, H * {r}, W * {r})", got=str(x.spec), where=ctx.here()
            )  # fmt: skip
        *batch, c, h, w = x.shape
        b = len(batch)
        apart = x.reshape(*batch, c, h // r, r, w // r, r)
        moved = apart.transpose(*range(b), b, b + 2, b + 4, b + 1, b + 3)
        return moved.reshape(*batch, c * r * r, h // r, w // r)
