"""Elements by their places: maxima with where they are, sequences backwards, caches, determinants."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ....ops.argmax import NARROW
from ....ops.scattering import Scatter
from ....ops.windows import slices, windows_of
from ....types import DType
from ..operands import Call, Operand
from ..table import rule


def greatest_places(n: Call, x: Operand, window: tuple[int, ...], attrs: dict[str, Any]) -> tuple[Any, Any]:
    """(the greatest of each window, where the first of them is among all elements in row-major order)."""
    if x.dtype not in NARROW:
        raise n.refuse(f"places of the greatest elements of {x.dtype}")
    order, sizes = n.attr("storage_order", 0), x.shape[2:]
    n.reserve(*sizes)
    n.reserve(*x.shape[:2])
    places = np.arange(prod(sizes)).reshape(sizes[::-1]).T if order else np.arange(prod(sizes)).reshape(sizes)
    least = float("-inf") if x.dtype.kind == "float" else float(np.iinfo(x.dtype.numpy).min)
    shape = windows_of(window, **attrs)
    seen = zip(
        slices(n.ctx, n.value(x), shape, least),
        slices(n.ctx, n.value(np.ascontiguousarray(places, np.int64)[None, None]), shape),
    )
    best, at = next(seen)
    for other, place in seen:
        larger = n.op("greater", other, best)
        best, at = n.op("select", larger, other, best), n.op("select", larger, place, at)
    image = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * len(sizes)) * prod(sizes)
    return n.op("copy", best) if best is n.value(x) else best, n.op("add", at, image)


@rule("MaxUnpool", since=9)
def _unpooled(n: Call, x: Operand, places: Operand, shape: Operand | None = None) -> Any:
    """Elements where they were, zeros elsewhere. Of an output_shape that is larger, places are still those of the pooled size."""
    from .windows import _entries

    window, axes = tuple(n.attr("kernel_shape")), x.rank - 2
    if places.shape != x.shape or axes < 1 or len(window) != axes:
        raise n.wrong(f"places {list(places.shape)} and a window {list(window)} do not fit {list(x.shape)}")
    strides, pads = _entries(n, "strides", axes, 1, 1), _entries(n, "pads", 2 * axes, 0, 0)
    sides = zip(x.shape[2:], strides, window, pads[:axes], pads[axes:])
    made = (*x.shape[:2], *[(d - 1) * s - a - b + k for d, s, k, a, b in sides])
    zeros = n.op("fill", shape=(prod(made),), value=0.0, dtype=x.dtype)
    flat = [n.op("reshape", v, shape=(prod(x.shape),)) for v in (places, x)]
    y = n.op("reshape", n.op("scatter", zeros, *flat, axis=0, how=Scatter.set), shape=made)
    if shape is None:
        return y
    wanted = tuple(n.integers(shape, "output_shape") or ())
    if len(wanted) != x.rank or any(w < m for w, m in zip(wanted, made)):
        raise n.wrong(f"output_shape {list(wanted)} is less than {list(made)}")
    return n.op("pad", y, low=(0,) * x.rank, high=tuple(w - m for w, m in zip(wanted, made)))


def _index(n: Call, x: Operand) -> Any:
    return n.value(x) if x.dtype is DType.i64 else n.op("convert", x, dtype=DType.i64)


@rule("ReverseSequence", since=10)
def _reverse_sequence(n: Call, x: Operand, lengths: Operand) -> Any:
    """The first elements of each sequence backwards, the others as they are."""
    batch, time = n.attr("batch_axis"), n.attr("time_axis")
    if {batch, time} != {0, 1} or x.rank < 2 or lengths.shape != (x.shape[batch],):
        raise n.wrong(
            f"lengths {list(lengths.shape)}, batch_axis {batch}, time_axis {time} do not fit {list(x.shape)}"
        )
    shape = [1] * x.rank
    shape[batch] = x.shape[batch]
    size = n.op("reshape", _index(n, lengths), shape=tuple(shape))
    place = n.op("iota", shape=(x.shape[time], *[1] * (x.rank - time - 1)), axis=0, dtype=DType.i64)
    place = n.op("select", n.op("less", place, size), n.op("sub", n.op("sub", size, 1), place), place)
    full = n.op(
        "broadcast_in_dim", place, shape=x.shape, dims=tuple(range(x.rank - len(place.shape), x.rank))
    )
    return n.op("take_along_axis", x, full, axis=time)


@rule("TensorScatter", since=24)
def _tensor_scatter(n: Call, cache: Operand, update: Operand, first: Operand | None = None) -> Any:
    """A cache with an update from where each sequence stands on; circular: around its end."""
    axis, mode = n.axis(n.attr("axis", -2), cache.rank), n.attr("mode", "linear")
    fits = update.rank == cache.rank and all(
        a == axis or u == c for a, (u, c) in enumerate(zip(update.shape, cache.shape))
    )
    if (
        not fits
        or axis == 0
        or mode not in ("linear", "circular")
        or (first is not None and first.shape != cache.shape[:1])
    ):
        raise n.wrong(
            f"an update {list(update.shape)} along axis {axis}, mode {mode!r}, does not fit {list(cache.shape)}"
        )
    place = n.op("iota", shape=(update.shape[axis], *[1] * (cache.rank - axis - 1)), axis=0, dtype=DType.i64)
    if first is not None:
        place = n.op(
            "add", place, n.op("reshape", _index(n, first), shape=(cache.shape[0], *[1] * (cache.rank - 1)))
        )
    if mode == "circular":
        place = n.op("mod", place, cache.shape[axis])
    full = n.op(
        "broadcast_in_dim",
        place,
        shape=update.shape,
        dims=tuple(range(cache.rank - len(place.shape), cache.rank)),
    )
    return n.op("scatter", cache, full, update, axis=axis, how=Scatter.set, along=True)


@rule("Det", since=11)
def _det(n: Call, x: Operand) -> Any:
    """By minors of the first row, of matrices of up to four rows."""
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise n.wrong(f"{list(x.shape)} are no square matrices")
    size, lead = x.shape[-1], x.shape[:-2]
    if size > 4:
        raise n.refuse(f"a determinant of {size} rows")
    zeros = [0] * len(lead)

    def entry(row: int, column: int) -> Any:
        cut = n.op("slice", x, start=(*zeros, row, column), limit=(*lead, row + 1, column + 1))
        return n.op("reshape", cut, shape=lead)

    def minor(row: int, columns: tuple[int, ...]) -> Any:
        if not columns:
            return n.op("fill", shape=lead, value=1.0, dtype=x.dtype)
        total: Any = None
        for k, column in enumerate(columns):
            part = entry(row, column)
            if len(columns) > 1:
                part = n.op("mul", part, minor(row + 1, columns[:k] + columns[k + 1 :]))
            total = part if total is None else n.op("sub" if k % 2 else "add", total, part)
        return total

    return minor(0, tuple(range(size)))


@rule("BitCast", since=26)
def _bit_cast(n: Call, x: Operand) -> Any:
    """Between integers of one size: what wraps around has the same bits."""
    from ..reading import TYPES, type_name

    number = n.attr("to")
    if number not in TYPES:
        raise n.refuse(f"aicf has no {type_name(number)}")
    dtype, whole = TYPES[number], ("int", "bool")
    if dtype is x.dtype:
        return x
    if (
        dtype.kind not in whole
        or x.dtype.kind not in whole
        or dtype.itemsize != x.dtype.itemsize
        or dtype is DType.bool
    ):
        raise n.refuse(f"the bits of {x.dtype} as {dtype}")
    return n.op("convert", x, dtype=dtype)


@rule("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _features(n: Call, x: Operand, places: Operand) -> Any:
    y = n.op("gather", x, n.op("reshape", _index(n, places), shape=(prod(places.shape),)), axis=x.rank - 1)
    return n.op("reshape", y, shape=(1, *y.shape)) if x.rank == 1 else y


@rule("Binarizer", domain="ai.onnx.ml")
def _binarized(n: Call, x: Operand) -> Any:
    return n.op("convert", n.op("greater", x, n.attr("threshold")), dtype=x.dtype)
