"""Values brought into another arrangement of their atoms: by at most a reshape, a transpose, a repetition and a reshape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...ir import Value
from .axes import Group, Layout, before, every, settled, size_of
from .flow import Flow


@dataclass(frozen=True)
class Laid:
    """A value with its layout."""

    value: Value
    layout: Layout

    @property
    def atoms(self) -> Group:
        return every(self.layout)


def sources(flow: Flow, value: Value, layout: Layout) -> Iterator[Laid]:
    """A value, and what it is a view of, and so on."""
    while True:
        yield Laid(value, layout)
        op = value.producer
        source = None if op is None or not op.inputs else flow.value(op.inputs[0])
        inner = None if op is None or source is None else before(op, settled(layout), source)
        if source is None or inner is None:
            return
        value, layout = source, inner


def arranged(emit: Any, x: Laid, target: Layout, repeat: bool) -> Value:
    """x with its atoms in the target's order. Where it lacks all atoms of an axis, that has size 1; with `repeat` it is repeated there, as
    it always is where it lacks some."""
    own, target = set(x.atoms), settled(target)
    wanted = tuple(tuple(axis for axis in group if axis in own) for group in target)
    value = _moved(emit, x, wanted)
    lacking = [bool(set(group) - own) and (repeat or bool(wanted[n])) for n, group in enumerate(target)]
    if any(lacking):
        return _repeated(emit, value, target, own, lacking)
    return value


def _moved(emit: Any, x: Laid, wanted: Layout) -> Value:
    """By runs of atoms that stay side by side."""
    source = settled(x.layout)
    ends = {(group[n], group[n + 1]) for group in wanted for n in range(len(group) - 1)}
    runs: list[list[Any]] = []
    for group in source:
        for n, axis in enumerate(group):
            if n and (group[n - 1], axis) in ends:
                runs[-1].append(axis)
            else:
                runs.append([axis])
    place = {run[0]: n for n, run in enumerate(runs)}
    perm = tuple(place[axis] for group in wanted for axis in group if axis in place)
    value = x.value
    if perm != tuple(range(len(perm))):
        value = emit.transpose(_shaped(emit, value, tuple(size_of(run) for run in runs)), perm=perm)
    return _shaped(emit, value, tuple(size_of(group) for group in wanted))


def _repeated(emit: Any, value: Value, target: Layout, own: set[Any], lacking: list[bool]) -> Value:
    """Along atoms that it lacks, in the axes that say so."""
    shape: list[int] = []  # with an axis for each atom of such axes
    given: list[int] = []
    for n, group in enumerate(target):
        if not lacking[n]:
            shape.append(value.shape[n])
            given.append(value.shape[n])
            continue
        shape += [axis.size for axis in group]
        given += [axis.size if axis in own else 1 for axis in group]
    value = _shaped(emit, value, tuple(given))
    value = emit.broadcast_in_dim(value, shape=tuple(shape), dims=tuple(range(len(shape))))
    whole = tuple(
        size_of(group) if lacking[n] else value_size
        for n, (group, value_size) in enumerate(zip(target, _sizes(target, own)))
    )
    return _shaped(emit, value, whole)


def _sizes(target: Layout, own: set[Any]) -> list[int]:
    return [size_of(axis for axis in group if axis in own) for group in target]


def _shaped(emit: Any, value: Value, shape: tuple[int, ...]) -> Value:
    made: Value = value if value.shape == shape else emit.reshape(value, shape=shape)
    return made
