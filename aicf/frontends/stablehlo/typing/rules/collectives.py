"""What devices exchange. How many devices there are is not known here: of groups it is checked what holds for any number."""

from __future__ import annotations

from ..call import OpTyping
from ..declare import Attr, OperandRule, typed
from ..types import RankedTensor, Type, fits, shapes_fit, tensor
from ..values import Attribute, Dense, Record
from .reductions import accumulators, check_reducer

CHANNEL = Attr("channel_handle", "channel_handle", needed=False)
GLOBAL = Attr("use_global_device_ids", "unit", needed=False, default=False)


def _grouped(
    c: OpTyping,
    groups: Attribute,
    numbers: tuple[str, str, str],
    even: bool,
    everywhere: bool = False,
    size: int | None = None,
) -> None:
    """A matrix in which each of the first ids stands once. `numbers`: of its shape, that an id stands once, and of what ids there are."""
    if not isinstance(groups, Dense):  # axes of a mesh
        return
    shape = groups.type.shape
    c.require(len(shape) == 2, numbers[0], f"replica_groups is {groups.type}, expected two dimensions")
    c.require(
        not everywhere or groups.type.count > 0,
        numbers[0],
        "replica_groups is empty beside use_global_device_ids",
    )
    values = groups.values()
    c.require(
        not even or -1 not in values,
        numbers[2],
        "replica_groups has the id -1, and all groups are of one size",
    )
    ids = [n for n in values if n != -1]
    c.require(len(set(ids)) == len(ids), numbers[1], "in replica_groups an id stands twice")
    c.require(
        set(ids) == set(range(len(ids))),
        numbers[2],
        f"replica_groups has ids that are not the first {len(ids)}",
    )
    if size is not None:
        c.require(shape[1] == size, "C8", f"groups of replica_groups are of {shape[1]} ids, expected {size}")


def _channel(handle: Record | None) -> int:
    return 0 if handle is None else handle.number("handle")


@typed(
    "all_gather",
    given=[
        OperandRule("operands", many=True),
        Attr("all_gather_dim", "i64", 0, low="C1"),
        Attr("replica_groups", "groups"),
        CHANNEL,
        GLOBAL,
    ],
    made="C6",
)
def _(
    c: OpTyping,
    operands: list[RankedTensor],
    dim: int,
    groups: Attribute,
    handle: Record | None,
    everywhere: bool,
) -> list[Type]:
    _grouped(c, groups, ("I3", "C2", "C4"), True, everywhere)
    c.require(
        not everywhere or _channel(handle) >= 0,
        "C5",
        f"the channel's id is {_channel(handle)}, expected at least 0 beside use_global_device_ids",
    )
    c.require(
        c.results is None or len(c.results) == len(operands),
        "C6",
        f"has {len(c.results or ())} results and {len(operands)} operands",
    )
    said = [c.said(n) for n in range(len(operands))]
    for n, (operand, result) in enumerate(zip(operands, said)):
        c.require(
            result.element == operand.element, "C6", f"operand {n} is {operand}, and result {n} {result}"
        )
    made: list[Type] = []
    for n, (operand, result) in enumerate(zip(operands, said)):
        c.require(dim < operand.rank, "C1", f"all_gather_dim is {dim}, and operand {n} {operand}")
        size = operand.shape[dim]
        c.require(size != 0, "C6", f"operand {n} is {operand}, which has nothing along all_gather_dim")
        others = [axis for axis in range(operand.rank) if axis != dim]
        same = result.rank == operand.rank and all(
            fits(result.shape[axis], operand.shape[axis]) for axis in others
        )
        c.require(same, "C6", f"operand {n} is {operand}, and result {n} {result}")
        whole = result.shape[dim]
        if size is None or whole is None:  # as StableHLO has it, operands behind this one are not looked at
            return list(said)
        c.require(whole % size == 0, "C6", f"operand {n} is {operand}, and result {n} {result}")
        made.append(result)
    return made


@typed(
    "all_to_all",
    given=[
        OperandRule("operands", many=True), Attr("split_dimension", "i64", 0, low="C1"), Attr("concat_dimension", "i64", 0, low="C3"),
        Attr("split_count", "i64", 1, low="C4"), Attr("replica_groups", "groups"), CHANNEL,
    ],
    made="C9",
)  # fmt: skip
def _(
    c: OpTyping,
    operands: list[RankedTensor],
    split: int,
    concat: int,
    count: int,
    groups: Attribute,
    handle: Record | None,
) -> list[Type]:
    _grouped(c, groups, ("I5", "C5", "C7"), True, size=count)
    made: list[Type] = []
    for n, operand in enumerate(operands):
        c.require(split < operand.rank, "C1", f"split_dimension is {split}, and operand {n} {operand}")
        c.require(concat < operand.rank, "C3", f"concat_dimension is {concat}, and operand {n} {operand}")
        shape, bounds = list(operand.shape), list(operand.bounds or ())
        size = shape[split]
        c.require(
            size is None or size % count == 0,
            "C2",
            f"operand {n} is {operand}, whose dimension {split} is no multiple of {count}",
        )
        for sizes in (shape, bounds):
            if sizes and (part := sizes[split]) is not None:
                sizes[split] = part // count
            if sizes and (part := sizes[concat]) is not None:
                sizes[concat] = c.size(part * count, "C9", f"dimension {concat} of result {n}")
        made.append(tensor(shape, operand.element, bounds or None))
    return made


@typed(
    "reduce_scatter",
    given=[OperandRule("operand"), Attr("scatter_dimension", "i64", 0, low="C2"), Attr("replica_groups", "groups"), CHANNEL, GLOBAL],
    bodies=("computation",), made="C8",
)  # fmt: skip
def _(
    c: OpTyping, operand: RankedTensor, dim: int, groups: Attribute, handle: Record | None, everywhere: bool
) -> Type:
    _grouped(c, groups, ("I3", "C3", "C5"), True, everywhere)
    check_reducer(c, c.body(0), [operand], [tensor((), operand.element)], (), "C7")
    made = c.said()
    c.require(made.rank == operand.rank, "C8", f"operand is {operand}, and the result {made}")
    c.require(dim < operand.rank, "C2", f"scatter_dimension is {dim}, and operand {operand}")
    c.require(
        not everywhere or _channel(handle) > 0,
        "C6",
        f"the channel's id is {_channel(handle)}, expected at least 1 beside use_global_device_ids",
    )
    whole, part = operand.shape[dim], made.shape[dim]
    if whole is None or part is None:  # as StableHLO has it, nothing else is looked at then
        return made
    c.require(
        part != 0 and whole != 0 and whole % part == 0, "C8", f"operand is {operand}, and the result {made}"
    )
    others = [axis for axis in range(operand.rank) if axis != dim]
    c.require(
        all(fits(operand.shape[axis], made.shape[axis]) for axis in others),
        "C8",
        f"operand is {operand}, and the result {made}",
    )
    found = accumulators(c, 0)
    wanted = found[0] if found else operand.element
    c.require(made.element == wanted, "C9", f"the result is {made}, expected elements of {wanted}")
    return made


@typed(
    "all_reduce",
    given=[OperandRule("operands", many=True), Attr("replica_groups", "groups"), CHANNEL, GLOBAL], bodies=("computation",), made="C6",
)  # fmt: skip
def _(
    c: OpTyping, operands: list[RankedTensor], groups: Attribute, handle: Record | None, everywhere: bool
) -> list[Type]:
    _grouped(c, groups, ("I2", "C1", "C3"), False, everywhere)
    c.require(
        not everywhere or _channel(handle) > 0,
        "C4",
        f"the channel's id is {_channel(handle)}, expected at least 1 beside use_global_device_ids",
    )
    for operand in operands:
        check_reducer(c, c.body(0), [operand], [tensor((), operand.element)], (), "C5")
    found = accumulators(c, 0)
    return [
        tensor(operand.shape, found[0] if found else operand.element) for operand in operands
    ]  # without bounds, as StableHLO's


@typed(
    "collective_permute",
    given=[OperandRule("operand"), Attr("source_target_pairs", "elements"), CHANNEL],
    same_elements="C5",
    made="C5",
)
def _(c: OpTyping, operand: RankedTensor, pairs: Dense, handle: Record | None) -> Type:
    shape = pairs.type.shape
    c.require(len(shape) == 2, "I2", f"source_target_pairs is {pairs.type}, expected two dimensions")
    c.require(shape[1] == 2, "C1", f"source_target_pairs is {pairs.type}, expected pairs")
    values = pairs.values()
    c.require(all(n >= 0 for n in values), "C4", "source_target_pairs has a negative id")
    for constraint, name, ids in (("C2", "sources", values[::2]), ("C3", "targets", values[1::2])):
        c.require(
            len(set(ids)) == len(ids), constraint, f"of the {name} in source_target_pairs one stands twice"
        )
    return operand


@typed(
    "collective_broadcast",
    given=[
        OperandRule("operands", many=True),
        Attr("replica_groups", "groups"),
        CHANNEL,
        Attr("has_dynamic_root", "unit", needed=False, default=False),
    ],
    made="C3",
)
def _(
    c: OpTyping, operands: list[RankedTensor], groups: Attribute, handle: Record | None, rooted: bool
) -> list[Type]:
    if isinstance(groups, Dense):
        c.require(
            len(groups.type.shape) == 2, "I2", f"replica_groups is {groups.type}, expected two dimensions"
        )
        values = groups.values()
        c.require(all(n >= 0 for n in values), "C2", "replica_groups has a negative id")
        c.require(len(set(values)) == len(values), "C1", "in replica_groups an id stands twice")
    c.require(len(operands) > rooted, "C4" if rooted else "C3", f"takes {1 + rooted} operands or more")
    if not rooted:
        return list(operands)
    *data, root = operands
    fit = root.element == "i32" and shapes_fit(root.shape, (len(data),))
    c.require(fit, "C4", f"the last operand is {root}, expected tensor<{len(data)}xi32>")
    return list(data)
