"""Operations that aicf has no op for, as what they are made of; and those whose sizes are operands, where the module's types know them."""

from __future__ import annotations

import numpy as np

from ....ir import Value
from ....types import DType
from ..emission import Emission
from ..nodes import Operation
from ..table import RULES, UnsupportedForm, rule


@rule("stablehlo.dynamic_reshape", like="stablehlo.reshape")
@rule("stablehlo.dynamic_broadcast_in_dim", like="stablehlo.broadcast_in_dim")
def _(e: Emission, node: Operation, x: Value, sizes: Value, like: str) -> Value:
    """The result's type has its sizes: the module says them, and the operand is to say the same."""
    return RULES[like](e, node, x)  # type: ignore[return-value]


@rule("stablehlo.dynamic_iota")
def _(e: Emission, node: Operation, sizes: Value) -> Value:
    return RULES["stablehlo.iota"](e, node)  # type: ignore[return-value]


@rule("stablehlo.get_dimension_size")
def _(e: Emission, node: Operation, x: Value) -> Value:
    return e.number(x.shape[node.attrs["dimension"]], DType.i32)


@rule("stablehlo.dynamic_pad")
def _(e: Emission, node: Operation, x: Value, value: Value, *amounts: Value) -> Value:
    known = [e.known(amount) for amount in amounts]
    if any(n is None for n in known):
        raise UnsupportedForm("by amounts that depend on data")
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    padding = {name: tuple(map(int, n)) for name, n in zip(names, known) if n is not None}
    made = Operation(node.name, node.operands, node.results, node.types, padding, (), node.where)
    return RULES["stablehlo.pad"](e, made, x, value)  # type: ignore[return-value]


@rule("stablehlo.real")
def _(e: Emission, node: Operation, x: Value) -> Value:
    """Of real numbers."""
    return x


@rule("stablehlo.imag")
def _(e: Emission, node: Operation, x: Value) -> Value:
    return e.spread(e.number(0, x.dtype), x.shape)


def bits(e: Emission, x: Value) -> tuple[Value, int]:
    """The bits of an integer as an unsigned number, and how many there are."""
    unsigned = DType.of(np.dtype(f"u{x.dtype.itemsize}"))
    return (x if x.dtype is unsigned else e.ctx.convert(x, dtype=unsigned)), 8 * x.dtype.itemsize


def _ones(e: Emission, x: Value, width: int) -> Value:
    """How many bits of an unsigned number are ones: sums of pairs, of fours, of eights, and so on."""
    ctx, step = e.ctx, 1
    while step < width:
        mask = e.number(sum(((1 << step) - 1) << at for at in range(0, width, 2 * step)), x.dtype)
        high = ctx.bitwise_and(ctx.shift_right_logical(x, e.number(step, x.dtype)), mask)
        x, step = ctx.add(ctx.bitwise_and(x, mask), high), 2 * step
    return x


@rule("stablehlo.popcnt")
def _(e: Emission, node: Operation, x: Value) -> Value:
    plain, width = bits(e, x)
    return e.ctx.convert(_ones(e, plain, width), dtype=x.dtype)


@rule("stablehlo.count_leading_zeros")
def _(e: Emission, node: Operation, x: Value) -> Value:
    """The zeros before the first one: those that are left when all bits behind it are ones, too."""
    plain, width = bits(e, x)
    step = 1
    while step < width:
        plain = e.ctx.bitwise_or(plain, e.ctx.shift_right_logical(plain, e.number(step, plain.dtype)))
        step *= 2
    return e.ctx.convert(_ones(e, e.ctx.bitwise_not(plain), width), dtype=x.dtype)
