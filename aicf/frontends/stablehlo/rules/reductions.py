"""Reductions whose bodies are known: one op of the two arguments, or what argmax and argmin compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ....ir import Value
from ....types import DType
from ..emission import Emission
from ..nodes import Body, Operation
from ..table import UnsupportedForm, rule
from .elementwise import logic

_COMBINERS = {"stablehlo.add": "add", "stablehlo.maximum": "maximum", "stablehlo.minimum": "minimum", "stablehlo.multiply": "mul",
              "stablehlo.and": "and", "stablehlo.or": "or"}  # fmt: skip


def combiner(body: Body) -> str | None:
    """What a body of two arguments does, if it is one op."""
    if len(body.nodes) != 1 or len(body.returned) != 1 or body.returned != body.nodes[0].results:
        return None
    if sorted(body.nodes[0].operands) != sorted(body.arguments):
        return None
    return _COMBINERS.get(body.nodes[0].name)


@rule("stablehlo.reduce")
def _(e: Emission, node: Operation, *operands: Value, outer: Mapping[int, Value]) -> Value | list[Value]:
    axes, body = node.attrs["dimensions"], node.bodies[0]
    if len(operands) == 2:
        kind = combiner(body)
        if kind is None:
            raise UnsupportedForm(f"by {_told(body)}")
        return _reduced(e, node, operands[0], operands[1], tuple(axes), kind)
    if len(operands) == 4 and len(axes) == 1 and (least := _argument(body)) is not None:
        return _arg_reduced(e, node, operands, axes[0], least)
    raise UnsupportedForm(f"of {len(operands) // 2} operands by {_told(body)}")


def _told(body: Body) -> str:
    return " ".join(node.name.removeprefix("stablehlo.") for node in body.nodes[:12]) or "nothing"


def _reduced(e: Emission, node: Operation, x: Value, init: Value, axes: tuple[int, ...], kind: str) -> Value:
    if x.dtype is DType.bool:
        return _bools_reduced(e, node, x, init, axes, kind)
    if kind in ("and", "or"):
        raise UnsupportedForm(f"by {kind} of {x.dtype}")
    if not axes:
        return _with_init(e, x, init, kind)
    reduce: Callable[..., Value] = getattr(
        e.ctx,
        {"add": "reduce_sum", "maximum": "reduce_max", "minimum": "reduce_min", "mul": "reduce_prod"}[kind],
    )
    return _with_init(e, reduce(x, axes=axes), init, kind)


def _with_init(e: Emission, y: Value, init: Value, kind: str) -> Value:
    """An initial value takes part once, unless it changes nothing."""
    known = e.known(init)
    return y if known is not None and known == neutral(kind, y.dtype) else e.ctx.op(kind, y, init)


def neutral(kind: str, dtype: DType) -> float:
    """What a combiner joins with anything to that."""
    if kind in ("add", "mul"):
        return float(kind == "mul")
    if dtype.kind == "float":
        return -np.inf if kind == "maximum" else np.inf
    limits = np.iinfo(dtype.numpy)
    return limits.min if kind == "maximum" else limits.max


def _bools_reduced(
    e: Emission, node: Operation, x: Value, init: Value, axes: tuple[int, ...], kind: str
) -> Value:
    """Any and all."""
    kind = {"add": "or", "maximum": "or", "mul": "and", "minimum": "and"}.get(kind, kind)
    if axes:
        x = (e.ctx.reduce_any if kind == "or" else e.ctx.reduce_all)(x, axes=axes)
    known = e.known(init)
    return x if known is not None and bool(known) == (kind == "and") else logic(e, node, kind, x, init)


# --- argmax and argmin ------------------------------------------------------------------------------------------------


def _argument(body: Body) -> bool | None:
    """Whether a body of (value, place, value, place) keeps the least value's place; the greatest one's if false, None if neither. Equal
    values: the first place; NaN before all numbers."""
    if len(body.arguments) != 4 or len(body.returned) != 2:
        return None
    terms = dict(zip(body.arguments, ("x", "i", "y", "j")))
    for node in body.nodes:
        if len(node.results) != 1 or node.bodies:
            return None
        name = node.attrs.get("comparison_direction") or node.name.removeprefix("stablehlo.")
        terms[node.results[0]] = f"{name}({','.join(terms.get(n, '?') for n in node.operands)})"
    value, place = (terms[n] for n in body.returned)
    for direction, least in (("GT", False), ("LT", True)):
        for better in (f"or({direction}(x,y),NE(x,x))", f"{direction}(x,y)"):
            if value == f"select({better},x,y)" and place == f"select(or({better},and(EQ(x,y),LT(i,j))),i,j)":
                return least
    return None


def _arg_reduced(
    e: Emission, node: Operation, operands: tuple[Value, ...], axis: int, least: bool
) -> list[Value]:
    x, places = operands[:2]
    op = places.producer
    while op is not None and op.kind == "broadcast_in_dim" and op.attrs["dims"] == (axis,):
        op = e.ctx.builder.graph.values[op.inputs[0]].producer
        axis_of_iota = 0
        break
    else:
        axis_of_iota = axis
    if op is None or op.kind != "iota" or op.attrs["axis"] % len(op.attrs["shape"]) != axis_of_iota:
        raise UnsupportedForm("of places that are no iota")
    found = (e.ctx.argmin if least else e.ctx.argmax)(x, axis=axis)
    value = (e.ctx.reduce_min if least else e.ctx.reduce_max)(x, axes=(axis,))
    dtype = node.types[1].dtype
    return [value, found if found.dtype is dtype else e.ctx.convert(found, dtype=dtype)]
