"""What a graph computes of rows of classes and of their labels: picks, however their indices are computed, and what is around them. It is computed
of a few classes, and of labels that are among these: the first and the last, some others, and those on both sides of every number that is met."""

from __future__ import annotations

from heapq import heappop, heappush
from math import prod

import numpy as np

from ...ir import Op, Value
from ...ops.schema import ELEMENTWISE, schema_of
from .axes import FOLDED, MOVED, Group, Layout, atoms, every, fresh, regroup, unify
from .flow import Flow
from .forms import COMPARISONS, EXTREMES, before_moves
from .probe import Labelled, Layouts, Probe, Unknowable
from .softmax import is_plain

FAR = 128  # ops around the logits
CLASSES = 7  # that are computed, and those next to numbers
MOST_CLASSES = 64  # more numbers than these would need are none of a cross entropy
MOST_ROWS = 2**20
PICKS = frozenset({"gather", "take_along_axis", "scatter_add"})
_SIMPLE = MOVED | {"select", "neg", "convert"}  # what is done with numbers of rows before they meet classes


class ClassRegion:
    """The ops that compute with logits, whose last axis is that of classes: element by element, along classes, or by picks.

    logits  with `rows` and `classes` as atoms
    ops     in order; layouts has those of their results
    """

    def __init__(self, flow: Flow, logits: Value) -> None:
        self.flow, self.logits = flow, logits
        layout = fresh(logits.shape)
        self.classes: Group = layout[-1]
        self.rows: Group = every(layout[:-1])
        self.count = prod(logits.shape[:-1])
        self.layouts = Layouts(flow, {logits.vid: layout})
        placed = [op for op in self._near() if self._placed(op)]
        self.rows = atoms(self.rows)
        self.ops = [op for op in placed if self._within(op)]  # when all axes have met
        self.picks = [op for op in self.ops if op.kind in PICKS]
        self.made = {vid for op in self.ops for vid in op.outputs}
        self.sampled = self._sampled()

    # --- which ops --------------------------------------------------------------------------------------------------------

    def _allowed(self, op: Op) -> bool:
        return (is_plain(op) or op.kind in PICKS) and self.flow.result(op).spec.numel in (
            self.count,
            self.count * self.logits.shape[-1],
        )

    def _near(self) -> list[Op]:
        """Ops behind the logits, those before what has classes beside them, and those behind that."""
        flow, whole = self.flow, self.count * self.logits.shape[-1]
        found: dict[int, Op] = {}
        waiting = [op.oid for op in flow.readers(self.logits)]
        while waiting and len(found) < FAR:
            op = flow.graph.ops[heappop(waiting)]
            if op.oid in found or not self._allowed(op):
                continue
            found[op.oid] = op
            near = flow.readers(flow.result(op))
            for value in flow.operands(op):
                maker = value.producer
                if value.vid == self.logits.vid or maker is None or flow.number(value) is not None:
                    continue
                if value.spec.numel == whole or (value.dtype.kind == "float" and maker.kind in _SIMPLE):
                    near.append(maker)
            for other in near:
                heappush(waiting, other.oid)
        return [found[n] for n in sorted(found)]

    def _placed(self, op: Op) -> bool:
        """Whether its result has axes that can be said."""
        if op.kind not in PICKS:
            return self.layouts.follow([op]) is None
        made = self._picked(op)
        if made is not None:
            self.layouts.layouts[self.flow.result(op).vid] = made
        return made is not None

    def _within(self, op: Op) -> bool:
        """Whether they are rows and classes, and nothing is added up but classes."""
        layouts, flow = self.layouts, self.flow
        own = set(every(layouts.of(flow.result(op))))
        lost = set(every(layouts.of(flow.operands(op)[0]))) - own if op.kind in FOLDED else set()
        known = {*self.rows, *self.classes}
        return lost <= set(self.classes) and all(axis in known or axis.free for axis in own)

    def _picked(self, op: Op) -> Layout | None:
        source, indices = self.flow.operands(op)
        layout = self.layouts.of(source)
        rows = atoms(self.rows)
        if op.kind == "take_along_axis":
            axis = op.attrs["axis"]
            one = indices.shape[axis] == 1 and atoms(layout[axis]) == self.classes
            return tuple(() if n == axis else g for n, g in enumerate(layout)) if one else None
        if op.kind == "gather":
            flat = source.rank == 1 and every(layout) == (*rows, *self.classes)
            return regroup((rows,), indices.shape) if flat and indices.spec.numel == self.count else None
        if op.attrs["along"]:
            axis = op.attrs["axis"]
            if source.shape[axis] != 1 or op.attrs["size"] != self.logits.shape[-1]:
                return None
            return tuple(self.classes if n == axis else g for n, g in enumerate(layout))
        if (
            source.rank != 1
            or source.spec.numel != self.count
            or op.attrs["size"] != self.count * self.logits.shape[-1]
        ):
            return None
        return ((*rows, *self.classes),) if unify(layout[0], rows) else None

    def _sampled(self) -> np.ndarray:
        """The classes that are computed, in order."""
        size = self.logits.shape[-1]
        found = {0, 1, size // 2, size - 2, size - 1}
        for number in self._numbers():
            if np.isfinite(number):
                near = {int(np.floor(number)) + n for n in (-1, 0, 1, 2)}
                found |= {n for n in near if 0 <= n < size} | {n % size for n in near}
        rng = np.random.default_rng(size)
        while len(found) < CLASSES:
            found.add(int(rng.integers(size)))
        return np.array(sorted(found))

    def _numbers(self) -> set[float]:
        """The numbers that the ops read, and those that indices and conditions are computed with."""
        flow, numbers, seen = self.flow, set[float](), set[int]()
        waiting = [v for op in self.ops for v in flow.operands(op)]
        while waiting and len(seen) < 4 * FAR:
            value = waiting.pop()
            if value.vid in seen:
                continue
            seen.add(value.vid)
            number, op = flow.number(value), value.producer
            if number is not None:
                numbers.add(number)
            elif value.dtype.kind != "float" and op is not None and is_plain(op):
                waiting += flow.operands(op)
        return numbers

    def places(self, labels: np.ndarray) -> np.ndarray:
        """Where labels are among the sampled classes; their count for what is no class, -1 for a class that is not sampled."""
        found = np.searchsorted(self.sampled, labels)
        hit = self.sampled[np.minimum(found, len(self.sampled) - 1)] == labels
        outside = (labels < 0) | (labels >= self.logits.shape[-1])
        return np.where(hit, found, np.where(outside, len(self.sampled), -1))

    # --- labels -----------------------------------------------------------------------------------------------------------

    def labels(self) -> list[Value]:
        """What the labels may be: integers, one for each row, that all picks are computed of; the first that were made first."""
        flow = self.flow
        slices = [self._integers(flow.operands(op)[1]) for op in self.picks]
        for op in self.ops:
            if op.kind in ("equal", "not_equal") and flow.operands(op)[0].dtype.kind == "int":
                slices += [s for v in flow.operands(op) if (s := self._integers(v))]
        if not slices or len(self.sampled) > MOST_CLASSES:
            return []
        common = set.intersection(*slices)
        found = [flow.value(vid) for vid in common]
        return sorted((v for v in found if v.spec.numel == self.count), key=lambda v: v.vid)

    def _integers(self, value: Value) -> set[int]:
        """Integers that it is computed of, and itself; those that are known are not among them."""
        flow, found, waiting = self.flow, set[int](), [value]
        while waiting and len(found) < FAR:
            one = waiting.pop()
            if one.vid in found or one.dtype.kind != "int" or flow.known(one) is not None:
                continue
            found.add(one.vid)
            op = one.producer
            if op is not None and (op.kind in MOVED or ELEMENTWISE in schema_of(op.kind).traits):
                waiting += flow.operands(op)
        return found

    # --- what is computed -------------------------------------------------------------------------------------------------

    def probe(
        self,
        logits: np.ndarray,
        labels: Value,
        drawn: np.ndarray,
        leaves: dict[int, np.ndarray],
        rng: np.random.Generator,
    ) -> ClassProbe:
        """All that can be computed of logits (rows, sampled classes) and labels; `leaves` has other numbers, which are drawn where they lack."""
        probe = ClassProbe(self, logits, labels, drawn, leaves, rng)
        for op in self.ops:
            try:
                probe.run([op])
            except Unknowable:
                continue
        return probe


class ClassProbe(Probe):
    def __init__(
        self,
        region: ClassRegion,
        logits: np.ndarray,
        labels: Value,
        drawn: np.ndarray,
        leaves: dict[int, np.ndarray],
        rng: np.random.Generator,
    ) -> None:
        self.count = len(region.sampled)
        sizes = {axis: axis.size for axis in region.rows} | dict.fromkeys(region.classes, self.count)
        order = (*region.rows, *region.classes)
        array = logits.reshape([sizes[axis] for axis in order])
        super().__init__(region.layouts, sizes, {region.logits.vid: (array, order)})
        self.region, self.leaves = region, leaves
        self.integers: dict[int, np.ndarray | None] = {
            labels.vid: drawn.reshape(labels.shape).astype(labels.dtype.numpy)
        }
        self.rng = rng

    def rows_of(self, value: Value) -> np.ndarray:
        """A value of rows, or of rows and classes, as a matrix."""
        region = self.region
        own = set(self.arrays[value.vid][1])
        if own & set(region.classes):
            return self.whole(value, (*region.rows, *region.classes)).reshape(region.count, self.count)
        return self.whole(value, region.rows).reshape(region.count)

    def _read(self, value: Value) -> Labelled:
        if value.vid in self.arrays:
            return self.arrays[value.vid]
        number = self.flow.number(value)
        if number is not None:
            return super()._read(value)
        if value.vid in self.region.made:
            raise Unknowable(value.name)
        layout = self.domain.of(value)
        own = every(layout)
        op = value.producer
        along = atoms(layout[op.attrs["axis"]]) if op is not None and op.kind == "iota" else ()
        if along and along == self.region.classes:
            self.arrays[value.vid] = self.region.sampled.astype(value.dtype.numpy), along
        elif not set(own) <= set(self.region.rows):
            raise Unknowable(value.name)
        elif value.dtype.kind == "float":
            if value.vid not in self.leaves:
                self.leaves[value.vid] = self.rng.normal(size=[axis.size for axis in own])
            self.arrays[value.vid] = self.leaves[value.vid], own
        else:
            array = self.integer(value)
            self.arrays[value.vid] = array.reshape([axis.size for axis in own]), own
        return self.arrays[value.vid]

    def _compares_rows(self, op: Op) -> bool:
        """Whether integers are compared with the numbers of rows, or with other known ones of each row: few drawn labels would be equal to them."""
        if op.kind not in COMPARISONS | EXTREMES:
            return False
        return any(v.dtype.kind == "int" and self._is_of_rows(v) for v in self.flow.operands(op))

    def _is_of_rows(self, value: Value) -> bool:
        """Whether integers are known, and other ones in each row."""
        if self.flow.number(value) is not None:
            return False
        value = before_moves(self.flow, value)
        op = value.producer
        if op is not None and op.kind == "iota" and value.rank > 1:
            return bool({*atoms(self.domain.of(value)[op.attrs["axis"]])} & {*self.region.rows})
        return value.spec.numel == self.region.count and self.flow.known(value) is not None

    def integer(self, value: Value) -> np.ndarray:
        """The elements of integers and bools, of the labels and of constants, at their own sizes."""
        if value.vid not in self.integers:
            self.integers[value.vid] = self._whole_integer(value)
        array = self.integers[value.vid]
        if array is None:
            raise Unknowable(value.name)
        return array

    def _whole_integer(self, value: Value) -> np.ndarray | None:
        known = self.flow.known(value)
        op = value.producer
        if known is not None or op is None or value.dtype.kind == "float" or len(op.outputs) != 1:
            return known
        if not (is_plain(op) or op.kind == "iota") or self._compares_rows(op):
            return None
        operands = [self.integer(v) for v in self.flow.operands(op)]
        (made,) = schema_of(op.kind).call_reference(operands, op.attrs)
        return made

    def _computed(self, op: Op) -> Labelled:
        if self._compares_rows(op):
            raise Unknowable(op.kind)
        if op.kind not in PICKS:
            return super()._computed(op)
        region = self.region
        source, indices = self.flow.operands(op)
        label = self._classes_of(op, self.integer(indices))
        if op.kind == "scatter_add":
            own = every(self.domain.of(source))
            values = (
                self.whole(source, region.rows).reshape(region.count)
                if own
                else np.full(region.count, self._read(source)[0])
            )
            made = np.zeros((region.count, self.count))
            hit = (label >= 0) & (label < self.count)
            made[hit, label[hit]] = values[hit]
            made[~hit & (values != 0), :] = np.nan
            return made.reshape([self.sizes[a] for a in (*region.rows, *region.classes)]), (
                *region.rows,
                *region.classes,
            )
        rows = self.whole(source, (*region.rows, *region.classes)).reshape(region.count, self.count)
        inside = (label >= 0) & (label < self.count)
        picked = np.where(inside, rows[np.arange(region.count), np.where(inside, label, 0)], np.nan)
        return picked.reshape([self.sizes[a] for a in region.rows]), region.rows

    def _classes_of(self, op: Op, indices: np.ndarray) -> np.ndarray:
        """The place of the class that each row picks among those that are sampled (`ClassRegion.places`)."""
        region, size = self.region, self.region.logits.shape[-1]
        flat = indices.reshape(-1).astype(np.int64)
        if op.kind == "take_along_axis" or op.attrs.get("along"):
            flat = np.where(flat < 0, flat + size, flat)
            return region.places(flat)
        whole = region.count * size
        flat = np.where(flat < 0, flat + whole, flat)
        row, label = np.divmod(flat, size)
        return region.places(np.where((row == np.arange(region.count)) & (flat < whole), label, size))
