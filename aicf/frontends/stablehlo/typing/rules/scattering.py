"""scatter."""

from __future__ import annotations

from ..call import OpTyping
from ..declare import Attr, OperandRule, typed
from ..types import Dim, RankedTensor, Type, fits, shapes_fit, tensor
from ..values import Record
from .indexing import SCATTERED
from .movement import in_order, unique, within
from .reductions import accumulators, check_reducer


@typed("scatter",
    given=[
        OperandRule("inputs", many=True), OperandRule("scatter_indices", SCATTERED), OperandRule("updates", many=True), Attr("scatter_dimension_numbers", "scatter"),
        Attr("indices_are_sorted", "bool", needed=False, at=10), Attr("unique_indices", "bool", needed=False, at=11),
    ],
    bodies=("update_computation",), made="C24")  # fmt: skip
def _(
    c: OpTyping,
    inputs: list[RankedTensor],
    indices: RankedTensor,
    updates: list[RankedTensor],
    numbers: Record,
    sorted_: bool,
    unique_: bool,
) -> list[Type]:
    c.require(len(inputs) > 0, "C5", "takes at least one input")
    for constraint, name, types in (("C1", "input", inputs), ("C3", "update", updates)):
        for n, each in enumerate(types):
            c.require(
                shapes_fit(types[0].shape, each.shape),
                constraint,
                f"{name} {n} is {each}, and {name} 0 {types[0]}",
            )
    vector = numbers.number("index_vector_dim")
    c.require(
        0 <= vector <= indices.rank, "C22", f"index_vector_dim is {vector}, and scatter_indices {indices}"
    )
    check_reducer(c, c.body(0), inputs, [tensor((), each.element) for each in updates], (), "C23")
    shape = indices.shape if vector < indices.rank else (*indices.shape, 1)
    for n, (given, update) in enumerate(zip(inputs, updates)):
        rank = len(shape) - 1 + len(numbers.ints("update_window_dims"))
        c.require(update.rank == rank, "C4", f"update {n} is {update}, expected {rank} dimensions")
        _numbered(c, given, shape, update, numbers)
        _sized(c, n, given, shape, update, numbers)
    found = accumulators(c, 0) or [each.element for each in inputs]
    return [each.of(element) for each, element in zip(inputs, found)]


def _numbered(
    c: OpTyping, given: RankedTensor, shape: tuple[Dim, ...], update: RankedTensor, numbers: Record
) -> None:
    """The dimension numbers, without what they say of sizes of updates."""
    window, inserted = numbers.ints("update_window_dims"), numbers.ints("inserted_window_dims")
    batching, indexing = numbers.ints("input_batching_dims"), numbers.ints("scatter_indices_batching_dims")
    targets, vector = numbers.ints("scatter_dims_to_operand_dims"), numbers.number("index_vector_dim")
    count = len(window) + len(inserted) + len(batching)
    c.require(
        given.rank == count,
        "C2",
        f"an input is {given}, and update_window_dims, inserted_window_dims and input_batching_dims have {count}",
    )
    in_order(c, "C7", "update_window_dims", window)
    unique(c, "C7", "update_window_dims", window)
    within(c, "C8", "update_window_dims", window, update.rank)
    unique(c, "C9", "inserted_window_dims with input_batching_dims", (*inserted, *batching))
    in_order(c, "C10", "inserted_window_dims", inserted)
    within(c, "C11", "inserted_window_dims", inserted, given.rank)
    in_order(c, "C12", "input_batching_dims", batching)
    within(c, "C13", "input_batching_dims", batching, given.rank)
    unique(c, "C14", "scatter_indices_batching_dims", indexing)
    within(c, "C15", "scatter_indices_batching_dims", indexing, len(shape))
    c.require(
        vector not in indexing,
        "C16",
        f"scatter_indices_batching_dims is {list(indexing)}, with index_vector_dim in it",
    )
    c.require(
        len(batching) == len(indexing),
        "C17",
        f"input_batching_dims is {list(batching)}, and scatter_indices_batching_dims {list(indexing)}",
    )
    for a, b in zip(batching, indexing):
        c.require(
            fits(given.shape[a], shape[b]),
            "C18",
            f"dimension {a} of {given} is not dimension {b} of scatter_indices, {shape[b]}",
        )
    length = shape[vector]
    c.require(
        length is None or length == len(targets),
        "C19",
        f"scatter_dims_to_operand_dims has {len(targets)} numbers, and scatter_indices vectors of {length}",
    )
    unique(c, "C20", "scatter_dims_to_operand_dims with input_batching_dims", (*targets, *batching))
    within(c, "C21", "scatter_dims_to_operand_dims", targets, given.rank)


def _sized(
    c: OpTyping, n: int, given: RankedTensor, shape: tuple[Dim, ...], update: RankedTensor, numbers: Record
) -> None:
    """C4: windows lie in the input, and there are as many updates as indices."""
    window, vector = numbers.ints("update_window_dims"), numbers.number("index_vector_dim")
    left_out = (*numbers.ints("inserted_window_dims"), *numbers.ints("input_batching_dims"))
    kept = [size for axis, size in enumerate(given.shape) if axis not in left_out]
    for dim, most in zip(window, kept):
        size = update.shape[dim]
        c.require(
            size is None or most is None or size <= most,
            "C4",
            f"update {n} has windows of {size} along dimension {dim}, and input {n} is {given}",
        )
    places = [size for axis, size in enumerate(shape) if axis != vector]
    for dim, wanted in zip([axis for axis in range(update.rank) if axis not in window], places):
        c.require(
            fits(update.shape[dim], wanted),
            "C4",
            f"dimension {dim} of update {n} is {update.shape[dim]}, and of scatter_indices {wanted}",
        )
