"""Images at other places: resizing, sampling at a grid, regions of interest, columns back into images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import floor, prod
from typing import Any

import numpy as np

from ....types import DType
from ..operands import Call, Operand
from ..table import rule

FEW = 6  # elements that a place of the result is made of: more are a matrix product


def _as(n: Call, x: Any, dtype: DType) -> Any:
    return x if x.dtype is dtype else n.op("convert", x, dtype=dtype)


# --- Resize ------------------------------------------------------------------------------------------------------------


def _coordinates(
    n: Call, mode: str, size: int, made: int, scale: float, roi: tuple[float, float]
) -> np.ndarray:
    """Where each place of the result lies among `size` elements."""
    n.reserve(made)
    x = np.arange(made, dtype=np.float64)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and made > 1):
        return (x + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return np.zeros(made)
    if mode == "half_pixel_symmetric":
        return size / 2 * (1 - made / (scale * size)) + (x + 0.5) / scale - 0.5
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * (size - 1) / (scale * size - 1) if made > 1 else np.zeros(made)
    if mode == "tf_crop_and_resize":
        start, end = roi
        if made > 1:
            return start * (size - 1) + x * (end - start) * (size - 1) / (made - 1)
        return np.full(made, 0.5 * (start + end) * (size - 1))
    raise n.wrong(f"coordinate_transformation_mode is {mode!r}")


def _nearest(n: Call, x: np.ndarray, mode: str) -> np.ndarray:
    rounds: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5), "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    if mode not in rounds:
        raise n.wrong(f"nearest_mode is {mode!r}, expected {', '.join(rounds)}")
    return np.asarray(rounds[mode](x))


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel at these distances."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _taps(n: Call, x: np.ndarray, size: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(places, weights) of what each result is made of, (results, taps)."""
    mode = n.attr("mode")
    shrink = min(scale, 1.0) if n.attr("antialias", 0) else 1.0
    reach = {"linear": 1, "cubic": 2}[mode] / shrink
    first = floor(-reach) + 1
    base = np.floor(x).astype(np.int64)[:, None]
    n.reserve(len(x), 2 - 2 * first)
    offsets = np.arange(first, 2 - first)
    d = np.abs(offsets - (x[:, None] - base)) * shrink
    weights = np.clip(1 - d, 0, 1) if mode == "linear" else _cubic(d, n.attr("cubic_coeff_a", -0.75))
    places = base + offsets
    if n.attr("exclude_outside", 0):
        weights = np.where((places >= 0) & (places < size), weights, 0)
    weights = weights / weights.sum(1, keepdims=True)
    used = np.flatnonzero((weights != 0).any(0))
    return np.clip(places, 0, size - 1)[:, used], weights[:, used]


def _along(n: Call, y: Any, axis: int, places: np.ndarray, weights: np.ndarray) -> Any:
    """Sums of elements along an axis, by gathers of a few or as a product with the weights."""
    rank, (made, taps) = len(y.shape), places.shape
    if taps <= FEW:
        total: Any = None
        shape = (made, *[1] * (rank - axis - 1))
        for place, weight in zip(places.T, weights.T):
            part = n.op("gather", y, np.ascontiguousarray(place), axis=axis)
            if not np.all(weight == 1):
                part = n.op("mul", part, weight.astype(np.float32).reshape(shape))
            total = part if total is None else n.op("add", total, part)
        return total
    n.reserve(y.shape[axis], made)
    matrix = np.zeros((y.shape[axis], made))
    np.add.at(matrix, (places.T, np.arange(made)), weights.T)
    last = (*[a for a in range(rank) if a != axis], axis)
    moved = n.value(n.op("transpose", y, perm=last)) @ n.value(matrix.astype(np.float32))
    return n.op("transpose", moved, perm=tuple(np.argsort(last).tolist()))


def _sizes(
    n: Call, x: Operand, scales: Operand | None, sizes: Operand | None, roi: Operand | None, axes: list[int]
) -> list[tuple[int, float, tuple[float, float]]]:
    """(size of the result, scale, part of the axis) of each of the axes."""
    crop = n.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    parts = [(0.0, 1.0)] * len(axes)
    if crop:
        if roi is None:
            raise n.wrong("tf_crop_and_resize without a roi")
        given = n.known(roi, "roi").astype(np.float64).reshape(-1)
        if given.size != 2 * len(axes):
            raise n.wrong(f"roi has {given.size} numbers for {len(axes)} axes")
        parts = [(float(a), float(b)) for a, b in zip(given[: len(axes)], given[len(axes) :])]
    if sizes is not None and sizes.shape != (0,):
        wanted = n.integers(sizes, "sizes") or []
        if len(wanted) != len(axes):
            raise n.wrong(f"{len(wanted)} sizes for {len(axes)} axes")
        if any(not x.shape[a] for a in axes):
            raise n.wrong(f"{list(x.shape)} has an axis without elements, which has no other size")
        ratios = [m / x.shape[a] for m, a in zip(wanted, axes)]
        policy = n.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            if policy not in ("not_larger", "not_smaller"):
                raise n.wrong(f"keep_aspect_ratio_policy is {policy!r}")
            one = min(ratios) if policy == "not_larger" else max(ratios)
            ratios, wanted = [one] * len(axes), [floor(one * x.shape[a] + 0.5) for a in axes]
        return list(zip(wanted, ratios, parts))
    if scales is None:
        raise n.wrong("it has neither scales nor sizes")
    by = n.known(scales, "scales").astype(np.float64).reshape(-1)
    if by.size != len(axes) or not np.all((by > 0) & np.isfinite(by)):
        raise n.wrong(f"scales {by.tolist()} are not positive numbers for {len(axes)} axes")
    return [(floor(x.shape[a] * (p[1] - p[0]) * s), float(s), p) for a, s, p in zip(axes, by, parts)]


def _resized(
    n: Call,
    x: Operand,
    each: Sequence[tuple[int, tuple[int, float, tuple[float, float]]]],
    coordinates: str,
    nearest: str,
) -> Any:
    mode = n.attr("mode")
    if mode not in ("nearest", "linear", "cubic"):
        raise n.wrong(f"mode is {mode!r}, expected nearest, linear or cubic")
    y: Any = x if mode == "nearest" else _as(n, n.value(x), DType.f32)
    inside: Any = None
    for axis, (made, scale, part) in each:
        size = x.shape[axis]
        if size == 0 or made < 0:
            raise n.wrong(f"axis {axis} of size {size} can't become {made}")
        at = _coordinates(n, coordinates, size, made, scale, part)
        if coordinates == "tf_crop_and_resize":
            fits = ((at >= 0) & (at <= size - 1)).reshape(made, *[1] * (x.rank - axis - 1))
            if not fits.all():
                inside = fits if inside is None else inside & fits
        if mode == "nearest":
            places = np.clip(_nearest(n, at, nearest), 0, size - 1).astype(np.int64)
            if not np.array_equal(places, np.arange(size)):
                y = n.op("gather", y, places, axis=axis)
            continue
        places, weights = _taps(n, at, size, scale)
        if (
            places.shape != (size, 1)
            or not np.array_equal(places[:, 0], np.arange(size))
            or not np.all(weights == 1)
        ):
            y = _along(n, y, axis, places, weights)
    if inside is not None:
        value = n.number(n.attr("extrapolation_value", 0.0), y.dtype)
        full = n.op(
            "broadcast_in_dim", inside, shape=tuple(y.shape), dims=tuple(range(x.rank - inside.ndim, x.rank))
        )
        y = n.op("select", full, y, value)
    if y is x or y.dtype is x.dtype:
        return y
    return n.op("convert", n.op("round", y) if x.dtype.kind == "int" else y, dtype=x.dtype)


@rule("Resize", since=11)
def _resize(
    n: Call, x: Operand, roi: Operand | None, scales: Operand | None, sizes: Operand | None = None
) -> Any:
    axes = [n.axis(a, x.rank) for a in n.attr("axes") or range(x.rank)]
    if scales is not None and scales.shape == (0,):
        scales = None
    each = list(zip(axes, _sizes(n, x, scales, sizes, roi, axes)))
    return _resized(n, x, each, n.attr("coordinate_transformation_mode"), n.attr("nearest_mode"))


@rule("Resize", since=10, until=10)
@rule("Upsample", since=9)
def _upsample(n: Call, x: Operand, scales: Operand) -> Any:
    axes = list(range(x.rank))
    return _resized(n, x, list(zip(axes, _sizes(n, x, scales, None, None, axes))), "asymmetric", "floor")


# --- places that are computed ------------------------------------------------------------------------------------------


class _Sampler:
    """Elements of images at places that are computed: rows of all channels, so that a place is looked up once."""

    def __init__(self, n: Call, x: Any, padding: str = "zeros", aligned: bool = True) -> None:
        self.n, self.sizes, self.padding, self.aligned = n, tuple(x.shape[2:]), padding, aligned
        channels_last = n.op("transpose", x, perm=(0, *range(2, len(x.shape)), 1))
        self.rows = n.op("reshape", channels_last, shape=(x.shape[0] * prod(self.sizes), x.shape[1]))

    def index(self, at: Any, size: int) -> tuple[Any, Any]:
        """(the place along an axis as an index, whether there is an element), of whole numbers in f32."""
        n = self.n
        if self.padding == "reflection":
            period = 2 * (size - 1) if self.aligned else 2 * size
            if period == 0:
                at = n.op("scale", at, factor=0.0)
            else:
                within = n.op("mod", at, float(period))
                at = n.op("minimum", within, n.op("sub", float(period - (not self.aligned)), within))
        there = n.op("logical_and", n.op("greater_equal", at, 0), n.op("less_equal", at, size - 1))
        cut = n.op("minimum", n.op("maximum", at, 0.0), float(size - 1))
        return n.op("convert", cut, dtype=DType.i64), None if self.padding != "zeros" else there

    def read(self, image: Any, at: Sequence[Any]) -> Any:
        """What lies there, (…, channels) for places of (…) of the images of these numbers; 0 where there is nothing."""
        n, flat, inside = self.n, image, None
        for place, size in zip(at, self.sizes):
            index, there = self.index(place, size)
            flat = n.op("add", n.op("mul", flat, size), index)
            if there is not None:
                inside = there if inside is None else n.op("logical_and", inside, there)
        rows = n.op("gather", self.rows, flat, axis=0)
        if inside is None:
            return rows
        return n.op("select", _column(n, inside), rows, n.number(0, rows.dtype))


def _column(n: Call, x: Any) -> Any:
    return n.op("reshape", x, shape=(*x.shape, 1))


def _linear_taps(n: Call, at: Any) -> list[tuple[Any, Any]]:
    """(place, weight) on both sides."""
    low = n.op("floor", at)
    part = n.op("sub", at, low)
    return [(low, n.op("sub", 1.0, part)), (n.op("add", low, 1.0), part)]


def _cubic_taps(n: Call, at: Any) -> list[tuple[Any, Any]]:
    a, low = -0.75, n.op("floor", at)
    part, taps = n.op("sub", at, low), []
    for offset in (-1, 0, 1, 2):
        d = n.op("abs", n.op("sub", part, float(offset)))
        if offset in (0, 1):
            weight = n.op(
                "add", n.op("mul", n.op("sub", n.op("scale", d, factor=a + 2), a + 3), n.op("square", d)), 1.0
            )
        else:
            inner = n.op("sub", n.op("scale", d, factor=a), 5 * a)
            weight = n.op("sub", n.op("mul", n.op("add", n.op("mul", inner, d), 8 * a), d), 4 * a)
        taps.append((n.op("add", low, float(offset)), weight))
    return taps


def _weighted(n: Call, sampler: _Sampler, image: Any, taps: Sequence[Sequence[tuple[Any, Any]]]) -> Any:
    """The sum over the taps of all axes."""
    total: Any = None
    for combination in product(*taps):
        weight: Any = None
        for _, w in combination:
            weight = w if weight is None else n.op("mul", weight, w)
        rows = _as(n, sampler.read(image, [place for place, _ in combination]), DType.f32)
        part = n.op("mul", rows, _column(n, weight))
        total = part if total is None else n.op("add", total, part)
    return total


@rule("GridSample", since=16)
def _grid_sample(n: Call, x: Operand, grid: Operand) -> Any:
    """Where the last axis of the grid says, which counts spatial axes from the last one."""
    axes, modes = x.rank - 2, {"bilinear": "linear", "bicubic": "cubic"}
    mode = modes.get(n.attr("mode"), n.attr("mode"))
    padding, aligned = n.attr("padding_mode"), bool(n.attr("align_corners"))
    if axes < 1 or grid.rank != x.rank or grid.shape[-1] != axes or grid.shape[0] != x.shape[0]:
        raise n.wrong(f"a grid {list(grid.shape)} does not fit {list(x.shape)}")
    if mode not in ("linear", "nearest", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise n.wrong(f"mode is {mode!r}, padding_mode {padding!r}")
    places, batch, out = _as(n, n.value(grid), DType.f32), x.shape[0], grid.shape[1:-1]
    flat = n.op("reshape", places, shape=(batch, prod(out), axes))
    taps = []
    for axis, size in enumerate(x.shape[2:]):
        k = axes - 1 - axis
        one = n.op(
            "reshape",
            n.op("slice", flat, start=(0, 0, k), limit=(batch, prod(out), k + 1)),
            shape=(batch, prod(out)),
        )
        if aligned:
            at = n.op("scale", n.op("add", one, 1.0), factor=(size - 1) / 2)
        else:
            at = n.op(
                "scale",
                n.op("sub", n.op("scale", n.op("add", one, 1.0), factor=float(size)), 1.0),
                factor=0.5,
            )
        if mode == "nearest":
            taps.append([(n.op("round", at), None)])
        else:
            taps.append(_linear_taps(n, at) if mode == "linear" else _cubic_taps(n, at))
    sampler = _Sampler(n, n.value(x), padding, aligned)
    image = n.op("iota", shape=(batch, 1), axis=0, dtype=DType.i64)
    if mode == "nearest":
        rows = sampler.read(image, [axis[0][0] for axis in taps])
    else:
        rows = _as(n, _weighted(n, sampler, image, taps), x.dtype)
    turned = n.op("transpose", rows, perm=(0, 2, 1))
    return n.op("reshape", turned, shape=(batch, x.shape[1], *out))


@rule("RoiAlign", since=10)
def _roi_align(n: Call, x: Operand, rois: Operand, images: Operand) -> Any:
    """Means, or maxima, of points within each bin of a region; each point between four elements."""
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or images.shape != rois.shape[:1]:
        raise n.wrong(f"regions {list(rois.shape)} of images {list(images.shape)} do not fit {list(x.shape)}")
    mode, ratio = n.attr("mode"), n.attr("sampling_ratio")
    if ratio < 1:
        raise n.refuse("a sampling_ratio of 0: how many points a bin has depends on its region")
    if mode not in ("avg", "max"):
        raise n.wrong(f"mode is {mode!r}, expected avg or max")
    count, made = rois.shape[0], (n.attr("output_height"), n.attr("output_width"))
    half = n.attr("coordinate_transformation_mode", "output_half_pixel") == "half_pixel"
    corners = n.op("scale", _as(n, n.value(rois), DType.f32), factor=n.attr("spatial_scale"))
    corners = n.op("sub", corners, 0.5) if half else corners
    ends = [n.op("slice", corners, start=(0, k), limit=(count, k + 1)) for k in range(4)]
    taps, outside = [], []
    for axis, (size, bins) in enumerate(zip(x.shape[2:], made)):
        start, end = ends[1 - axis], ends[3 - axis]
        length = n.op("sub", end, start)
        length = length if half else n.op("maximum", length, 1.0)
        n.reserve(bins, ratio)
        offsets = ((np.arange(bins * ratio) + 0.5) / (ratio * bins)).astype(np.float32)[None]
        at = n.op("add", start, n.op("mul", length, offsets))  # (regions, points)
        outside.append(n.op("logical_or", n.op("less", at, -1.0), n.op("greater", at, float(size))))
        at = n.op("minimum", n.op("maximum", at, 0.0), float(size - 1))
        shape = (count, bins * ratio, 1) if axis == 0 else (count, 1, bins * ratio)
        taps.append([tuple(n.op("reshape", v, shape=shape) for v in tap) for tap in _linear_taps(n, at)])
        outside[-1] = n.op("reshape", outside[-1], shape=shape)
    sampler = _Sampler(n, n.value(x), "border")
    image = n.op("reshape", _as(n, n.value(images), DType.i64), shape=(count, 1, 1))
    total: Any = None
    for (row, a), (column, b) in product(*taps):
        part = n.op(
            "mul", _as(n, sampler.read(image, [row, column]), DType.f32), _column(n, n.op("mul", a, b))
        )
        total = part if total is None else n.op("add" if mode == "avg" else "maximum", total, part)
    total = n.op("select", _column(n, n.op("logical_or", *outside)), 0.0, total)
    split = n.op("reshape", total, shape=(count, made[0], ratio, made[1], ratio, x.shape[1]))
    kind = "reduce_mean" if mode == "avg" else "reduce_max"
    y = n.op("transpose", n.op(kind, split, axes=(2, 4), keepdims=False), perm=(0, 3, 1, 2))
    return _as(n, y, x.dtype)


@rule("DeformConv", since=19)
def _deform_conv(
    n: Call, x: Operand, w: Operand, offset: Operand, bias: Operand | None = None, mask: Operand | None = None
) -> Any:
    """A convolution whose windows have their elements where offsets say: they are read, then multiplied."""
    from .windows import _entries

    if x.rank != 4 or w.rank != 4:
        raise n.refuse(f"images of {x.rank - 2} axes")
    group, groups = n.attr("group", 1), n.attr("offset_group", 1)
    batch, channels, window = x.shape[0], x.shape[1], w.shape[2:]
    strides, dilation, pads = (
        _entries(n, "strides", 2, 1, 1),
        _entries(n, "dilations", 2, 1, 1),
        _entries(n, "pads", 4, 0, 0),
    )
    out, many = offset.shape[2:], prod(window)
    if channels % groups or channels % group or w.shape[0] % group or offset.shape[1] != 2 * groups * many:
        raise n.wrong(
            f"offsets {list(offset.shape)} of {groups} groups do not fit {list(x.shape)} and {list(w.shape)}"
        )
    moved = n.op("reshape", _as(n, n.value(offset), DType.f32), shape=(batch, groups, many, 2, prod(out)))
    taps = []
    for axis in range(2):
        places = (
            np.arange(out[axis])[None, :] * strides[axis]
            - pads[axis]
            + np.arange(window[axis])[:, None] * dilation[axis]
        )
        grid = places.reshape((window[0], 1, out[0], 1) if axis == 0 else (1, window[1], 1, out[1]))
        n.reserve(many, *out)
        own = np.broadcast_to(grid, (*window, *out)).reshape(1, 1, many, prod(out)).astype(np.float32)
        part = n.op(
            "slice", moved, start=(0, 0, 0, axis, 0), limit=(batch, groups, many, axis + 1, prod(out))
        )
        at = n.op(
            "add", n.op("reshape", part, shape=(batch, groups, many, prod(out))), np.ascontiguousarray(own)
        )
        taps.append(_linear_taps(n, at))
    each = channels // groups
    split = n.op("reshape", x, shape=(batch * groups, each, *x.shape[2:]))
    sampler = _Sampler(n, split)
    image = n.op("iota", shape=(batch * groups, 1), axis=0, dtype=DType.i64)
    image = n.op("reshape", image, shape=(batch, groups, 1, 1))
    rows = _weighted(n, sampler, image, taps)  # (batch, groups, window, out, channels of a group)
    if mask is not None:
        factor = n.op("reshape", _as(n, n.value(mask), DType.f32), shape=(batch, groups, many, prod(out)))
        rows = n.op("mul", rows, _column(n, factor))
    columns = n.op("transpose", rows, perm=(0, 1, 4, 2, 3))
    columns = n.op("reshape", columns, shape=(batch, group, channels // group * many, prod(out)))
    weights = n.op(
        "reshape", _as(n, n.value(w), DType.f32), shape=(group, w.shape[0] // group, channels // group * many)
    )
    y = n.op("reshape", n.value(weights) @ columns, shape=(batch, w.shape[0], *out))
    if bias is not None:
        y = n.op("add", y, n.op("reshape", _as(n, n.value(bias), DType.f32), shape=(1, w.shape[0], 1, 1)))
    return _as(n, y, x.dtype)


@rule("Col2Im", since=18)
def _col2im(n: Call, x: Operand, image: Operand, block: Operand) -> Any:
    """Columns added where they come from: to the image with its padding, which is then cut off."""
    from .windows import _entries

    size, window = n.integers(image, "image_shape") or [], n.integers(block, "block_shape") or []
    axes = len(size)
    if not axes or len(window) != axes or x.rank != 3 or min(window) < 1 or x.shape[1] % prod(window):
        raise n.wrong(f"blocks {window} of {list(x.shape)} do not make {size}")
    strides, dilation = _entries(n, "strides", axes, 1, 1), _entries(n, "dilations", axes, 1, 1)
    pads = _entries(n, "pads", 2 * axes, 0, 0)
    wide = [s + a + b for s, a, b in zip(size, pads[:axes], pads[axes:])]
    count = [(s - (k - 1) * d - 1) // t + 1 for s, k, d, t in zip(wide, window, dilation, strides)]
    if prod(count) != x.shape[2] or min(count) < 1:
        raise n.wrong(f"{x.shape[2]} columns, where {size} has {prod(count)}")
    n.reserve(*window, *count)
    flat = np.zeros((1,) * (2 * axes), np.int64)
    for a in range(axes):
        at = np.arange(window[a])[:, None] * dilation[a] + np.arange(count[a]) * strides[a]
        shape = [1] * (2 * axes)
        shape[a], shape[axes + a] = window[a], count[a]
        flat = flat * wide[a] + at.reshape(shape)
    channels = x.shape[1] // prod(window)
    columns = n.op("reshape", x, shape=(x.shape[0], channels, flat.size))
    y = n.op("scatter_add", columns, flat.reshape(-1), size=prod(wide), axis=2)
    y = n.op("reshape", y, shape=(x.shape[0], channels, *wide))
    start, limit = (0, 0, *pads[:axes]), (x.shape[0], channels, *[p + s for p, s in zip(pads, size)])
    return n.op("slice", y, start=start, limit=limit)
