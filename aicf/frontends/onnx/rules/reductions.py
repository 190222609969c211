"""Reductions, and where the greatest is."""

from __future__ import annotations

from math import prod
from typing import Any

from ....types import DType
from ..operands import Call, Operand
from ..table import rule

PLAIN = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
}


def _axes(n: Call, x: Operand, given: Operand | None) -> tuple[list[int], bool]:
    """(the axes, whether there is anything to reduce): as an operand in newer versions, as an attribute in older ones."""
    axes = n.attr("axes") if given is None else n.integers(given, "axes")
    if not axes and n.attr("noop_with_empty_axes"):
        return [], False
    return sorted(n.axis(a, x.rank) for a in axes or range(x.rank)), True


def _reduced(n: Call, x: Any, kind: str, axes: list[int], keep: bool) -> Any:
    """Of no axes, as a number has none, it is the element itself."""
    return n.op(kind, x, axes=tuple(axes), keepdims=keep) if axes else x


@rule(*PLAIN)
def _plain(n: Call, x: Operand, axes: Operand | None = None) -> Any:
    over, any_at_all = _axes(n, x, axes)
    if not any_at_all:
        return x
    keep = bool(n.attr("keepdims"))
    if x.dtype is DType.bool:  # the greatest of bools
        small = n.op("convert", x, dtype=DType.u8)
        return n.op("convert", _reduced(n, small, PLAIN[n.node.op], over, keep), dtype=DType.bool)
    if n.node.op == "ReduceMean" and x.dtype.kind != "float":
        count = prod(x.shape[a] for a in over)
        if not count:
            raise n.refuse("a mean of no integers")
        total = _reduced(n, x, "reduce_sum", over, keep)
        return n.op("trunc_divide", total, n.number(count, x.dtype))
    return _reduced(n, x, PLAIN[n.node.op], over, keep)


@rule("ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum")
def _of_maps(n: Call, x: Operand, axes: Operand | None = None) -> Any:
    over, any_at_all = _axes(n, x, axes)
    kind, keep = n.node.op, bool(n.attr("keepdims"))
    if kind == "ReduceL1":
        y = n.op("abs", x)
    else:
        y = x if kind == "ReduceLogSum" else n.op("square", x)
    if any_at_all:
        y = _reduced(n, y, "reduce_sum", over, keep)
    if kind == "ReduceL2":
        return n.op("sqrt", y)
    return n.op("log", y) if kind == "ReduceLogSum" else y


@rule("ReduceLogSumExp")
def _log_sum_exp(n: Call, x: Operand, axes: Operand | None = None) -> Any:
    """max + log(sum(exp(x - max))); a row of -inf alone has -inf."""
    over, any_at_all = _axes(n, x, axes)
    if not any_at_all or not over:
        return x
    keep = bool(n.attr("keepdims"))
    most = n.op("reduce_max", x, axes=tuple(over), keepdims=True)
    most = n.op("select", n.op("is_finite", most), most, 0)
    total = n.op("reduce_sum", n.op("exp", n.op("sub", x, most)), axes=tuple(over), keepdims=True)
    y = n.op("add", n.op("log", total), most)
    if keep:
        return y
    return n.op("reshape", y, shape=tuple(d for a, d in enumerate(x.shape) if a not in over))


@rule("ArgMax", "ArgMin")
def _place(n: Call, x: Operand) -> Any:
    axis = n.axis(n.attr("axis"), x.rank)
    kind, last = "argmax" if n.node.op == "ArgMax" else "argmin", n.attr("select_last_index", 0)
    y = n.op(
        kind, n.op("reverse", x, dims=(axis,)) if last else x, axis=axis, keepdims=bool(n.attr("keepdims"))
    )
    return n.op("sub", n.number(x.shape[axis] - 1, DType.i64), y) if last else y


@rule("Hardmax", until=12)
def _hardmax_of_rows(n: Call, x: Operand) -> Any:
    """The axes from one on are as one."""
    axis = n.axis(n.attr("axis"), x.rank)
    rows = n.op("reshape", x, shape=(*x.shape[:axis], prod(x.shape[axis:])))
    return n.op("reshape", _greatest(n, rows, axis), shape=x.shape)


@rule("Hardmax", since=13)
def _hardmax(n: Call, x: Operand) -> Any:
    return _greatest(n, n.value(x), n.axis(n.attr("axis"), x.rank))


def _greatest(n: Call, x: Any, axis: int) -> Any:
    """1 where the first of the greatest stands, 0 elsewhere."""
    places = n.op("iota", shape=x.shape, axis=axis, dtype=DType.i64)
    first = n.op("equal", places, n.op("argmax", x, axis=axis, keepdims=True))
    return n.op("convert", first, dtype=x.dtype)
