"""Ops side by side: a region that falls into independent parts which do the same, each over a domain of its own.

What hangs together by the values that the region makes is a part; operands may be shared. All parts have the same ops in the
same order. Optimizer steps are such a region, and so are clipped gradients with the steps behind them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..ops import record
from .program import Map
from .read import read
from .region import RegionSpec
from .reject import Reject
from .structure import parts_of


def read_parts(region: RegionSpec) -> tuple[Map, ...] | Reject:
    """Its parts as maps among the region's operands and results; or why they are none, or not alike."""
    known = region.__dict__.get("_parts")  # every kernel asks
    if known is None or known[0] != record.schema_epoch:
        known = record.schema_epoch, _read_parts(region)
        object.__setattr__(region, "_parts", known)
    return known[1]


def _read_parts(region: RegionSpec) -> tuple[Map, ...] | Reject:
    parts = parts_of(region)
    if isinstance(parts, Reject):
        return parts
    operand = {t: p for p, t in enumerate(region.inputs)}
    results = {t: p for p, t in enumerate(region.outputs)}
    if len(results) < len(region.outputs):
        return Reject("results", "a result is stored twice")
    maps = list[Map]()
    for numbers in parts:
        ops = [region.ops[n] for n in numbers]
        kept = tuple([t for op in ops for t in op.outputs if t in results])
        alone = region.only(*ops, outputs=kept)
        program = read(alone)
        if isinstance(program, Reject):
            return program
        ins = list(dict.fromkeys([t for op in ops for t in op.inputs if t in operand]))
        part = _placed(program.after, [operand[t] for t in ins], [results[t] for t in kept])
        if maps and _computed(part) != _computed(maps[0]):
            return Reject("ops", f"{ops[0].kind} on other element types, or with other results kept")
        maps.append(part)
    return tuple(maps)


def _placed(part: Map, operands: list[int], results: list[int]) -> Map:
    """The map of a part that was read alone, with its operands and results at these places of the region's."""
    loads = [
        load if load.operand is None else load._replace(operand=operands[load.operand]) for load in part.loads
    ]
    stores = tuple([(slot, results[n]) for slot, n in part.stores])
    return replace(part, loads=tuple(loads), stores=stores)


def _computed(part: Map) -> tuple[Any, ...]:
    """All that a part's expression is made from."""
    return part.dtypes, part.rounded, len(part.loads), part.applies, [slot for slot, _ in part.stores]
