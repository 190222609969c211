"""What a part of a graph computes, found by computing it: in f64, at sizes of one's own, by the ops' references. Conversions between floats round
nothing here, since what counts is the function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ...ir import Op, Value
from ...ops.schema import schema_of
from .axes import ALONG, FOLDED, MOVED, Axis, Group, Layout, aligned, atoms, behind, every, fresh
from .flow import Flow

Labelled = tuple[np.ndarray, Group]  # an array with an atom for each axis


class Layouts:
    """Layouts of the values of some ops. What they read from elsewhere has a layout of its own, whose atoms are those that it meets."""

    def __init__(self, flow: Flow, start: Mapping[int, Layout]) -> None:
        self.flow, self.layouts = flow, dict(start)

    def of(self, value: Value) -> Layout:
        if value.vid not in self.layouts:
            self.layouts[value.vid] = fresh(value.shape, free=True)
        return tuple(atoms(group) for group in self.layouts[value.vid])

    def follow(self, ops: Iterable[Op]) -> Op | None:
        """Find the layouts of all results, in order; or the first op that has none."""
        for op in ops:
            operands = self.flow.operands(op)
            result = self.flow.result(op)
            made = behind(op, [self.of(v) for v in operands], operands, result.shape)
            if made is None:
                return op
            known = self.layouts.get(result.vid)
            if known is not None and aligned([known, made], [result.shape] * 2, result.shape) is None:
                return op
            self.layouts[result.vid] = made
        return None


class Unknowable(Exception):
    """A value that depends on something that no probe was given."""


class Probe:
    """Values of a domain whose atoms have sizes of one's own.

    given  arrays of some values, with an atom for each axis
    """

    def __init__(self, domain: Layouts, sizes: Mapping[Axis, int], given: Mapping[int, Labelled]) -> None:
        self.domain, self.flow, self.sizes = domain, domain.flow, sizes
        self.arrays = dict(given)

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            result = self.flow.result(op)
            if result.vid not in self.arrays:
                self.arrays[result.vid] = self._computed(op)

    def whole(self, value: Value, order: Group) -> np.ndarray:
        """A value's elements along these atoms."""
        return self._along(self._read(value), order)

    def _read(self, value: Value) -> Labelled:
        if value.vid in self.arrays:
            return self.arrays[value.vid]
        number = self.flow.number(value)
        if number is None:
            raise Unknowable(value.name)
        kind = value.dtype.kind
        return np.asarray(number, np.float64 if kind == "float" else value.dtype.numpy), ()

    def _spread(self, labelled: Labelled, order: Group) -> np.ndarray:
        """An array with its axes in this order, 1 of those that it lacks."""
        array, own = labelled
        if unknown := [axis for axis in order if axis not in self.sizes]:
            raise Unknowable(f"an axis of {unknown[0].size}")
        array = np.transpose(array, [own.index(axis) for axis in order if axis in own])
        return array.reshape([self.sizes[a] if a in own else 1 for a in order])

    def _along(self, labelled: Labelled, order: Group) -> np.ndarray:
        return np.broadcast_to(self._spread(labelled, order), [self.sizes[axis] for axis in order])

    def _computed(self, op: Op) -> Labelled:
        operands = self.flow.operands(op)
        result = self.flow.result(op)
        if op.kind in MOVED:
            return self._read(operands[0])
        layout = self.domain.of(operands[0])
        if op.kind in FOLDED:
            over = {axis for n in op.attrs["axes"] for axis in atoms(layout[n])}
            order = every(layout)
            array = self.whole(operands[0], order)
            axes = tuple(n for n, axis in enumerate(order) if axis in over)
            if not axes:
                return array, order
            attrs = {**op.attrs, "axes": axes, "keepdims": False}
            (made,) = schema_of(op.kind).call_reference([array], attrs)
            return made, tuple(axis for axis in order if axis not in over)
        if op.kind in ALONG:
            return self._along_axis(op, operands, layout)
        read = [self._read(v) for v in operands]
        if op.kind == "convert" and result.dtype.kind == "float":
            return read[0][0].astype(np.float64), read[0][1]
        order = tuple(dict.fromkeys(axis for _, own in read for axis in own))
        arrays = [self._spread(labelled, order) for labelled in read]
        with np.errstate(all="ignore"):
            (made,) = schema_of(op.kind).call_reference(arrays, op.attrs)
        return np.broadcast_to(made, [self.sizes[x] for x in order]), order

    def _along_axis(self, op: Op, operands: Sequence[Value], layout: Layout) -> Labelled:
        along = atoms(layout[op.attrs["axis"]])
        others = tuple(axis for axis in every(layout) if axis not in along)
        order = (*others, *along)
        arrays = [self.whole(v, order).reshape([*(self.sizes[a] for a in others), -1]) for v in operands]
        with np.errstate(all="ignore"):
            (made,) = schema_of(op.kind).call_reference(arrays, {**op.attrs, "axis": -1})
        if op.kind == "logsumexp":
            return made[..., 0], others
        return made.reshape([self.sizes[a] for a in order]), order
