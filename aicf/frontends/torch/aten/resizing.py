"""Images made larger or smaller: interpolation, by aicf's resize. PyTorch's own kernels are not slower, so that only what has no PyTorch
beside it takes these: `from_torch`, and fallback="error"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.emit.autodiff import pulled_back
from ....ir import Value
from ....types import DType
from ..rules import Site, rule
from ..types import Unsupported

NEAREST = {"mode": "nearest", "coordinates": "asymmetric", "nearest": "floor"}
EXACT = {"mode": "nearest", "coordinates": "half_pixel", "nearest": "prefer_ceil"}
KINDS = {  # the op of PyTorch's: (attributes of resize, spatial axes, whether it takes align_corners)
    **{f"upsample_nearest{n}d": (NEAREST, n, False) for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": (EXACT, n, False) for n in (1, 2, 3)},
    "upsample_linear1d": ({"mode": "linear"}, 1, True),
    "upsample_bilinear2d": ({"mode": "linear"}, 2, True),
    "upsample_trilinear3d": ({"mode": "linear"}, 3, True),
    "upsample_bicubic2d": ({"mode": "cubic"}, 2, True),
}


def _resized(
    s: Site, x: Value, sizes: Sequence[int], attrs: dict[str, str], corners: bool, scales: Sequence[float | None]
) -> Value:  # fmt: skip
    """x (N, C, …) with these sizes; a scale of None is that of the sizes."""
    if x.dtype not in (DType.f32, DType.f16, DType.bf16):
        raise Unsupported(f"interpolation of {x.dtype}")
    if corners:
        attrs = attrs | {"coordinates": "align_corners"}
    known = [float(n or 0.0) for n in scales]
    given = (1.0, 1.0, *known) if any(known) else ()
    made: Value = s.ctx.resize(x, sizes=(*x.shape[:2], *sizes), scales=given, **attrs)
    return made


def _rules(name: str, attrs: dict[str, str], axes: int, aligned: bool) -> None:
    def split(rest: Sequence[Any]) -> tuple[bool, list[Any]]:
        """(align_corners, the scale of each axis)."""
        corners, scales = (bool(rest[0]), rest[1:]) if aligned else (False, rest)
        return corners, [*scales, *[None] * (axes - len(scales))]

    def forward(s: Site, x: Value, size: Sequence[int], *rest: Any, **named: Any) -> Value:
        corners, scales = split((*rest, *named.values()))
        return _resized(s, x, s.out.shape[2:], attrs, corners, scales)

    def of_vectors(s: Site, x: Value, size: Any, *rest: Any) -> Value:
        corners, factors = (bool(rest[0]), rest[1]) if aligned else (False, rest[0])
        return _resized(s, x, s.out.shape[2:], attrs, corners, factors or [None] * axes)

    def backward(
        s: Site, dy: Value, size: Sequence[int], shape: Sequence[int], *rest: Any, **named: Any
    ) -> Value:
        """The op is linear: what x is does not matter."""
        corners, scales = split((*rest, *named.values()))
        x = s.ctx.fill(shape=tuple(s.out.shape), value=0.0, dtype=dy.dtype)
        y = _resized(s, x, dy.shape[2:], attrs, corners, scales)
        return pulled_back(s.ctx, y, dy, [x])[0]

    made: tuple[tuple[str, Callable[..., Any]], ...] = (
        (name, forward), (f"{name}.vec", of_vectors), (f"{name}_backward", backward),
    )  # fmt: skip
    for op, function in made:
        rule(op, heavy=True, slower=True)(function)


for _name, (_attrs, _axes, _aligned) in KINDS.items():
    _rules(_name, _attrs, _axes, _aligned)
