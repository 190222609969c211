"""The gradient of a norm, spelt out in a graph that brings its own backward pass: what is computed of a row's statistics, and of the gradient of what
they normalise, is the gradient of layer_norm or rms_norm, maybe added to another one. The forward pass is one kernel as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from ...ir import Op, Value
from ...types import DType
from .arrange import Laid, arranged
from .attention import TYPES
from .axes import Layout, every, fresh
from .flow import CameClose, Edit, Flow
from .forms import FormOps, reached, refused, stray
from .norm_rows import EXACT, RowProbe, hard_rows
from .probe import Labelled, Layouts, Unknowable
from .softmax import between, is_plain

ANCHORS = frozenset({"rsqrt", "sqrt"})
FAR = 64  # ops behind the statistics
UP = 24  # values before them
NARROWEST, WIDEST = 8, 2**16  # rows that are computed
NORM = FormOps("the gradient of a norm", frozenset({"sqrt", "rsqrt", "power"}))


@dataclass(frozen=True)
class Statistics:
    """Of rows of x, along its last axis: `spread` is 1 / sqrt(v + eps), or sqrt(v + eps) if `inverse`, of the mean v of squares; about the
    mean, if there is one. `stray`: an op that a norm has not; it only came close."""

    x: Value
    layout: Layout
    mean: Value | None
    spread: Value
    inverse: bool
    ops: tuple[Op, ...]
    stray: Op | None


@dataclass(frozen=True)
class FoundSlope:
    """`value` is the gradient of x, plus `other`, of the gradient of x normalised: `of`, times a weight for each column."""

    stats: Statistics
    layouts: Layouts
    value: Value
    of: Value
    weight: Value | None
    other: Value | None
    ops: tuple[Op, ...]


def find_slope(flow: Flow, op: Op) -> FoundSlope | None:
    """What follows from statistics that end in this op; None where it is no gradient, or they are those of no norm. CameClose says what is in the
    way."""
    spread = flow.result(op)
    readers = flow.readers(spread)
    while len(readers) == 1 and flow.result(readers[0]).spec.numel == spread.spec.numel:
        readers = flow.readers(flow.result(readers[0]))
    if len(readers) < 2:
        return None  # a forward pass alone reads them once
    stats = _statistics(flow, op)
    return None if stats is None else _Backwards(flow, stats).found()


# --- statistics -------------------------------------------------------------------------------------------------------


def _statistics(flow: Flow, op: Op) -> Statistics | None:
    spread = flow.result(op)
    close: Statistics | None = None
    for x in _rows_before(flow, spread):
        ops = between(flow, x, spread)
        if not ops:
            continue
        layout = fresh(x.shape)
        layouts = Layouts(flow, {x.vid: layout})
        if layouts.follow(ops) is not None or len(every(layout[-1:])) != 1:
            continue
        if set(every(layouts.of(spread))) != set(every(layout[:-1])):
            continue
        probe = RowProbe(layouts, layout, {})
        try:
            probe.run(ops)
        except Unknowable:
            continue
        found = _named(flow, probe, x, ops, spread, op.kind == "sqrt")
        if found is not None and found.stray is None:
            return found
        close = close or found
    return close


def _rows_before(flow: Flow, spread: Value) -> list[Value]:
    """Values that have these rows, the first that were made first."""
    found, waiting, seen = [], [spread], set[int]()
    while waiting and len(seen) < UP:
        value = waiting.pop(0)
        op = value.producer
        if value.vid in seen:
            continue
        seen.add(value.vid)
        if (
            value.rank > 1
            and NARROWEST <= value.shape[-1] <= WIDEST
            and spread.spec.numel * value.shape[-1] == value.spec.numel
            and value.dtype in TYPES
        ):
            found.append(value)
        if op is not None and is_plain(op) and flow.number(value) is None:
            waiting += flow.operands(op)
    return sorted(found, key=lambda v: v.vid)


def _named(
    flow: Flow, probe: RowProbe, x: Value, ops: Sequence[Op], spread: Value, inverse: bool
) -> Statistics | None:
    """The statistics of a norm, if that is what was computed."""
    rows = probe.matrix(x)
    made = probe.rows_of(spread)
    with np.errstate(all="ignore"):
        total = made**2 if inverse else made**-2.0
    mean = rows.mean(-1)
    for centred in (True, False):
        v = ((rows - mean[:, None] * centred) ** 2).mean(-1)
        eps = total - v
        numbers = [n for op in ops for o in flow.operands(op) if (n := flow.number(o)) is not None and n >= 0]
        if not any(np.allclose(eps, n, rtol=1e-5, atol=1e-12) for n in (0.0, *numbers)):
            continue
        of = None
        if centred:
            near = [flow.result(op) for op in ops]
            of = next(
                (
                    v
                    for v in near
                    if v.vid in probe.arrays
                    and probe.is_row(v)
                    and np.allclose(probe.rows_of(v), mean, rtol=EXACT)
                ),
                None,
            )
            if of is None:
                return None
        other = stray(flow, NORM, ops, {x.vid}, lambda op: probe.is_decided(op, rows))
        return Statistics(x, probe.domain.of(x), of, spread, inverse, tuple(ops), other)
    return None


# --- what follows from them -------------------------------------------------------------------------------------------


class _Backwards:
    def __init__(self, flow: Flow, stats: Statistics) -> None:
        self.flow, self.stats = flow, stats
        self.layouts = Layouts(flow, {stats.x.vid: stats.layout})
        self.whole, self.count = stats.x.spec.numel, stats.spread.spec.numel

    def found(self) -> FoundSlope | None:
        flow, stats = self.flow, self.stats
        ops = [op for op in self._near() if self.layouts.follow([op]) is None]
        leaves: dict[int, Labelled] = {}
        probe = RowProbe(self.layouts, stats.layout, leaves)
        for op in ops:
            try:
                probe.run([op])
            except Unknowable:
                continue
        slopes = self._slopes(probe)
        whole = {vid: probe.matrix(v) for vid in leaves if probe.is_whole(v := flow.value(vid))}
        close: CameClose | None = None
        for op in ops:
            value = flow.result(op)
            if value.vid not in probe.arrays or not probe.is_whole(value) or value.dtype.kind != "float":
                continue
            made = probe.matrix(value)
            for of, weight, slope in slopes:
                rest, near = made - slope, EXACT * float(np.abs(slope).max())
                nothing = _is_near(rest, 0.0, near)
                other = next(
                    (
                        vid
                        for vid, x in whole.items()
                        if vid != of.vid and not nothing and _is_near(rest, x, near)
                    ),
                    None,
                )
                if not nothing and other is None:
                    continue
                residual = None if other is None else flow.value(other)
                try:
                    self._confirm(probe, ops, value, of, weight, residual)
                except CameClose as why:
                    close = close or why
                    continue
                return FoundSlope(stats, self.layouts, value, of, weight, residual, dying(flow, value))
        if close is not None:
            raise close
        return None

    def _confirm(
        self, probe: RowProbe, ops: Sequence[Op], value: Value, of: Value, weight: Value | None, other: Value | None
    ) -> None:  # fmt: skip
        """CameClose unless a value is computed by a norm's ops alone, and is its gradient of hard rows, too."""
        flow, stats, x = self.flow, self.stats, probe.matrix(self.stats.x)
        if stats.stray is not None:
            raise refused(NORM, stats.stray)
        own = reached(flow, [value, stats.spread], ops, {stats.x.vid})
        found = stray(flow, NORM, own, {stats.x.vid}, lambda op: probe.is_decided(op, x))
        if found is not None:
            raise refused(NORM, found)
        numbers = {abs(n) for op in own for v in flow.operands(op) if (n := flow.number(v))}
        rows = hard_rows(numbers)
        names, draws = [*rows], [*rows.values()]
        for first in range(1 if probe.rows else len(draws)):  # a single row is drawn again and again
            one = RowProbe(self.layouts, stats.layout, {}, draws[first:] + draws[:first], 100 + first)
            with np.errstate(all="ignore"):
                one.run(own)
                made, (slope, largest) = one.matrix(value), self._slope(one, of, weight)
                rest = made - slope - (0.0 if other is None else one.matrix(other))
                near = EXACT * largest + 1e-12 * np.abs(made).max(-1, keepdims=True)
                # where the op's is no number, the graph's may be another one
                good = ((np.abs(rest) <= near) | ~np.isfinite(made) | ~np.isfinite(slope)).all(-1)
            if not good.all():
                bad = (int(np.argmin(good)) + first) % len(names)
                raise CameClose(f"it is another gradient where rows are {names[bad]}")

    def _near(self) -> list[Op]:
        """The statistics' ops and those behind them."""
        flow = self.flow
        found = {op.oid: op for op in self.stats.ops}
        waiting = [reader.oid for op in self.stats.ops for reader in flow.readers(flow.result(op))]
        heapify(waiting)
        while waiting and len(found) < FAR + len(self.stats.ops):
            op = flow.graph.ops[heappop(waiting)]
            if (
                op.oid in found
                or not is_plain(op)
                or flow.result(op).spec.numel not in (self.whole, self.count)
            ):
                continue
            found[op.oid] = op
            for reader in flow.readers(flow.result(op)):
                heappush(waiting, reader.oid)
            self._before(op, found)
        return [found[n] for n in sorted(found)]

    def _before(self, op: Op, found: dict[int, Op]) -> None:
        """Add what an op reads of rows that are added up, and of x, but for what else those are made of."""
        flow, x = self.flow, self.stats.x
        waiting = flow.operands(op)
        while waiting and len(found) < 2 * FAR:
            value = waiting.pop()
            maker = value.producer
            if (
                value.vid == x.vid
                or maker is None
                or maker.oid in found
                or not is_plain(maker)
                or flow.number(value) is not None
            ):
                continue
            of_x = any(v.vid == x.vid or between(flow, x, v) for v in flow.operands(maker))
            if value.spec.numel == self.count or (value.spec.numel == self.whole and of_x):
                found[maker.oid] = maker
                waiting += flow.operands(maker)

    def _slopes(self, probe: RowProbe) -> list[tuple[Value, Value | None, np.ndarray]]:
        """(of, weight, what the gradient of x is) for each that may be that of x normalised."""
        flow = self.flow
        given = [flow.value(vid) for vid in probe.leaves]
        columns = [v for v in given if set(probe.arrays[v.vid][1]) == set(probe.features)]
        found: list[tuple[Value, Value | None, np.ndarray]] = []
        for of in filter(probe.is_whole, given):
            for weight in (None, *columns):
                found.append((of, weight, self._slope(probe, of, weight)[0]))
        return found

    def _slope(self, probe: RowProbe, of: Value, weight: Value | None) -> tuple[np.ndarray, np.ndarray]:
        """The gradient of x of that of x normalised, and the largest of the terms that it is the sum of in each row."""
        x, spread = probe.matrix(self.stats.x), probe.rows_of(self.stats.spread)[:, None]
        rstd = 1 / spread if self.stats.inverse else spread
        h = (x - x.mean(-1, keepdims=True) * (self.stats.mean is not None)) * rstd
        g = probe.matrix(of) * (1.0 if weight is None else probe.whole(weight, probe.features).reshape(-1))
        centre = g.mean(-1, keepdims=True) if self.stats.mean is not None else 0.0
        return (g - centre - h * (g * h).mean(-1, keepdims=True)) * rstd, np.abs(g * rstd).max(
            -1, keepdims=True
        )


def _is_near(x: np.ndarray, y: np.ndarray | float, by: float) -> bool:
    """By a few elements first, which most of what is asked fails."""
    difference = x - y if isinstance(y, float) else x[0, :4] - y[0, :4]
    if np.abs(difference.flat[:4]).max() > by:
        return False
    return bool(np.abs(x - y).max() <= by)


def dying(flow: Flow, value: Value) -> tuple[Op, ...]:
    """The ops that nothing needs any more once a value is made in another way: its own first of all."""
    found: dict[int, Op] = {}
    waiting = [value.producer]
    while waiting:
        op = waiting.pop()
        if op is None or op.oid in found or len(op.outputs) != 1 or not is_plain(op):
            continue
        result = flow.result(op)
        if result.vid != value.vid and (
            flow.is_returned(result) or any(r.oid not in found for r in flow.readers(result))
        ):
            continue
        found[op.oid] = op
        waiting += [v.producer for v in flow.operands(op)]
    return tuple(found[n] for n in sorted(found))


# --- what stands in its place -----------------------------------------------------------------------------------------


class SlopeEdit:
    def __init__(self, flow: Flow, found: FoundSlope) -> None:
        self.flow, self.found = flow, found

    def edits(self) -> list[Edit]:
        producer = self.found.value.producer
        assert producer is not None
        return [(producer, self.made)]

    def made(self) -> list[tuple[Value, Value]]:
        emit: Any = self.flow.ctx
        found = self.found
        stats, layouts = found.stats, found.layouts
        whole = stats.layout
        column = (*whole[:-1], ())
        dtype = stats.x.dtype if stats.x.dtype is found.of.dtype else DType.f32
        x, g = (
            self._as(arranged(emit, Laid(v, layouts.of(v)), whole, repeat=True), dtype)
            for v in (stats.x, found.of)
        )
        spread = self._as(
            arranged(emit, Laid(stats.spread, layouts.of(stats.spread)), column, repeat=True), DType.f32
        )
        rstd = emit.div(1.0, spread) if stats.inverse else spread
        weight = found.weight
        if weight is not None:
            weight = arranged(emit, Laid(weight, layouts.of(weight)), whole[-1:], repeat=True)
        if stats.mean is None:
            slope = emit.rms_norm_grad(g, x, rstd, weight)
        else:
            mean = self._as(
                arranged(emit, Laid(stats.mean, layouts.of(stats.mean)), column, repeat=True), DType.f32
            )
            slope = emit.layer_norm_grad(g, x, mean, rstd, weight)
        target = layouts.of(found.value)
        slope = self._as(arranged(emit, Laid(slope, whole), target, repeat=True), found.value.dtype)
        if found.other is not None:
            other = arranged(emit, Laid(found.other, layouts.of(found.other)), target, repeat=True)
            slope = emit.add(self._as(other, found.value.dtype), slope)
        return [(found.value, slope)]

    def _as(self, value: Value, dtype: DType) -> Value:
        emit: Any = self.flow.ctx
        made: Value = value if value.dtype is dtype else emit.convert(value, dtype=dtype)
        return made


def described(found: FoundSlope) -> str:
    kind = "rms_norm" if found.stats.mean is None else "layer_norm"
    return f"{kind} of {found.stats.x.shape[-1]}" + ", added to another one" * (found.other is not None)
