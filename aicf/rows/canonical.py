"""One form for all linear extensions of a region (A4): ops in a topological order that depends on what they compute alone.

Every tensor gets a label from its descriptor and from what makes it, then one from what reads it; ops that are ready are taken
by name, then by label. Swapping ops that don't commute makes other labels, and another order. Labels are digests of text, so
the form is the same in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ..types import TensorDesc
from .region import RegionOp, RegionSpec


def canonical(region: RegionSpec) -> RegionSpec:
    """The region with ops in canonical order, tensors numbered as they are met, results in that order."""
    if len(region.ops) == 1 and region.inputs == tuple(range(len(region.inputs))):
        return region
    labels = _op_labels(region)
    made_by = {t: i for i, op in enumerate(region.ops) for t in op.outputs}
    waits = [{made_by[t] for t in op.inputs if t in made_by} for op in region.ops]
    order: list[int] = []
    left = set(range(len(region.ops)))
    while left:
        ready = [i for i in left if not waits[i].intersection(left)]
        order.append(min(ready, key=lambda i: (region.ops[i].kind.name, labels[i], i)))
        left.remove(order[-1])
    return _renumbered(region, [region.ops[i] for i in order])


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


def _op_labels(region: RegionSpec) -> list[str]:
    """Of each op: what it computes, from what, and what becomes of it."""
    made: dict[int, str] = {t: _digest("in", region.tensors[t]) for t in region.inputs}
    labels = []
    for op in region.ops:
        label = _digest(op.kind.name, op.attrs.blob.hex(), *(made.get(t, "-") for t in op.inputs))
        labels.append(label)
        made.update({t: _digest(label, n, region.tensors[t]) for n, t in enumerate(op.outputs)})
    for _ in range(2):  # what reads a tensor, then what reads the other tensors of those readers
        readers: dict[int, list[str]] = {t: [] for t in range(len(region.tensors))}
        for op, label in zip(region.ops, labels):
            for n, t in enumerate(op.inputs):
                if t >= 0:
                    readers[t].append(f"{label}.{n}")
        leaving = set(region.outputs)
        used = {t: _digest(made[t], t in leaving, *sorted(who)) for t, who in readers.items() if t in made}
        labels = [
            _digest(label, *(used[t] for t in (*op.inputs, *op.outputs) if t >= 0))
            for op, label in zip(region.ops, labels)
        ]
    return labels


def _digest(*parts: object) -> str:
    return hashlib.blake2s("\0".join(map(repr, parts)).encode(), digest_size=8).hexdigest()
