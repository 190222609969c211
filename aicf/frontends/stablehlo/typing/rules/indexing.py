"""Ops that read and write at places that operands give."""

from __future__ import annotations

from ..call import OpTyping
from ..declare import I32, INTS, SCALAR_INT, SIZES, TENSOR, Attr, Kind, OperandRule, typed
from ..types import INDEX, INT, Dim, RankedTensor, Type, fits, tensor
from ..values import Record
from .movement import in_order, unique, within

SCATTERED = Kind(
    "a tensor of integers",
    INT | INDEX | frozenset(f"{kind}{n}" for kind in ("i", "si", "ui") for n in range(1, 129)),
)


@typed(
    "dynamic_slice",
    given=[
        OperandRule("operand"),
        OperandRule("start_indices", SCALAR_INT, many=True),
        Attr("slice_sizes", "ints"),
    ],
    made="C5",
)
def _(c: OpTyping, operand: RankedTensor, starts: list[RankedTensor], sizes: tuple[int, ...]) -> Type:
    fit = len(starts) == len(sizes) == operand.rank
    c.require(
        fit, "C2", f"operand is {operand}, with {len(starts)} start_indices and {len(sizes)} slice_sizes"
    )
    c.require(
        len({t.element for t in starts}) <= 1, "C3", f"start_indices have types {', '.join(map(str, starts))}"
    )
    for axis, (size, whole) in enumerate(zip(sizes, operand.shape)):
        c.require(
            size >= 0 and (whole is None or size <= whole),
            "C4",
            f"slice_sizes[{axis}] is {size}, and operand {operand}",
        )
    made = tensor(sizes, operand.element)
    _same_element(c, "C1", operand, made)
    return made


def _same_element(c: OpTyping, constraint: str, operand: RankedTensor, made: RankedTensor) -> None:
    given = c.given(made)
    c.require(given.element == operand.element, constraint, f"operand is {operand}, and the result {given}")


@typed(
    "dynamic_update_slice",
    given=[
        OperandRule("operand"),
        OperandRule("update"),
        OperandRule("start_indices", SCALAR_INT, many=True),
    ],
    made="C1",
)
def _(c: OpTyping, operand: RankedTensor, update: RankedTensor, starts: list[RankedTensor]) -> Type:
    c.require(update.element == operand.element, "C2", f"operand is {operand}, and update {update}")
    c.require(update.rank == operand.rank, "C3", f"operand is {operand}, and update {update}")
    c.require(len(starts) == operand.rank, "C4", f"operand is {operand}, with {len(starts)} start_indices")
    c.require(
        len({t.element for t in starts}) <= 1, "C5", f"start_indices have types {', '.join(map(str, starts))}"
    )
    for axis, (size, whole) in enumerate(zip(update.shape, operand.shape)):
        c.require(
            size is None or whole is None or size <= whole,
            "C6",
            f"dimension {axis} of update is {size}, and of operand {whole}",
        )
    _same_element(c, "C1", operand, operand)
    return operand


@typed(
    "get_dimension_size", given=[OperandRule("operand"), Attr("dimension", "i64", 0, low="C1")], results=I32
)
def _(c: OpTyping, operand: RankedTensor, dimension: int) -> Type:
    c.require(dimension < operand.rank, "C1", f"dimension is {dimension}, and operand {operand}")
    return tensor((), "i32")


@typed(
    "set_dimension_size",
    given=[OperandRule("operand"), OperandRule("size", I32), Attr("dimension", "i64", 0, low="C1")],
)
def _(c: OpTyping, operand: RankedTensor, size: RankedTensor, dimension: int) -> Type:
    c.require(size.rank == 0, "I2", f"size is {size}, expected a 0-dimensional tensor")
    c.require(dimension < operand.rank, "C1", f"dimension is {dimension}, and operand {operand}")
    shape, bounds = list(operand.shape), [operand.bound(axis) for axis in range(operand.rank)]
    if shape[dimension] is not None:
        bounds[dimension] = shape[dimension]
    shape[dimension] = None
    return tensor(shape, operand.element, bounds)


@typed(
    "torch_index_select",
    given=[OperandRule("operand"), OperandRule("index"), Attr("dim", "i64"), Attr("batch_dims", "i64")],
)
def _(c: OpTyping, operand: RankedTensor, index: RankedTensor, dim: int, batch_dims: int) -> Type:
    return c.said()


# --- gather -------------------------------------------------------------------------------------------------------------


def _gathered(
    c: OpTyping,
    operand: RankedTensor,
    starts: RankedTensor,
    numbers: Record,
    sizes: tuple[Dim, ...],
    named: dict[str, str],
) -> Type:
    """The result of a gather; `named` has StableHLO's number for each number that `gather` has."""
    offset, collapsed = numbers.ints("offset_dims"), numbers.ints("collapsed_slice_dims")
    batching, starting = numbers.ints("operand_batching_dims"), numbers.ints("start_indices_batching_dims")
    index_map, vector = numbers.ints("start_index_map"), numbers.number("index_vector_dim")

    def at(number: str) -> str:
        return named.get(number, number)

    count = len(offset) + len(collapsed) + len(batching)
    c.require(
        operand.rank == count,
        at("C1"),
        f"operand is {operand}, and offset_dims, collapsed_slice_dims and operand_batching_dims have {count}",
    )
    c.require(
        0 <= vector <= starts.rank, at("C2"), f"index_vector_dim is {vector}, and start_indices {starts}"
    )
    length = 1 if vector == starts.rank else starts.shape[vector]
    c.require(
        length is None or length == len(index_map),
        at("C3"),
        f"start_index_map has {len(index_map)} numbers, and start_indices vectors of {length}",
    )
    in_order(c, at("C4"), "offset_dims", offset)
    unique(c, at("C4"), "offset_dims", offset)
    unique(c, at("C6"), "collapsed_slice_dims with operand_batching_dims", (*collapsed, *batching))
    in_order(c, at("C7"), "collapsed_slice_dims", collapsed)
    within(c, at("C8"), "collapsed_slice_dims", collapsed, operand.rank)
    in_order(c, at("C10"), "operand_batching_dims", batching)
    within(c, at("C11"), "operand_batching_dims", batching, operand.rank)
    unique(c, at("C13"), "start_indices_batching_dims", starting)
    within(c, at("C14"), "start_indices_batching_dims", starting, starts.rank)
    c.require(
        vector not in starting,
        at("C15"),
        f"start_indices_batching_dims is {list(starting)}, with index_vector_dim in it",
    )
    c.require(
        len(batching) == len(starting),
        at("C16"),
        f"operand_batching_dims is {list(batching)}, and start_indices_batching_dims {list(starting)}",
    )
    for a, b in zip(batching, starting):
        c.require(
            fits(operand.shape[a], starts.shape[b]),
            at("C17"),
            f"dimension {a} of {operand} is not dimension {b} of {starts}",
        )
    unique(c, at("C18"), "start_index_map with operand_batching_dims", (*index_map, *batching))
    within(c, at("C19"), "start_index_map", index_map, operand.rank)
    c.require(
        len(sizes) == operand.rank,
        at("C20"),
        f"slice_sizes has {len(sizes)} numbers, and operand is {operand}",
    )
    for number, name, dims in (
        ("C9", "collapsed_slice_dims", collapsed),
        ("C12", "operand_batching_dims", batching),
    ):
        for dim in dims:
            size = sizes[dim]
            c.require(
                size is None or size <= 1, at(number), f"slice_sizes[{dim}] is {size}, and {dim} is in {name}"
            )
    for dim, size in enumerate(sizes):
        whole = operand.shape[dim]
        fit = size is None or (size >= 0 and (whole is None or size <= whole))
        c.require(fit, at("C21"), f"slice_sizes[{dim}] is {size}, and operand {operand}")
    rank = len(offset) + starts.rank - (vector < starts.rank)
    within(c, at("C5"), "offset_dims", offset, rank)
    kept = iter([size for dim, size in enumerate(sizes) if dim not in collapsed and dim not in batching])
    places = iter([(n, starts.bound(dim)) for dim, n in enumerate(starts.shape) if dim != vector])
    made_of = [(next(kept), None) if dim in offset else next(places) for dim in range(rank)]
    bounds = [bound for _, bound in made_of] if starts.bounds is not None else None
    made = tensor([n for n, _ in made_of], operand.element, bounds)
    _same_element(c, at("C23"), operand, made)
    return made


@typed("gather",
    given=[
        OperandRule("operand"), OperandRule("start_indices", INTS), Attr("dimension_numbers", "gather"), Attr("slice_sizes", "ints", at=9),
        Attr("indices_are_sorted", "bool", needed=False, at=10),
    ], made="C22")  # fmt: skip
def _(
    c: OpTyping,
    operand: RankedTensor,
    starts: RankedTensor,
    numbers: Record,
    sizes: tuple[int, ...],
    sorted_: bool,
) -> Type:
    return _gathered(c, operand, starts, numbers, sizes, {})


_DYNAMIC = {
    "C7": "C6", "C8": "C7", "C9": "C8", "C18": "C9", "C19": "C10", "C20": "C11", "C21": "C12", "C22": "C13", "C23": "C14",
}  # fmt: skip


@typed("dynamic_gather",
    given=[
        OperandRule("operand"), OperandRule("start_indices", INTS), OperandRule("slice_sizes", Kind("a 1-dimensional tensor of integers whose size is known", INT, 1, True)),
        Attr("dimension_numbers", "gather"), Attr("indices_are_sorted", "bool", needed=False, at=8),
    ], made="C13")  # fmt: skip
def _(
    c: OpTyping,
    operand: RankedTensor,
    starts: RankedTensor,
    sizes: RankedTensor,
    numbers: Record,
    sorted_: bool,
) -> Type:
    count = sizes.shape[0]
    c.require(count == operand.rank, "C11", f"slice_sizes is {sizes}, and operand {operand}")
    return _gathered(c, operand, starts, numbers, (None,) * operand.rank, _DYNAMIC)


__all__ = ["SIZES", "TENSOR"]
