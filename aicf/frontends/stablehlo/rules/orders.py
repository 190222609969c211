"""Elements in order: sort by one operand, whichever others go along, and the greatest ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ....ir import Value
from ....ops.argmax import NARROW
from ..emission import Emission
from ..nodes import Body, Operation
from ..table import UnsupportedForm, rule


@rule("stablehlo.sort")
def _(e: Emission, node: Operation, *operands: Value, outer: Mapping[int, Value]) -> list[Value]:
    found = _compared(node.bodies[0])
    if found is None:
        raise UnsupportedForm("by a comparison of its own")
    key, descending, total = found
    x, axis = operands[key], node.attrs["dimension"]
    if (x.dtype.kind == "float") is not total:
        raise UnsupportedForm(f"of {x.dtype} by a comparison of its own")
    _check(e, x)
    if len(operands) == 1:
        return [e.ctx.sort(x, axis=axis, descending=descending)]
    places = e.ctx.argsort(x, axis=axis, descending=descending)
    return [e.ctx.take_along_axis(y, places, axis=axis) for y in operands]


@rule("chlo.top_k")
def _(e: Emission, node: Operation, x: Value) -> list[Value]:
    """Along the last axis."""
    _check(e, x)
    values, places = e.ctx.top_k(x, k=node.attrs["k"])
    return [values, e.ctx.convert(places, dtype=node.types[1].dtype)]


def _check(e: Emission, x: Value) -> None:
    if e.ctx.device == "cuda" and x.dtype not in NARROW:
        raise UnsupportedForm(f"of {x.dtype}: on a GPU elements of at most 32 bits are ordered")


def _compared(body: Body) -> tuple[int, bool, bool] | None:
    """(the operand that a body compares, whether what is greater comes first, whether it is of floats whose zeros are equal and whose NaN is
    above all numbers, as JAX says it); None if it does another thing."""
    terms: dict[int, str] = {a: f"{'xy'[n % 2]}{n // 2}" for n, a in enumerate(body.arguments)}
    for node in body.nodes:
        if len(node.results) != 1 or node.bodies:
            return None
        name = node.attrs.get("comparison_direction") or node.name.removeprefix("stablehlo.")
        if name == "constant":
            terms[node.results[0]] = _constant(node.attrs["value"])
            continue
        total = "TOTAL" if node.attrs.get("compare_type") == "TOTALORDER" else ""
        terms[node.results[0]] = f"{total}{name}({','.join(terms.get(n, '?') for n in node.operands)})"
    if len(body.returned) != 1:
        return None
    said = terms[body.returned[0]]
    for key in range(len(body.arguments) // 2):
        x, y = f"x{key}", f"y{key}"
        a, b = (f"select(NE({v},{v}),nan,select(EQ({v},0.0),0.0,{v}))" for v in (x, y))
        for direction in ("LT", "GT"):
            if said in (f"{direction}({x},{y})", f"TOTAL{direction}({a},{b})"):
                return key, direction == "GT", said.startswith("TOTAL")
    return None


def _constant(value: Any) -> str:
    value = getattr(value, "value", value)
    return str(float(value)) if isinstance(value, (int, float, np.number)) else "?"
