"""Where elements lie: shapes, slices, joins, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ....types import DType
from ..operands import Call, Operand
from ..reading import dtype_of
from ..table import rule

MOST = 1 << 16  # elements of a tensor that is made here and may be an operand that shapes depend on


def broadcast(n: Call, x: Any, shape: tuple[int, ...]) -> Any:
    """x, of this shape's rank or a lower one, repeated to it."""
    if tuple(x.shape) == tuple(shape):
        return x
    lead = len(shape) - len(x.shape)
    return n.op("broadcast_in_dim", x, shape=tuple(shape), dims=tuple(range(lead, len(shape))))


# --- shapes -----------------------------------------------------------------------------------------------------------


@rule("Shape", folds=False)
def _shape(n: Call, x: Operand) -> Any:
    start, end = n.attr("start", 0), n.attr("end")
    return np.array(x.shape[slice(start, end)], np.int64)


@rule("Size", folds=False)
def _size(n: Call, x: Operand) -> Any:
    return np.array(prod(x.shape), np.int64)


@rule("Reshape", since=5)
def _reshape(n: Call, x: Operand, shape: Operand) -> Any:
    sizes = n.integers(shape, "shape") or []
    if not n.attr("allowzero", 0):
        if any(d == 0 and axis >= x.rank for axis, d in enumerate(sizes)):
            raise n.wrong(f"shape {sizes} copies an axis that {list(x.shape)} lacks")
        sizes = [x.shape[axis] if d == 0 else d for axis, d in enumerate(sizes)]
    if sizes.count(-1) > 1 or any(d < -1 for d in sizes):
        raise n.wrong(f"shape {sizes} has more than one -1, or a negative size")
    if -1 in sizes:
        rest = prod(d for d in sizes if d != -1)
        total = prod(x.shape)
        if not rest or total % rest:
            raise n.wrong(f"{list(x.shape)} can't become {sizes}")
        sizes[sizes.index(-1)] = total // rest
    return n.op("reshape", x, shape=tuple(sizes))


@rule("Flatten")
def _flatten(n: Call, x: Operand) -> Any:
    axis = n.attr("axis")
    if not -x.rank <= axis <= x.rank:
        raise n.wrong(f"axis {axis} is not in [-{x.rank}, {x.rank}]")
    axis += x.rank * (axis < 0)
    return n.op("reshape", x, shape=(prod(x.shape[:axis]), prod(x.shape[axis:])))


@rule("Squeeze")
def _squeeze(n: Call, x: Operand, axes: Operand | None = None) -> Any:
    given = n.attr("axes") if axes is None else n.integers(axes, "axes")
    gone = (
        {a for a, d in enumerate(x.shape) if d == 1} if given is None else {n.axis(a, x.rank) for a in given}
    )
    if wrong := [a for a in gone if x.shape[a] != 1]:
        raise n.wrong(f"axis {wrong[0]} of {list(x.shape)} is not of size 1")
    return n.op("reshape", x, shape=tuple(d for a, d in enumerate(x.shape) if a not in gone))


@rule("Unsqueeze")
def _unsqueeze(n: Call, x: Operand, axes: Operand | None = None) -> Any:
    given = (n.attr("axes") if axes is None else n.integers(axes, "axes")) or []
    rank = x.rank + len(given)
    added = {n.axis(a, rank) for a in given}
    if len(added) < len(given):
        raise n.wrong(f"axes {given} name an axis twice")
    left = iter(x.shape)
    return n.op("reshape", x, shape=tuple(1 if a in added else next(left) for a in range(rank)))


@rule("Transpose")
def _transpose(n: Call, x: Operand) -> Any:
    perm = n.attr("perm")
    return n.op("transpose", x, perm=tuple(range(x.rank))[::-1] if perm is None else tuple(perm))


@rule("Expand", since=8)
def _expand(n: Call, x: Operand, shape: Operand) -> Any:
    wanted = tuple(n.integers(shape, "shape") or ())
    try:
        full = np.broadcast_shapes(x.shape, wanted)
    except ValueError:
        raise n.wrong(f"{list(x.shape)} does not broadcast with {list(wanted)}") from None
    return broadcast(n, n.value(x), full)


@rule("Tile", since=6)
def _tile(n: Call, x: Operand, repeats: Operand) -> Any:
    times = n.integers(repeats, "repeats") or []
    if len(times) != x.rank or any(t < 0 for t in times):
        raise n.wrong(f"repeats {times} are not one for each axis of {list(x.shape)}")
    split = n.op("reshape", x, shape=tuple(d for size in x.shape for d in (1, size)))
    wide = broadcast(n, split, tuple(d for pair in zip(times, x.shape) for d in pair))
    return n.op("reshape", wide, shape=tuple(t * d for t, d in zip(times, x.shape)))


# --- slices and joins -------------------------------------------------------------------------------------------------


@rule("Slice", since=10)
def _slice(
    n: Call, x: Operand, starts: Operand, ends: Operand, axes: Operand | None, steps: Operand | None
) -> Any:
    first, last = n.integers(starts, "starts") or [], n.integers(ends, "ends") or []
    over = n.integers(axes, "axes") if axes is not None else list(range(len(first)))
    by = n.integers(steps, "steps") if steps is not None else [1] * len(first)
    assert over is not None and by is not None
    if not len(first) == len(last) == len(over) == len(by):
        raise n.wrong("starts, ends, axes and steps are not of one length")
    return sliced(n, x, {n.axis(a, x.rank): slice(s, e, t) for a, s, e, t in zip(over, first, last, by)})


@rule("Slice", until=9)
def _slice_by_attributes(n: Call, x: Operand) -> Any:
    starts, ends = (_listed(n.attr(name)) for name in ("starts", "ends"))
    axes = n.attr("axes")
    return _slice(n, x, starts, ends, None if axes is None else _listed(axes), None)


def _listed(numbers: Sequence[int]) -> Operand:
    """An attribute of older versions as the operand of newer ones."""
    return Operand(np.asarray(numbers, np.int64))


def sliced(n: Call, x: Any, parts: dict[int, slice]) -> Any:
    """x[...] by axis, as Python has it, with negative steps."""
    start, limit, step, back = [0] * len(x.shape), list(x.shape), [1] * len(x.shape), []
    for axis, part in parts.items():
        if part.step == 0:
            raise n.wrong(f"the step along axis {axis} is 0")
        taken = range(*_bounded(part, x.shape[axis]))
        if not taken:
            start[axis] = limit[axis] = 0
            continue
        low, high = min(taken[0], taken[-1]), max(taken[0], taken[-1])
        start[axis], limit[axis], step[axis] = low, high + 1, abs(taken.step)
        if taken.step < 0 and len(taken) > 1:
            back.append(axis)
    y = n.op("slice", x, start=tuple(start), limit=tuple(limit), step=tuple(step))
    return n.op("reverse", y, dims=tuple(back)) if back else y


def _bounded(part: slice, size: int) -> tuple[int, int, int]:
    """ONNX's rule: counted from the end where negative, then clamped; an end before everything stays there."""
    step = 1 if part.step is None else part.step
    start, stop = (e + size if e < 0 else e for e in (part.start, part.stop))
    if step > 0:
        return min(max(start, 0), size), min(max(stop, 0), size), step
    return min(max(start, 0), size - 1), min(max(stop, -1), size - 1), step


@rule("Concat", since=4)
def _concat(n: Call, *xs: Operand) -> Any:
    return n.op("concatenate", *xs, axis=n.axis(n.attr("axis"), xs[0].rank))


@rule("Split", since=2)
def _split(n: Call, x: Operand, split: Operand | None = None) -> Any:
    axis, count = n.axis(n.attr("axis"), x.rank), len(n.node.outputs)
    size = x.shape[axis]
    sizes = n.attr("split") if split is None else n.integers(split, "split")
    if sizes is None:
        if n.attr("num_outputs", count) != count or (n.since < 18 and size % count):
            raise n.wrong(f"axis {axis} of size {size} can't be split into {count}")
        part = -(-size // count)
        sizes = [max(min(part, size - i * part), 0) for i in range(count)]
    if sum(sizes) != size or len(sizes) != count or min(sizes) < 0:
        raise n.wrong(f"axis {axis} of size {size} can't be split into {sizes}")
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(sliced(n, x, {axis: slice(a, b, 1)}) for a, b in pairwise(ends))


@rule("Pad", since=11)
def _pad(n: Call, x: Operand, pads: Operand, value: Operand | None, axes: Operand | None = None) -> Any:
    amounts = n.integers(pads, "pads") or []
    over = [
        n.axis(a, x.rank) for a in (n.integers(axes, "axes") if axes is not None else range(x.rank)) or ()
    ]
    if len(amounts) != 2 * len(over):
        raise n.wrong(f"pads {amounts} are not two for each of {len(over)} axes")
    low, high = [0] * x.rank, [0] * x.rank
    for at, axis in enumerate(over):
        low[axis], high[axis] = amounts[at], amounts[at + len(over)]
    mode = n.attr("mode")
    if mode != "constant":
        return _padded_by_itself(n, x, low, high, mode)
    if value is None or (
        value.array is not None and value.array.size == 1 and _holds(value.array.item(), x.dtype)
    ):
        number = 0.0 if value is None or value.array is None else value.array.item()
        return n.op("pad", x, value=float(number), low=tuple(low), high=tuple(high))
    inside = n.op(
        "pad",
        n.op("fill", shape=x.shape, value=1.0, dtype=DType.bool),
        value=0.0,
        low=tuple(low),
        high=tuple(high),
    )
    return n.op(
        "select", inside, n.op("pad", x, low=tuple(low), high=tuple(high)), n.op("reshape", value, shape=())
    )


@rule("Pad", since=2, until=10)
def _pad_by_attributes(n: Call, x: Operand) -> Any:
    number = np.asarray(n.attr("value", 0.0), x.dtype.numpy)
    return _pad(n, x, _listed(n.attr("pads")), Operand(number))


def _holds(number: float, dtype: DType) -> bool:
    return dtype.kind == "float" or abs(int(number)) <= 2**53


def _padded_by_itself(n: Call, x: Operand, low: list[int], high: list[int], mode: str) -> Any:
    """Edge, reflect and wrap: the places of x that stand around it, as indices of one gather along each axis."""
    names = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}
    if mode not in names:
        raise n.wrong(f"mode is {mode!r}, expected constant, edge, reflect or wrap")
    y: Any = x
    for axis, (before, behind) in enumerate(zip(low, high)):
        size = x.shape[axis]
        if (before, behind) == (0, 0):
            continue
        if (mode == "reflect" and min(before, behind) < 0) or (mode == "wrap" and before * behind < 0):
            raise n.refuse(f"{mode} of pads {before} and {behind}: what is cut off, ONNX leaves open")
        if not size or max(before, behind) > MOST:
            raise n.wrong(f"axis {axis} of size {size} can't be padded by {before} and {behind} of its own")
        n.reserve(size + max(before, 0) + max(behind, 0))
        places: Any = np.pad(np.arange(size), (max(before, 0), max(behind, 0)), mode)  # type: ignore[call-overload]
        places = places[max(-before, 0) : len(places) - max(-behind, 0)]
        y = n.op("gather", y, places.astype(np.int64), axis=axis)
    return y


# --- what is made -----------------------------------------------------------------------------------------------------


@rule("Constant", folds=False)
def _constant(n: Call) -> Any:
    given = [name for name in n.node.attrs if name.startswith("value") or name == "sparse_value"]
    if len(given) != 1:
        raise n.wrong("it has not one value")
    value = n.attr(given[0])
    if given[0] == "value":
        return value
    kind = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    if given[0] not in kind:
        raise n.refuse(f"aicf has no {given[0].removeprefix('value_')} constant")
    return np.array(value, kind[given[0]])


@rule("ConstantOfShape", since=9, folds=False)
def _constant_of_shape(n: Call, shape: Operand) -> Any:
    sizes = tuple(n.integers(shape, "shape") or ())
    if any(d < 0 for d in sizes):
        raise n.wrong(f"shape {list(sizes)} has a negative size")
    value = n.attr("value")
    value = np.zeros(1, np.float32) if value is None else value
    if value.size != 1:
        raise n.wrong(f"value has {value.size} elements")
    if prod(sizes) <= MOST:
        return np.full(sizes, value.reshape(()))
    return broadcast(n, n.value(value.reshape(())), sizes)


@rule("Range", since=11, folds=False)
def _range(n: Call, start: Operand, limit: Operand, delta: Operand) -> Any:
    first, last, step = (
        n.number_of(x, name) for x, name in ((start, "start"), (limit, "limit"), (delta, "delta"))
    )
    if step == 0:
        raise n.wrong("delta is 0")
    if not all(np.isfinite(v.astype(np.float64)) for v in (first, last, step)):
        raise n.wrong("a bound is not finite")
    exact = (float(last) - float(first)) / float(step)
    if abs(exact) > 2**62:
        raise n.wrong(f"{first} to {last} by {step} are more elements than a tensor has")
    count = max(int(np.ceil(exact)), 0)
    if start.dtype.kind == "int":
        count = max(-((int(first) - int(last)) // int(step)), 0)
    if count <= MOST:
        wide = np.arange(count).astype(np.float64 if start.dtype.kind == "float" else np.int64)
        return np.asarray(first.astype(wide.dtype) + wide * step.astype(wide.dtype)).astype(first.dtype)
    counted = n.op("iota", shape=(count,), axis=0, dtype=start.dtype)
    return n.op("add", n.op("mul", counted, Operand(step)), Operand(first))


@rule("EyeLike", since=9)
def _eye_like(n: Call, x: Operand) -> Any:
    number = n.attr("dtype")
    dtype = x.dtype if number is None else dtype_of(number, "the result")
    rows, columns = (n.op("iota", shape=x.shape, axis=a, dtype=DType.i64) for a in (0, 1))
    return n.op("convert", n.op("equal", columns, n.op("add", rows, n.attr("k"))), dtype=dtype)


@rule("Trilu", since=14)
def _trilu(n: Call, x: Operand, k: Operand | None = None) -> Any:
    at = 0 if k is None else n.integer(k, "k")
    rows, columns = (n.op("iota", shape=x.shape[-2:], axis=a, dtype=DType.i64) for a in (0, 1))
    kept = "greater_equal" if n.attr("upper") else "less_equal"
    diagonal = n.op("add", rows, max(min(at, 2**62), -(2**62))) if at else rows
    zero = n.number(0, x.dtype)
    return n.op("select", n.op(kept, columns, diagonal), x, zero)


@rule("NonZero", since=9, folds=False)
def _non_zero(n: Call, x: Operand) -> Any:
    array = n.known(x, "x")
    n.reserve(2 * x.rank, int(np.count_nonzero(array)))
    return np.array(np.nonzero(array), np.int64)


@rule("DepthToSpace")
def _depth_to_space(n: Call, x: Operand) -> Any:
    by, mode = n.attr("blocksize"), n.attr("mode")
    if x.rank != 4 or by < 1 or x.shape[1] % (by * by):
        raise n.wrong(f"blocks of {by} do not fit {list(x.shape)}")
    b, c, h, w = x.shape
    if mode == "DCR":
        split, perm = (b, by, by, c // by**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (b, c // by**2, by, by, h, w), (0, 1, 4, 2, 5, 3)
    y = n.op("transpose", n.op("reshape", x, shape=split), perm=perm)
    return n.op("reshape", y, shape=(b, c // by**2, h * by, w * by))


@rule("SpaceToDepth")
def _space_to_depth(n: Call, x: Operand) -> Any:
    by = n.attr("blocksize")
    if x.rank != 4 or by < 1 or x.shape[2] % by or x.shape[3] % by:
        raise n.wrong(f"blocks of {by} do not fit {list(x.shape)}")
    b, c, h, w = x.shape
    split = n.op("reshape", x, shape=(b, c, h // by, by, w // by, by))
    y = n.op(
        "transpose", split, perm=(0, 3, 5, 1, 2, 4) if n.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    )
    return n.op("reshape", y, shape=(b, c * by * by, h // by, w // by))
