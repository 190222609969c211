"""One form for all linear extensions of a region: ops in a topological order that depends on what they compute alone.

Ops and tensors are coloured by what they are, then by their neighbours' colours, until nothing more can be told apart. Of the
ops that are ready the one of least colour comes next; where several have it, one of them is taken, and gets a colour of its
own, which then tells their neighbours apart. Colours are ranks, so the form is the same in every process.

Which of them is taken does not matter if they can be exchanged, as parts can in which no colour comes twice. In rings of ops
over shared operands it may, since a long ring and two short ones are coloured alike: then each of them is tried, and the least
form counts. Whoever begins like an op that was tried, with a form that was met there, is its mirror image and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..types import TensorDesc
from .region import RegionOp, RegionSpec

Colours = list[int]  # of the ops, then of the tensors


class _Form(NamedTuple):
    """Compares by what the ops are, in this order, and how they hang together; all else follows from that."""

    text: tuple[Any, ...]
    order: list[int]


def canonical(region: RegionSpec) -> RegionSpec:
    """The region with ops in canonical order, tensors numbered as they are met, results in that order."""
    first = _first_colours(region)
    least = min(_forms(region, first, _refined(region, first)), key=lambda form: form.text)
    return _renumbered(region, [region.ops[i] for i in least.order])


def _forms(region: RegionSpec, first: Colours, colours: Colours) -> Iterator[_Form]:
    """Forms that the choices between ops of one colour lead to, each at least once."""
    doubtful = _doubtful(region, colours)
    if not doubtful:
        yield _ordered(region, first, colours)
        return
    met: set[tuple[Any, ...]] = set()
    for i in doubtful:
        found = set()
        for form in _forms(region, first, _refined(region, _singled_out(colours, i))):
            if form.text in met:
                break  # the two can be exchanged: all forms of one are the other's
            found.add(form.text)
            yield form
        met |= found


def _doubtful(region: RegionSpec, colours: Colours) -> list[int]:
    """Ops of the least colour that comes twice in one part; parts hang together by tensors that are not alone in colour."""
    count = len(region.ops)
    if len(set(colours[:count])) == count:
        return []
    part = list(range(count))
    sharing: dict[int, int] = {}  # the first op that a tensor was met at
    for i, op in enumerate(region.ops):
        for t in (*op.inputs, *op.outputs):
            if t >= 0 and colours.count(colours[count + t]) > 1:
                old, new = part[sharing.setdefault(t, i)], part[i]
                part = [new if p == old else p for p in part]
    twice = [c for n, c in enumerate(colours[:count]) if (c, part[n]) in zip(colours[:n], part)]
    return [i for i in range(count) if twice and colours[i] == min(twice)]


def _ordered(region: RegionSpec, first: Colours, colours: Colours) -> _Form:
    """The form where ops of one colour can be exchanged."""
    made_by = {t: i for i, op in enumerate(region.ops) for t in op.outputs}
    waits = [{made_by[t] for t in op.inputs if t in made_by} for op in region.ops]
    order: list[int] = []
    left = set(range(len(region.ops)))
    while left:
        ready = [i for i in left if not waits[i].intersection(left)]
        i = min(ready, key=colours.__getitem__)
        order.append(i)
        left.remove(i)
        if colours.count(colours[i]) > 1:
            colours = _refined(region, _singled_out(colours, i))
    number = _numbered([region.ops[i] for i in order])
    ends = [(first[i], *(number[t] for t in (*region.ops[i].inputs, *region.ops[i].outputs))) for i in order]
    return _Form((*ends, tuple(first[len(order) + t] for t in number if t >= 0)), order)


def _singled_out(colours: Colours, i: int) -> Colours:
    """With a colour of its own for an op, before that of those it was like."""
    doubled = [2 * c for c in colours]
    doubled[i] -= 1
    return doubled


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


def _numbered(ops: Sequence[RegionOp]) -> dict[int, int]:
    """Tensors as they are met."""
    number: dict[int, int] = {}
    for op in ops:
        for t in (*op.inputs, *op.outputs):
            if t >= 0:
                number.setdefault(t, len(number))
    return number | {-1: -1}


def _renumbered(region: RegionSpec, ops: Sequence[RegionOp]) -> RegionSpec:
    number = _numbered(ops)
    external, leaving = set(region.inputs), set(region.outputs)
    tensors: list[TensorDesc] = [region.tensors[t] for t in number if t >= 0]
    renumbered = tuple(
        RegionOp(op.kind, op.attrs, tuple(number[t] for t in op.inputs), tuple(number[t] for t in op.outputs))
        for op in ops
    )
    inputs, outputs = (tuple(n for t, n in number.items() if t in kept) for kept in (external, leaving))
    return replace(region, ops=renumbered, tensors=tuple(tensors), inputs=inputs, outputs=outputs)
