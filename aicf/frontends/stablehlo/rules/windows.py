"""Convolutions and pooling: axes brought to the order that aicf's ops have, batch, channels, places."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ....graph.emit.autodiff import gradients
from ....ir import Value
from ....types import DType
from ..emission import Emission
from ..nodes import Operation
from ..table import UnsupportedForm, rule
from .movement import permuted
from .reductions import combiner, neutral


@rule("stablehlo.convolution")
def _(e: Emission, node: Operation, x: Value, weight: Value) -> Value:
    numbers, attrs = node.attrs["dimension_numbers"], node.attrs
    if attrs["batch_group_count"] != 1:
        raise UnsupportedForm("with groups of the batch")
    places = len(numbers["input_spatial_dimensions"])
    if not 1 <= places <= 3:
        raise UnsupportedForm(f"over {places} axes")
    if x.dtype is not weight.dtype or x.dtype is not node.types[0].dtype:
        raise UnsupportedForm(f"of {x.dtype} and {weight.dtype} to {node.types[0].dtype}")
    x = permuted(
        e,
        x,
        (
            numbers["input_batch_dimension"],
            numbers["input_feature_dimension"],
            *numbers["input_spatial_dimensions"],
        ),
    )
    kernel = (
        numbers["kernel_output_feature_dimension"],
        numbers["kernel_input_feature_dimension"],
        *numbers["kernel_spatial_dimensions"],
    )
    weight = permuted(e, weight, kernel)
    reversed_ = attrs.get("window_reversal") or ()
    if backwards := tuple(2 + n for n, flag in enumerate(_flags(reversed_)) if flag):
        weight = e.ctx.reverse(weight, dims=backwards)
    padding = _pairs(attrs.get("padding"), places)
    made = e.ctx.convolution(
        x, weight, strides=_sizes(attrs, "window_strides", places), low=tuple(p for p, _ in padding), high=tuple(p for _, p in padding),
        dilation=_sizes(attrs, "rhs_dilation", places), input_dilation=_sizes(attrs, "lhs_dilation", places),
        groups=attrs["feature_group_count"],
    )  # fmt: skip
    order = (
        numbers["output_batch_dimension"],
        numbers["output_feature_dimension"],
        *numbers["output_spatial_dimensions"],
    )
    return permuted(e, made, tuple(order.index(axis) for axis in range(made.rank)))


def _sizes(attrs: Mapping[str, object], name: str, places: int) -> tuple[int, ...]:
    found = attrs.get(name)
    return tuple(found) if isinstance(found, tuple) else (1,) * places


def _flags(given: object) -> tuple[bool, ...]:
    return tuple(map(bool, given)) if isinstance(given, tuple) else ()


def _pairs(padding: object, rank: int) -> list[tuple[int, int]]:
    """An attribute of (rank, 2) elements: an array, or a splat of one number."""
    if padding is None:
        return [(0, 0)] * rank
    array = padding if isinstance(padding, np.ndarray) else np.full((rank, 2), getattr(padding, "value", 0))
    return [(int(low), int(high)) for low, high in array]


@rule("stablehlo.reduce_window")
def _(e: Emission, node: Operation, *operands: Value, outer: Mapping[int, Value]) -> Value:
    """Greatest numbers and sums of windows over the last axes of (batch, channels, places), or all axes but two in another order."""
    kind = combiner(node.bodies[0]) if len(operands) == 2 else None
    if kind is not None and (scanned := _scanned(e, node, kind, *operands)) is not None:
        return scanned
    if kind not in ("maximum", "add"):
        raise UnsupportedForm(f"by {kind or 'a body of its own'}")
    x, init = operands
    known, rank, attrs = e.known(init), x.rank, node.attrs
    if known is None or x.dtype.kind != "float" or known != (0 if kind == "add" else -np.inf):
        raise UnsupportedForm(f"of {x.dtype} from another initial value than that of {kind}")
    if any(n != 1 for n in _sizes(attrs, "base_dilations", rank)):
        raise UnsupportedForm("of a dilated operand")
    moving = _Moving(node, rank)
    if not moving.window:
        return x
    rows = moving.rows(e, x)
    if kind == "maximum":
        return moving.back(e, e.ctx.max_pool(rows, window=moving.window, **moving.how), x.shape)
    ones = e.spread(e.number(1, x.dtype), (1, 1, *moving.window))
    return moving.back(e, e.ctx.convolution(rows, ones, **moving.how), x.shape)


_SCANS = {"add": "cumsum", "mul": "cumprod", "maximum": "cummax", "minimum": "cummin"}


def _scanned(e: Emission, node: Operation, kind: str, x: Value, init: Value) -> Value | None:
    """Windows that reach from an end of one axis to each element: a running sum, product, maximum or minimum. None if they are others."""
    attrs, rank, known = node.attrs, x.rank, e.known(init)
    window, padding = tuple(attrs["window_dimensions"]), _pairs(attrs.get("padding"), rank)
    names = ("window_strides", "base_dilations", "window_dilations")
    axes = [a for a in range(rank) if (window[a], padding[a]) != (1, (0, 0))]
    if (
        kind not in _SCANS
        or x.dtype is DType.bool
        or any(n != 1 for name in names for n in _sizes(attrs, name, rank))
    ):
        return None
    if len(axes) > 1 or known is None or known != neutral(kind, x.dtype):
        return None
    if not axes:
        return x
    size = x.shape[axes[0]]
    reach = {(size - 1, 0): False, (0, size - 1): True}.get(padding[axes[0]])
    if window[axes[0]] != size or reach is None:
        return None
    made: Value = e.ctx.op(_SCANS[kind], x, axis=axes[0], reverse=reach)
    return made


class _Moving:
    """The axes along which windows move, and how: those axes come last, the others are merged to rows of one channel. Without such axes
    each element is a window."""

    def __init__(self, node: Operation, rank: int) -> None:
        attrs = node.attrs
        window, strides = tuple(attrs["window_dimensions"]), _sizes(attrs, "window_strides", rank)
        dilation, padding = _sizes(attrs, "window_dilations", rank), _pairs(attrs.get("padding"), rank)
        moving = [a for a in range(rank) if (window[a], strides[a], padding[a]) != (1, 1, (0, 0))]
        if len(moving) > 3:
            raise UnsupportedForm(f"over {len(moving)} axes")
        self.still = [a for a in range(rank) if a not in moving]
        self.order = (*self.still, *moving)
        self.window = tuple(window[a] for a in moving)
        self.how = {
            "strides": tuple(strides[a] for a in moving), "low": tuple(padding[a][0] for a in moving),
            "high": tuple(padding[a][1] for a in moving), "dilation": tuple(dilation[a] for a in moving),
        }  # fmt: skip

    def rows(self, e: Emission, x: Value) -> Value:
        x = permuted(e, x, self.order)
        count = len(self.still)
        return e.ctx.reshape(x, shape=(prod(x.shape[:count]), 1, *x.shape[count:]))

    def back(self, e: Emission, rows: Value, shape: tuple[int, ...]) -> Value:
        """The contrary of `rows`; the axes that don't move have the sizes of `shape`."""
        x = e.ctx.reshape(rows, shape=(*(shape[a] for a in self.still), *rows.shape[2:]))
        return permuted(e, x, tuple(self.order.index(axis) for axis in range(x.rank)))


@rule("stablehlo.select_and_scatter")
def _(
    e: Emission, node: Operation, x: Value, source: Value, init: Value, *, outer: Mapping[int, Value]
) -> Value:
    """Where it adds to the greatest element of each window, it is the gradient of the pooling that takes them."""
    select, scatter = node.bodies
    chosen = select.nodes[0] if len(select.nodes) == 1 else None
    greatest = (
        chosen is not None
        and chosen.operands == select.arguments
        and chosen.attrs.get("comparison_direction") in ("GE", "GT")
    )
    known = e.known(init)
    if not greatest or combiner(scatter) != "add" or known is None or known != 0 or x.dtype.kind != "float":
        raise UnsupportedForm("that is not the gradient of a maximum")
    if chosen is not None and chosen.attrs["comparison_direction"] == "GT":
        raise UnsupportedForm("that takes the last of equal elements")
    moving = _Moving(node, x.rank)
    if not moving.window:
        return source
    rows = e.ctx.copy(moving.rows(e, x))
    pooled = e.ctx.max_pool(rows, window=moving.window, **moving.how)
    weighed = e.ctx.mul(pooled, moving.rows(e, source))
    (gradient,) = gradients(e.ctx, e.ctx.reduce_sum(weighed), [rows])
    return moving.back(e, gradient, x.shape)
