"""A matrix product with one operand whose axes are known: what the other one and the result have."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir import Op, Value
from ...types import ActKind
from .arrange import Laid
from .axes import Axis, Group, Layout
from .flow import Flow


def is_plain_product(op: Op) -> bool:
    """Whether it is a product and nothing more."""
    plain = {"act": ActKind.none, "alpha": 1.0}
    more = any(vid >= 0 for vid in op.inputs[2:]) or len(op.outputs) != 1
    return op.kind == "gemm" and not more and {name: op.attrs[name] for name in plain} == plain


def factors(flow: Flow, op: Op, layout: Layout, free: bool = False) -> tuple[Laid, Laid, Group]:
    """(both operands of a product whose result has this layout, the axis that is summed over)."""
    a, b = flow.value(op.inputs[0]), flow.value(op.inputs[1])
    size = a.shape[-2 if op.attrs["trans_a"] else -1]
    inner = (Axis(size, free),) if size != 1 else ()
    left = operand(a, layout[:-2], (layout[-2], inner), op.attrs["trans_a"])
    return left, operand(b, layout[:-2], (inner, layout[-1]), op.attrs["trans_b"]), inner


@dataclass(frozen=True)
class Crossing:
    """rows, along   the operand's last two axes: the one that stays, and the one that is summed over
    other, width     the other operand, and the axis of it that stays
    """

    rows: Group
    along: Group
    other: Laid
    width: Group
    layout: Layout  # of the result


def crossing(flow: Flow, op: Op, side: int, layout: Layout, free: bool = False) -> Crossing | None:
    """A product of its operand of this number, which has this layout; None where it is more than a product. free: whether the other
    operand's axis may turn out to be one that is known."""
    own, other = flow.value(op.inputs[side]), flow.value(op.inputs[1 - side])
    if not is_plain_product(op) or own.rank != flow.result(op).rank:
        return None
    first = side == 0
    names = ("trans_a", "trans_b") if first else ("trans_b", "trans_a")
    turned, other_turned = (op.attrs[name] for name in names)
    batch = layout[:-2]
    rows, along = layout[-2:] if turned is not first else layout[-2:][::-1]
    size = other.shape[-2 if other_turned is first else -1]
    width = (Axis(size, free),) if size != 1 else ()
    pair, made = ((along, width), (rows, width)) if first else ((width, along), (width, rows))
    return Crossing(rows, along, operand(other, batch, pair, other_turned), width, (*batch, *made))


def operand(value: Value, batch: Layout, pair: tuple[Group, Group], turned: bool) -> Laid:
    """One of a product: its last two axes, as if it were not turned."""
    own = batch if value.rank > 2 else ()
    return Laid(value, (*own, *(pair[::-1] if turned else pair)))
