"""A compiled loop of the host, to be looked at: what it computes, LLVM IR and assembly. As `compile_loop` makes it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from ...rows.program import Expression
from ...whole import Whole
from .loops import FoldLoop, MapLoop
from .spec import FoldSpec, MapSpec


def loops_of(value: Any) -> list[MapSpec | FoldSpec]:
    """The loops that a kernel of the host holds, in its closures, in no particular order, each once."""
    return list(dict.fromkeys(_loops(value, set(), [])))


def _loops(value: Any, seen: set[int], alive: list[Any]) -> Iterator[MapSpec | FoldSpec]:
    if id(value) in seen:
        return
    seen.add(id(value))
    alive.append(value)  # ids stay taken
    if isinstance(value, FoldLoop):
        yield from value.specs
        return
    if isinstance(value, MapLoop):
        yield value.spec
        return
    parts: Any = ()
    if isinstance(value, FunctionType):
        parts = [cell.cell_contents for cell in value.__closure__ or ()]
    elif isinstance(value, MethodType):
        parts = [value.__self__]
    elif isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (tuple, list)):
        parts = value
    elif type(value).__module__.startswith("aicf.") and hasattr(value, "__dict__"):
        parts = list(vars(value).values())
    for part in parts:
        yield from _loops(part, seen, alive)


def spec_text(spec: MapSpec | FoldSpec) -> str:
    """What the loop computes: its expression step by step, what its arguments are read from, and how it walks them."""
    if isinstance(spec, FoldSpec):
        return f"reduce_{spec.how} in {spec.dtype}, {'columns' if spec.columns else 'the innermost axis'}"
    e = spec.expression
    walks = ("stays", "next element", "strided")
    lines = [f"map {e.name}"]
    for k in range(e.arguments):
        source, bounds = spec.sources[k], spec.bounds[k] if spec.bounds else ()
        read = "the index" if source is None else f"array {source} ({spec.arrays[source]})"
        lines.append(
            f"  s{k}: {e.dtypes[k]} = {read}, {walks[spec.walks[k]]}" + f", where {bounds}" * bool(bounds)
        )
    for function, ins, outs in e.steps:
        left = ", ".join(f"s{o}" + " rounded" * (o in e.rounded) for o in outs)
        lines.append(
            f"  {left}: {', '.join(str(e.dtypes[o]) for o in outs)} = {_name(function)}({', '.join(f's{i}' for i in ins)})"
        )
    targets = [
        *(f"target {n} ({t})" for n, t in enumerate(spec.targets)),
        *([f"a block ({spec.block})"] if spec.block else []),
    ]
    lines += [f"  {where} <- s{slot}" for where, slot in zip(targets, e.results)]
    return "\n".join(lines)


def _name(function: Any) -> str:
    defaults = f" with {function.__defaults__}" if getattr(function, "__defaults__", None) else ""
    return f"{getattr(function, '__name__', function)}{defaults}"


def expressions(spec: MapSpec | FoldSpec) -> list[Expression]:
    return [spec.expression] if isinstance(spec, MapSpec) else []


@functools.lru_cache(maxsize=256)
def code_texts(spec: MapSpec | FoldSpec) -> tuple[str, str]:
    """(LLVM IR, assembly) for this processor, compiled anew."""
    with Whole():
        from .compile import compiled_texts

        return compiled_texts(spec)
