"""What the generated tests know of single ops; a new op family adds its module here and edits no list.

Each module may define

    NEGATIVE   {(op, constraint): (operands, attributes, regex of the whole message)}, or a list of such
               one for each part of each numbered constraint; those an elementwise declaration implies are filled in here
    EXACT      {op: (operands, attributes, results)}, or a list, written out by hand, for each op that is not elementwise
    DECLARED   [(op, operands, regex of the whole message)], what the declaration of any op is held to

Operands are written `f32(4, 7)`.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from aicf.ops.schema import ELEMENTWISE, OpSchema, schemas
from aicf.types import DType, TensorSpec


def of(dtype: DType):
    return lambda *shape: TensorSpec(shape, dtype)


f32, f16, bf16, i32, i64 = map(of, (DType.f32, DType.f16, DType.bf16, DType.i32, DType.i64))
boolean = of(DType.bool)


def admitted(constraint) -> DType:
    """The first type, in the order of their ids, that a type constraint takes; fp8 last."""
    return min(constraint.dtypes, key=lambda t: (t.is_fp8, t.id))


def _implied(schema: OpSchema) -> dict[tuple[str, str], Any]:
    """Negative cases for what `elementwise` promises: C1 shapes broadcast, C2 what is written in place is not."""
    cases: dict[tuple[str, str], Any] = {}
    attrs = schema.sample_specs[0]["attrs"]
    declared = schema.declared(len(schema.operands) + schema.variadic)
    made = [of(admitted(d.type)) for d in declared]
    if "C1" in schema.constraints and len(made) > 1:
        shapes = [(3,)] * (len(made) - 1) + [(4,)]
        text = ", ".join(rf"{d.name} \({s[0]},\)" for d, s in zip(declared, shapes))
        specs = [make(*s) for make, s in zip(made, shapes)]
        cases[schema.name, "C1"] = (specs, attrs, rf"shapes do not broadcast: {text}")
    for result, (operand, how) in schema.alias.items():
        if how == "must" and len(made) > 1:
            text = (
                rf"{schema.results[result]} is written over {schema.operands[operand].name}, whose shape \(3,\) is not "
                r"the broadcast shape \(2, 3\)"
            )
            specs = [make(3) if i == operand else make(2, 3) for i, make in enumerate(made)]
            cases.setdefault((schema.name, "C2"), []).append((specs, attrs, text))
    return cases


_negative: dict[tuple[str, str], Any] = {}
_exact: dict[str, Any] = {}
DECLARED: list[tuple] = []

for _schema in schemas():
    if ELEMENTWISE in _schema.traits:
        _negative.update(_implied(_schema))
for _found in pkgutil.iter_modules(__path__):
    _module = importlib.import_module(f"{__name__}.{_found.name}")
    _negative.update(getattr(_module, "NEGATIVE", {}))
    DECLARED += getattr(_module, "DECLARED", [])
    _exact.update(getattr(_module, "EXACT", {}))


def _each(cases: dict[Any, Any]) -> list[tuple]:
    return [
        (key, *case)
        for key, found in cases.items()
        for case in (found if isinstance(found, list) else [found])
    ]


NEGATIVE, EXACT = _each(_negative), _each(_exact)
