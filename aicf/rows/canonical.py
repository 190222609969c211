"""One form for all linear extensions of a region (A4): ops in a topological order that depends on what they compute alone.

Ops and tensors are coloured by what they are, then by their neighbours' colours, until nothing more can be told apart. Of the
ops that are ready the one of least colour comes next; where several have it, one of them is taken, and gets a colour of its
own, which then tells their neighbours apart. Colours are ranks, so the form is the same in every process. Regions that only
differ in how alike parts hang together far away (two rings of ops, say) may have two forms: they are tuned twice, no worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..types import TensorDesc
from .region import RegionOp, RegionSpec

Colours = list[int]  # of the ops, then of the tensors


def canonical(region: RegionSpec) -> RegionSpec:
    """The region with ops in canonical order, tensors numbered as they are met, results in that order."""
    made_by = {t: i for i, op in enumerate(region.ops) for t in op.outputs}
    waits = [{made_by[t] for t in op.inputs if t in made_by} for op in region.ops]
    colours = _refined(region, _first_colours(region))
    order: list[int] = []
    left = set(range(len(region.ops)))
    while left:
        ready = [i for i in left if not waits[i].intersection(left)]
        i = min(ready, key=colours.__getitem__)
        order.append(i)
        left.remove(i)
        if colours.count(colours[i]) > 1:
            doubled = [2 * c for c in colours]
            doubled[i] -= 1
            colours = _refined(region, doubled)
    return _renumbered(region, [region.ops[i] for i in order])


def _first_colours(region: RegionSpec) -> Colours:
    leaving = set(region.outputs)
    texts = [f"op {op.kind.name} {op.attrs.blob.hex()}" for op in region.ops]
    texts += [f"tensor {desc!r} {t in leaving}" for t, desc in enumerate(region.tensors)]
    return _ranks(texts)


def _refined(region: RegionSpec, colours: Colours) -> Colours:
    """Colours that tell apart whatever has neighbours of other colours. The order of those given is kept."""
    first = len(region.ops)
    while True:
        seen: list[list[int]] = [[] for _ in region.tensors]  # by whom, and as which operand or result
        found = []
        for op, colour in zip(region.ops, colours):
            ends = (*op.inputs, *op.outputs)
            for n, t in enumerate(ends):
                if t >= 0:
                    seen[t].append(colour * 64 + n)
            found.append((colour, tuple(colours[first + t] if t >= 0 else -1 for t in ends)))
        found += [(colour, tuple(sorted(who))) for colour, who in zip(colours[first:], seen)]
        finer = _ranks(found)
        if max(finer) + 1 == len(set(colours)):
            return finer
        colours = finer


def _ranks(values: Sequence[Any]) -> Colours:
    rank = {value: n for n, value in enumerate(sorted(set(values)))}
    return [rank[value] for value in values]


def _renumbered(region: RegionSpec, ops: Sequence[RegionOp]) -> RegionSpec:
    number: dict[int, int] = {}
    for op in ops:
        for t in (*op.inputs, *op.outputs):
            if t >= 0:
                number.setdefault(t, len(number))
    number[-1] = -1
    external, leaving = set(region.inputs), set(region.outputs)
    tensors: list[TensorDesc] = [region.tensors[t] for t in number if t >= 0]
    renumbered = tuple(
        RegionOp(op.kind, op.attrs, tuple(number[t] for t in op.inputs), tuple(number[t] for t in op.outputs))
        for op in ops
    )
    inputs, outputs = (tuple(n for t, n in number.items() if t in kept) for kept in (external, leaving))
    return RegionSpec(renumbered, tuple(tensors), inputs, outputs, region.strict)
