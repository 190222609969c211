"""Ops that move elements, by attributes alone."""

from __future__ import annotations

from collections.abc import Sequence

from ..call import OpTyping
from ..declare import (
    INDEX_SIZES,
    INT_FLOAT_COMPLEX_STATIC,
    SCALAR,
    SIZES,
    STATIC,
    STATIC_BOUNDED,
    TENSOR,
    Attr,
    OperandRule,
    typed,
)
from ..types import Dim, RankedTensor, Type, fits, narrower, shapes_fit, tensor
from ..values import Dense


def within(c: OpTyping, constraint: str, name: str, dims: Sequence[int], rank: int) -> None:
    """0 <= dims < rank"""
    c.require(
        all(0 <= n < rank for n in dims),
        constraint,
        f"{name} is {list(dims)}, expected numbers from 0 up to, not with, {rank}",
    )


def unique(c: OpTyping, constraint: str, name: str, dims: Sequence[int]) -> None:
    c.require(
        len(set(dims)) == len(dims), constraint, f"{name} is {list(dims)}, in which a number stands twice"
    )


def in_order(c: OpTyping, constraint: str, name: str, dims: Sequence[int]) -> None:
    c.require(list(dims) == sorted(dims), constraint, f"{name} is {list(dims)}, expected it to be sorted")


@typed("constant", given=[Attr("value", "dense")], results=STATIC, made="C1")
def _(c: OpTyping, value: Dense) -> Type:
    if c.results is not None:
        c.require(
            list(c.results) == [value.type], "C1", f"the result is {c.results[0]}, and value {value.type}"
        )
    return value.type


@typed("iota", given=[Attr("iota_dimension", "i64", 0, low="C1")], results=INT_FLOAT_COMPLEX_STATIC)
def _(c: OpTyping, dimension: int) -> Type:
    made = c.said()
    c.require(dimension < made.rank, "C1", f"iota_dimension is {dimension}, and the result {made}")
    return made


@typed("reshape", given=[OperandRule("operand")], results=STATIC_BOUNDED, same_elements="C1")
def _(c: OpTyping, operand: RankedTensor) -> Type:
    made = c.said()
    if operand.static and made.static:
        c.require(
            operand.count == made.count,
            "C2",
            f"operand is {operand} of {operand.count} elements, and the result {made} of {made.count}",
        )
    return made


@typed("broadcast", given=[OperandRule("operand"), Attr("broadcast_sizes", "ints")], same_elements="C1")
def _(c: OpTyping, operand: RankedTensor, sizes: tuple[int, ...]) -> Type:
    c.require(
        all(n >= 0 for n in sizes), "I2", f"broadcast_sizes is {list(sizes)}, in which a number is negative"
    )
    return tensor((*sizes, *operand.shape), operand.element)


@typed(
    "broadcast_in_dim",
    given=[OperandRule("operand"), Attr("broadcast_dimensions", "ints")],
    results=STATIC_BOUNDED,
    same_elements="C1",
)
def _(c: OpTyping, operand: RankedTensor, dims: tuple[int, ...]) -> Type:
    made = c.said()
    c.require(len(dims) == operand.rank, "C2", f"broadcast_dimensions is {list(dims)}, and operand {operand}")
    unique(c, "C4", "broadcast_dimensions", dims)
    within(c, "C3", "broadcast_dimensions", dims, made.rank)
    for axis, (size, dim) in enumerate(zip(operand.shape, dims)):
        fit = size is None or size in (1, made.shape[dim])
        c.require(
            fit,
            "C5",
            f"dimension {axis} of operand has the size {size}, and dimension {dim} of the result {made.shape[dim]}",
        )
    return made


@typed(
    "transpose", given=[OperandRule("operand"), Attr("permutation", "ints")], same_elements="C1", made="C3"
)
def _(c: OpTyping, operand: RankedTensor, order: tuple[int, ...]) -> Type:
    c.require(
        sorted(order) == list(range(operand.rank)),
        "C2",
        f"permutation is {list(order)}, and operand {operand}",
    )
    bounds = None if operand.bounds is None else [operand.bounds[n] for n in order]
    return tensor([operand.shape[n] for n in order], operand.element, bounds)


@typed(
    "slice",
    given=[
        OperandRule("operand"),
        Attr("start_indices", "ints"),
        Attr("limit_indices", "ints"),
        Attr("strides", "ints"),
    ],
    same_elements="C1",
    made="C5",
)
def _(
    c: OpTyping,
    operand: RankedTensor,
    starts: tuple[int, ...],
    limits: tuple[int, ...],
    strides: tuple[int, ...],
) -> Type:
    for name, given in (("start_indices", starts), ("limit_indices", limits), ("strides", strides)):
        c.require(
            len(given) == operand.rank, "C2", f"{name} has {len(given)} numbers, and operand is {operand}"
        )
    shape = []
    for axis, (start, limit, stride) in enumerate(zip(starts, limits, strides)):
        size = operand.shape[axis] if operand.shape[axis] is not None else operand.bound(axis)
        c.require(start >= 0, "C3", f"start_indices[{axis}] is {start}, expected at least 0")
        c.require(
            size is None or limit <= size,
            "C3",
            f"limit_indices[{axis}] is {limit}, beyond the size or bound {size}",
        )
        c.require(
            start <= limit, "C3", f"start_indices[{axis}] is {start}, beyond limit_indices[{axis}], {limit}"
        )
        c.require(stride > 0, "C4", f"strides[{axis}] is {stride}, expected at least 1")
        shape.append(-((start - limit) // stride))
    return tensor(shape, operand.element)


@typed("pad",
    given=[
        OperandRule("operand"), OperandRule("padding_value", SCALAR), Attr("edge_padding_low", "ints"), Attr("edge_padding_high", "ints"),
        Attr("interior_padding", "ints"),
    ],
    same_elements="C1", made="C4")  # fmt: skip
def _(
    c: OpTyping,
    operand: RankedTensor,
    value: RankedTensor,
    low: tuple[int, ...],
    high: tuple[int, ...],
    interior: tuple[int, ...],
) -> Type:
    for name, given in (
        ("edge_padding_low", low),
        ("edge_padding_high", high),
        ("interior_padding", interior),
    ):
        c.require(
            len(given) == operand.rank, "C2", f"{name} has {len(given)} numbers, and operand is {operand}"
        )
    shape: list[Dim] = []
    bounds: list[Dim] = []
    for axis, (before, behind, between) in enumerate(zip(low, high, interior)):
        c.require(between >= 0, "C3", f"interior_padding[{axis}] is {between}, expected at least 0")
        made = [
            _padded(c, axis, n, before, behind, between) for n in (operand.shape[axis], operand.bound(axis))
        ]
        shape.append(made[0])
        bounds.append(made[1])
    return tensor(shape, operand.element, bounds)


def _padded(c: OpTyping, axis: int, size: Dim, low: int, high: int, interior: int) -> Dim:
    if size is None:
        return None
    made = c.size(size + low + high + max(size - 1, 0) * interior, "C4", f"dimension {axis} of the result")
    c.require(made >= 0, "C4", f"dimension {axis} of the result has the size {made}")
    return made


@typed(
    "concatenate",
    given=[OperandRule("inputs", many=True), Attr("dimension", "i64", 0, low="C4")],
    same_elements="C1",
    made="C6",
)
def _(c: OpTyping, inputs: list[RankedTensor], dimension: int) -> Type:
    c.require(len(inputs) > 0, "C3", "takes at least one operand")
    first = inputs[0]
    c.require(dimension < first.rank, "C4", f"dimension is {dimension}, and operand 0 {first}")
    dims: list[tuple[Dim, Dim]] = [(None, None)] * first.rank
    dims[dimension] = 0, None
    for n, each in enumerate(inputs):
        others = [(a, b) for axis, (a, b) in enumerate(zip(first.shape, each.shape)) if axis != dimension]
        fit = each.rank == first.rank and all(fits(a, b) for a, b in others)
        c.require(
            fit,
            "C2",
            f"operand {n} is {each}, and operand 0 {first}: they differ beside dimension {dimension}",
        )
    for each in inputs:
        pairs = [(size, each.bound(axis)) for axis, size in enumerate(each.shape)]
        dims = [
            _behind(c, a, b) if axis == dimension else narrower(a, b, axis)
            for axis, (a, b) in enumerate(zip(dims, pairs))
        ]
    bounded = any(each.bounds is not None for each in inputs)
    return tensor([n for n, _ in dims], first.element, [bound for _, bound in dims] if bounded else None)


def _behind(c: OpTyping, a: tuple[Dim, Dim], b: tuple[Dim, Dim]) -> tuple[Dim, Dim]:
    """The size and bound of two dimensions, one behind the other."""
    if a[0] is not None and b[0] is not None:
        return c.size(a[0] + b[0], "C6", "the dimension of the result"), None
    limits = [n if n is not None else bound for n, bound in (a, b)]
    known = [n for n in limits if n is not None]
    return None, (c.size(sum(known), "C6", "the bound of the result") if len(known) == 2 else None)


@typed("reverse", given=[OperandRule("operand"), Attr("dimensions", "ints")], same_elements="C1", made="C1")
def _(c: OpTyping, operand: RankedTensor, dims: tuple[int, ...]) -> Type:
    unique(c, "C2", "dimensions", dims)
    within(c, "C3", "dimensions", dims, operand.rank)
    return operand


# --- sizes that operands give -------------------------------------------------------------------------------------------


@typed(
    "dynamic_broadcast_in_dim",
    given=[
        OperandRule("operand"), OperandRule("output_dimensions", SIZES), Attr("broadcast_dimensions", "ints"),
        Attr("known_expanding_dimensions", "ints", needed=False, default=()), Attr("known_nonexpanding_dimensions", "ints", needed=False, default=()),
    ],
)  # fmt: skip
def _(
    c: OpTyping,
    operand: RankedTensor,
    sizes: RankedTensor,
    dims: tuple[int, ...],
    expanding: tuple[int, ...],
    others: tuple[int, ...],
) -> Type:
    made = c.said()
    c.require(operand.element == made.element, "C1", f"operand is {operand}, and the result {made}")
    c.require(len(dims) == operand.rank, "C2", f"broadcast_dimensions is {list(dims)}, and operand {operand}")
    c.require(made.rank >= operand.rank, "C3", f"operand is {operand}, and the result {made}")
    unique(c, "C4", "broadcast_dimensions", dims)
    within(c, "C3", "broadcast_dimensions", dims, made.rank)
    for size, dim in zip(operand.shape, dims):
        c.require(
            size == 1 or fits(size, made.shape[dim]), "C5", f"operand is {operand}, and the result {made}"
        )
    unique(c, "C8", "known_expanding_dimensions with known_nonexpanding_dimensions", (*expanding, *others))
    within(c, "C9", "known_expanding_dimensions", expanding, operand.rank)
    within(c, "C10", "known_nonexpanding_dimensions", others, operand.rank)
    return made


@typed("dynamic_iota", given=[OperandRule("output_shape", SIZES), Attr("iota_dimension", "i64", 0, low="C1")])
def _(c: OpTyping, sizes: RankedTensor, dimension: int) -> Type:
    made = c.said()
    c.require(dimension < made.rank, "C1", f"iota_dimension is {dimension}, and the result {made}")
    return made


@typed("dynamic_reshape", given=[OperandRule("operand"), OperandRule("output_shape", SIZES)])
def _(c: OpTyping, operand: RankedTensor, sizes: RankedTensor) -> Type:
    if c.results is None and sizes.shape[0] is not None and sizes.shape[0] <= 64:
        return tensor([None] * sizes.shape[0], operand.element)
    made = c.said()
    c.require(operand.element == made.element, "C1", f"operand is {operand}, and the result {made}")
    if operand.static and made.static:
        c.require(operand.count == made.count, "C2", f"operand is {operand}, and the result {made}")
    c.require(
        sizes.shape[0] == made.rank,
        "C4",
        f"output_shape has {sizes.shape[0]} numbers, and the result is {made}",
    )
    return made


@typed(
    "dynamic_pad",
    given=[
        OperandRule("operand"), OperandRule("padding_value", SCALAR), OperandRule("edge_padding_low", SIZES), OperandRule("edge_padding_high", SIZES), OperandRule("interior_padding", SIZES),
    ],
)  # fmt: skip
def _(
    c: OpTyping,
    operand: RankedTensor,
    value: RankedTensor,
    low: RankedTensor,
    high: RankedTensor,
    interior: RankedTensor,
) -> Type:
    c.require(
        low == high == interior,
        "C2",
        f"edge_padding_low is {low}, edge_padding_high {high}, and interior_padding {interior}",
    )
    c.require(
        low.shape[0] == operand.rank,
        "C2",
        f"edge_padding_low has {low.shape[0]} numbers, and operand is {operand}",
    )
    made = c.given(tensor([None] * operand.rank, operand.element))
    c.require(
        operand.element == value.element == made.element,
        "C1",
        f"operand is {operand}, padding_value {value}, and the result {made}",
    )
    c.require(made.rank == operand.rank, "C4", f"operand is {operand}, and the result {made}")
    return made


@typed(
    "real_dynamic_slice",
    given=[
        OperandRule("operand"),
        OperandRule("start_indices", INDEX_SIZES),
        OperandRule("limit_indices", INDEX_SIZES),
        OperandRule("strides", INDEX_SIZES),
    ],
)
def _(
    c: OpTyping, operand: RankedTensor, starts: RankedTensor, limits: RankedTensor, strides: RankedTensor
) -> Type:
    c.require(
        starts == limits == strides,
        "C1",
        f"start_indices is {starts}, limit_indices {limits}, and strides {strides}",
    )
    c.require(
        starts.shape[0] == operand.rank,
        "C2",
        f"start_indices has {starts.shape[0]} numbers, and operand is {operand}",
    )
    made = c.said()
    c.require(made.element == operand.element, "C3", f"operand is {operand}, and the result {made}")
    return made


__all__ = ["TENSOR", "in_order", "shapes_fit", "unique", "within"]
