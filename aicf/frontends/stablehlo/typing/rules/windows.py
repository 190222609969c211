"""Convolutions, and what else slides windows over a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..call import OpTyping
from ..declare import Attr, Kind, OperandRule, typed
from ..types import INT, Dim, RankedTensor, Type, fits, shapes_fit, tensor
from ..values import Dense, Record
from .contractions import PRECISION, precise
from .movement import unique, within
from .reductions import accumulators, alike, check_inputs, check_reducer

PADDING = Kind("a 2-dimensional tensor of integers whose sizes are known", INT, rank=2, static=True)


@dataclass(frozen=True)
class MovingWindows:
    """Along each axis: a window's size, its step, padding, and the steps between elements of the base and of the window."""

    sizes: Sequence[Dim]
    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    base: Sequence[int]
    dilation: Sequence[int]

    def made(self, c: OpTyping, constraint: str, shape: Sequence[Dim]) -> list[Dim]:
        """How many windows lie along each axis; unknown where the size of base or window is."""
        made: list[Dim] = []
        for axis, (size, window) in enumerate(zip(shape, self.sizes)):
            if size is None or window is None:
                made.append(None)
                continue
            low, high = self.padding[axis]
            padded = c.size(
                low + _spread(size, self.base[axis]) + high, constraint, f"the padded dimension {axis}"
            )
            span = c.size(
                _spread(window, self.dilation[axis]), constraint, f"the window along dimension {axis}"
            )
            empty = padded <= 0 or span > padded
            made.append(0 if empty else (padded - span) // self.strides[axis] + 1)
        return made


def _spread(size: int, step: int) -> int:
    return (size - 1) * step + 1 if size else 0


def windows(
    c: OpTyping, sizes: Sequence[Dim], numbers: dict[str, str], strides: Sequence[int] | None, padding: Dense | None,
    base: Sequence[int] | None = None, dilation: Sequence[int] | None = None,
) -> MovingWindows:  # fmt: skip
    """Windows of these sizes. `numbers` has the constraints: of "sizes", and for each other name that it has so many numbers, and that
    they are at least 1."""
    count = len(sizes)
    c.require(
        all(n is None or n > 0 for n in sizes),
        numbers["sizes"],
        f"windows have the sizes {list(sizes)}, expected at least 1",
    )
    found = {}
    for name, given in (("strides", strides), ("base", base), ("dilation", dilation)):
        values = tuple(given) if given is not None and len(given) else (1,) * count
        if name in numbers:
            length, least = numbers[name].split()
            c.require(len(values) == count, length, f"{name} has {len(values)} numbers, expected {count}")
            c.require(all(n > 0 for n in values), least, f"{name} is {list(values)}, expected at least 1")
        found[name] = values
    pairs = padded(c, numbers["padding"], padding, count)
    return MovingWindows(sizes, found["strides"], pairs, found["base"], found["dilation"])


def padded(c: OpTyping, constraint: str, padding: Dense | None, count: int) -> list[tuple[int, int]]:
    if padding is None:
        return [(0, 0)] * count
    shape = padding.type.shape
    c.require(
        len(shape) == 2 and shape[1] == 2,
        constraint,
        f"padding has the shape of {padding.type}, expected ({count}, 2)",
    )
    c.require(shape[0] in (0, count), constraint, f"padding is of {shape[0]} axes, expected {count}")
    values = padding.values()
    return list(zip(values[::2], values[1::2])) or [(0, 0)] * count


def _convolved(
    c: OpTyping,
    lhs: RankedTensor,
    rhs: RankedTensor,
    numbers: Record,
    features: int,
    batches: int,
    config: tuple[str, ...],
) -> None:
    c.require(lhs.rank >= 2, "C13", f"lhs is {lhs}, expected two dimensions or more")
    c.require(lhs.rank == rhs.rank, "C1", f"lhs is {lhs}, and rhs {rhs}")
    c.require(lhs.element == rhs.element, "C27", f"lhs is {lhs}, and rhs {rhs}")
    places = {part: numbers.ints(f"{part}_spatial_dimensions") for part in ("input", "kernel", "output")}
    count = len(places["input"])
    for part, constraint in (("kernel", "C17"), ("output", "C19")):
        c.require(
            len(places[part]) == count,
            constraint,
            f"{part}_spatial_dimensions is {list(places[part])}, expected {count} numbers",
        )
    for part, pair, constraint in (
        ("input", ("input_batch", "input_feature"), "C13"),
        ("kernel", ("kernel_input_feature", "kernel_output_feature"), "C18"),
        ("output", ("output_batch", "output_feature"), "C20"),
    ):
        dims = (*(numbers.number(f"{name}_dimension") for name in pair), *places[part])
        within(c, constraint, f"the {part}'s dimensions", dims, lhs.rank)
        unique(c, constraint, f"the {part}'s dimensions", dims)
    c.require(
        batches == 1 or features == 1,
        "C23",
        f"batch_group_count is {batches}, and feature_group_count {features}; one has to be 1",
    )
    batch, channels = (lhs.shape[numbers.number(f"input_{name}_dimension")] for name in ("batch", "feature"))
    taken, made = (
        rhs.shape[numbers.number(f"kernel_{name}_feature_dimension")] for name in ("input", "output")
    )
    c.require(
        batch is None or batch % batches == 0, "C10", f"the batch is {batch}, and batch_group_count {batches}"
    )
    c.require(
        channels is None or channels % features == 0,
        "C11",
        f"there are {channels} features, and feature_group_count is {features}",
    )
    same = channels is None or taken is None or channels // features == taken
    c.require(
        same, "C14", f"there are {channels} features in {features} groups, and the kernel takes {taken}"
    )
    c.require(
        made is None or made % batches == 0,
        "C15",
        f"the kernel makes {made} features, and batch_group_count is {batches}",
    )
    c.require(
        made is None or made % features == 0,
        "C16",
        f"the kernel makes {made} features, and feature_group_count is {features}",
    )
    precise(c, "C24", config)
    c.require(lhs.rank == count + 2, "C12", f"input_spatial_dimensions has {count} numbers, and lhs is {lhs}")


_DILATIONS = (
    Attr("lhs_dilation", "ints", needed=False, at=5), Attr("rhs_dilation", "ints", needed=False, at=6), Attr("window_reversal", "bools", needed=False, at=7),
    Attr("dimension_numbers", "conv", at=8), Attr("feature_group_count", "i64", 1, at=17, low="C21"), Attr("batch_group_count", "i64", 1, at=18, low="C22"),
    Attr("precision_config", PRECISION.form, needed=False, default=(), at=19),
)  # fmt: skip
_NUMBERS = {"sizes": "C25", "strides": "C2 C3", "padding": "C4", "base": "C5 C6", "dilation": "C7 C8"}


def _reversal(c: OpTyping, reversal: tuple[int, ...] | None, count: int) -> None:
    c.require(
        not reversal or len(reversal) == count,
        "C9",
        f"window_reversal has {len(reversal or ())} entries, expected {count}",
    )


@typed(
    "convolution",
    given=[
        OperandRule("lhs"),
        OperandRule("rhs"),
        Attr("window_strides", "ints", needed=False),
        Attr("padding", "elements", needed=False),
        *_DILATIONS,
    ],
)
def _(
    c: OpTyping, lhs: RankedTensor, rhs: RankedTensor, strides: tuple[int, ...] | None, padding: Dense | None, base: tuple[int, ...] | None,
    dilation: tuple[int, ...] | None, reversal: tuple[int, ...] | None, numbers: Record, features: int, batches: int, config: tuple[str, ...],
) -> Type:  # fmt: skip
    _convolved(c, lhs, rhs, numbers, features, batches, config)
    inputs = [lhs.shape[n] for n in numbers.ints("input_spatial_dimensions")]
    moving = windows(
        c,
        [rhs.shape[n] for n in numbers.ints("kernel_spatial_dimensions")],
        _NUMBERS,
        strides,
        padding,
        base,
        dilation,
    )
    _reversal(c, reversal, len(inputs))
    shape: list[Dim] = [None] * lhs.rank
    for dim, size in zip(numbers.ints("output_spatial_dimensions"), moving.made(c, "C25", inputs)):
        shape[dim] = size
    batch = lhs.shape[numbers.number("input_batch_dimension")]
    shape[numbers.number("output_batch_dimension")] = None if batch is None else batch // batches
    shape[numbers.number("output_feature_dimension")] = rhs.shape[
        numbers.number("kernel_output_feature_dimension")
    ]
    return c.shaped(shape, lhs.element, "C25")


@typed(
    "dynamic_conv",
    given=[
        OperandRule("lhs"),
        OperandRule("rhs"),
        OperandRule("padding", PADDING),
        Attr("window_strides", "ints", needed=False),
        *_DILATIONS,
    ],
)
def _(
    c: OpTyping, lhs: RankedTensor, rhs: RankedTensor, padding: RankedTensor, strides: tuple[int, ...] | None, base: tuple[int, ...] | None,
    dilation: tuple[int, ...] | None, reversal: tuple[int, ...] | None, numbers: Record, features: int, batches: int, config: tuple[str, ...],
) -> Type:  # fmt: skip
    _convolved(c, lhs, rhs, numbers, features, batches, config)
    c.require(padding.shape == (lhs.rank - 2, 2), "C4", f"padding is {padding}, and lhs {lhs}")
    return c.said()


@typed("reduce_window",
    given=[
        OperandRule("inputs", many=True), OperandRule("init_values", many=True), Attr("window_dimensions", "ints"), Attr("window_strides", "ints", needed=False),
        Attr("base_dilations", "ints", needed=False), Attr("window_dilations", "ints", needed=False), Attr("padding", "elements", needed=False),
    ],
    bodies=("body",), made="C15")  # fmt: skip
def _(
    c: OpTyping, inputs: list[RankedTensor], inits: list[RankedTensor], sizes: tuple[int, ...], strides: tuple[int, ...] | None, base: tuple[int, ...] | None,
    dilation: tuple[int, ...] | None, padding: Dense | None,
) -> list[Type]:  # fmt: skip
    first = check_inputs(c, inputs, "C1", "C2")
    c.require(len(sizes) == first.rank, "C4", f"window_dimensions is {list(sizes)}, and input 0 {first}")
    numbers = {"sizes": "C5", "strides": "C6 C7", "base": "C8 C9", "dilation": "C10 C11", "padding": "C12"}
    moving = windows(c, sizes, numbers, strides, padding, base, dilation)
    check_reducer(c, c.body(0), inputs, inits, sizes, "C13")
    elements = accumulators(c, 0) or [each.element for each in inputs]
    bounds = [None if each.bounds is None else moving.made(c, "C15", each.bounds) for each in inputs]
    return [
        tensor(moving.made(c, "C15", each.shape), element, bound)
        for each, element, bound in zip(inputs, elements, bounds)
    ]


@typed("select_and_scatter",
    given=[
        OperandRule("operand"), OperandRule("source"), OperandRule("init_value"), Attr("window_dimensions", "ints", needed=False), Attr("window_strides", "ints", needed=False),
        Attr("padding", "elements", needed=False),
    ],
    bodies=("select", "scatter"), made="C11")  # fmt: skip
def _(
    c: OpTyping, operand: RankedTensor, source: RankedTensor, init: RankedTensor, sizes: tuple[int, ...] | None, strides: tuple[int, ...] | None, padding: Dense | None
) -> Type:  # fmt: skip
    select, scatter = c.body(0), c.body(1)
    sizes = sizes or ()
    c.require(operand.rank == len(sizes), "C4", f"window_dimensions is {list(sizes)}, and operand {operand}")
    moving = windows(c, sizes, {"sizes": "C5", "strides": "C6 C7", "padding": "C8"}, strides, padding)
    if select is not None:
        c.require(
            len(select.arguments) == 2, "C9", f"select takes {len(select.arguments)} arguments, expected 2"
        )
        for n, argument in enumerate(select.arguments):
            c.require(
                alike(tensor((), operand.element), argument, True),
                "C9",
                f"select's argument {n} is {argument}, and operand {operand}",
            )
        c.require(
            list(map(str, select.returned)) == ["tensor<i1>"],
            "C9",
            f"select returns {', '.join(map(str, select.returned))}, expected tensor<i1>",
        )
    check_reducer(c, scatter, [tensor((), source.element)], [init], (), "C10")
    made = tensor(moving.made(c, "C2", operand.shape), operand.element)
    c.require(shapes_fit(made.shape, source.shape), "C2", f"source is {source}, expected {made}")
    c.require(alike(made, source, True), "C1", f"source is {source}, expected {made}")
    found = accumulators(c, 1)
    return operand.of(found[0] if found else operand.element)


__all__ = ["fits"]
