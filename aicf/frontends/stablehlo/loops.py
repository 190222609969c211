"""A loop whose number of turns is known, as a scan.

JAX's `lax.scan`, `map` and `fori_loop` come as `while`: a counter, what is carried, and arrays of which each turn reads or writes row
`counter`. The counter is run on the host while the module is read. Then rows that turns read in order are the scan's operands,
rows that they write in order its results, and no turn copies a whole array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...graph.emit.evaluate import STEPS, executions
from ...ir import Role, Subgraph, Value
from ...ops.scan import results_of
from ...ops.schema import schema_of
from ...types import TensorSpec
from .nodes import Operation

MAX_TURNS = 100_000  # that are counted while a module is read
FEW = 64  # elements of a number that is looked at in each turn
UNROLLED = 256  # operations of all turns: a loop of no more is unrolled, so that what its turns do is fused


@dataclass
class Counters:
    """The values of the loop that are known in each turn.

    turns   how many there are
    values  by place in the loop's state: what it is in each turn, and at the end
    """

    turns: int
    values: dict[int, tuple[np.ndarray, np.ndarray]]


def counters_of(
    e: Any, node: Operation, state: Sequence[Value], outer: Mapping[int, Value]
) -> tuple[Counters | None, set[int]]:
    """What is known of a loop's turns; None if their number is not. And the places of the state that no turn changes."""
    specs, problems = [v.spec for v in state], {what: list(places) for what, places in e.problems.items()}
    goes_on, turn = (
        e.ctx.traced("while", lambda *inside, b=body: e.run(b, inside, outer), specs) for body in node.bodies
    )
    e.problems.clear()
    e.problems.update(problems)  # what can't be emitted is told when the body is
    same = {n for n in range(len(state)) if turn.body.results[n] == n}
    known = [e.known(v) for v in state]
    places = _closed(goes_on.body, turn.body, same, len(state))
    read = [[e.known(v) for v in t.read] for t in (goes_on, turn)]
    needed = [
        _only(goes_on.body, goes_on.body.results),
        _only(turn.body, [turn.body.results[n] for n in sorted(places)]),
    ]
    for sub, more in zip(needed, read):
        for value in {v for op in sub.ops for v in op.inputs} | set(sub.results):
            if value < len(state):
                if value >= 0 and known[value] is None:
                    return None, same
            elif value < sub.takes and more[value - len(state)] is None:
                return None, same
    return _counted(needed, [known, known], read, sorted(places), len(state)), same


def _closed(condition: Subgraph, turn: Subgraph, same: set[int], count: int) -> set[int]:
    """The places of the state on which it depends whether there is another turn."""
    found, waiting = set[int](), _read_by(condition, condition.results)
    while waiting := {v for v in waiting if v < count and v not in found}:
        found |= waiting
        waiting = _read_by(turn, [turn.results[n] for n in waiting])
    return found - same


def _read_by(sub: Subgraph, results: Sequence[int]) -> set[int]:
    """The operands that these results depend on."""
    needed = set(results)
    for op in reversed(sub.ops):
        if needed.intersection(op.outputs):
            needed.update(v for v in op.inputs if v >= 0)
    return {v for v in needed if v < sub.takes}


def _only(sub: Subgraph, results: Sequence[int]) -> Subgraph:
    needed, ops = set(results), []
    for op in reversed(sub.ops):
        if needed.intersection(op.outputs):
            needed.update(op.inputs)
            ops.append(op)
    return Subgraph(sub.takes, tuple(reversed(ops)), tuple(results))


def _counted(
    subs: Sequence[Subgraph], known: Any, read: Any, places: list[int], count: int
) -> Counters | None:
    condition, turn = subs
    most = min(MAX_TURNS, STEPS // max(executions(condition) + executions(turn), 1))
    state, seen = list(known[0]), list[list[Any]]()
    nothing = np.zeros(())
    with np.errstate(all="ignore"):
        while True:
            given = [nothing if v is None else v for v in state]
            (goes_on,) = results_of(condition, [*given, *read[0]])
            if not goes_on:
                break
            if len(seen) == most:
                return None
            seen.append([state[n] for n in places])
            for n, value in zip(places, results_of(turn, [*given, *read[1]])):
                state[n] = value
    rows = [np.stack([values[n] for values in seen]) if seen else np.empty(0) for n in range(len(places))]
    return Counters(len(seen), {n: (each, np.asarray(state[n])) for n, each in zip(places, rows)})


@dataclass
class LoopRows:
    """What the turns of a loop read and write row by row, found while its body is emitted.

    first     values from this vid on are of the body
    counters  by vid: what it is in each turn
    buffers   by vid: places of the state that may be written row by row
    read      (vid, row of the first turn, whether the next ones are before it) -> the row of a turn
    written   by place of the state: the row of a turn, what stands for the whole, whether the next ones are before it
    """

    e: Any
    turns: int
    first: int
    counters: dict[int, np.ndarray] = field(default_factory=dict)
    buffers: dict[int, int] = field(default_factory=dict)
    read: dict[tuple[int, int, bool], Value] = field(default_factory=dict)
    written: dict[int, tuple[Value, Value, bool]] = field(default_factory=dict)

    def row(self, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> Value | None:
        """The row of x that a turn reads, as a slice of these sizes; None if it reads something else."""
        at = self._at(x, starts, sizes) if x.vid < self.first else None
        if at is None:
            return None
        if (x.vid, *at) not in self.read:
            self.read[x.vid, *at] = self.placeholder(replace(x.spec, shape=x.shape[1:]))
        return self.read[x.vid, *at].reshape(*sizes)

    def write(self, x: Value, update: Value, starts: Sequence[Value]) -> Value | None:
        """What stands for a part of the state of which each turn writes the next row, all of them in the end; None if it is none."""
        place = self.buffers.get(x.vid)
        at = self._at(x, starts, update.shape) if place is not None and x.shape[0] == self.turns else None
        if at is None or place is None or place in self.written:
            return None
        self.written[place] = update.reshape(*x.shape[1:]), self.placeholder(x.spec), at[1]
        return self.written[place][1]

    def placeholder(self, spec: TensorSpec) -> Value:
        made: Value = self.e.ctx.builder.value("while.row", spec, Role.tmp)
        return made

    def _at(self, x: Value, starts: Sequence[Value], sizes: Sequence[int]) -> tuple[int, bool] | None:
        """(the row of the first turn, whether the next ones are before it), if each turn is at the next row of x."""
        if (
            x.rank == 0
            or sizes[0] != 1
            or tuple(sizes[1:]) != x.shape[1:]
            or (index := self._each_turn(starts[0])) is None
        ):
            return None
        first, step = int(index[0]), int(index[-1] > index[0]) - int(index[-1] < index[0]) or 1
        if not np.array_equal(index, first + step * np.arange(self.turns)):
            return None
        return (first, step < 0) if min(index) >= 0 and max(index) < x.shape[0] else None

    def _each_turn(self, index: Value) -> np.ndarray | None:
        """What a number is in each turn, if it depends on counters alone."""
        values, found = self.e.ctx.builder.graph.values, dict[int, list[Any] | None]()

        def each(value: Value) -> list[Any] | None:
            if value.vid not in found:
                found[value.vid] = None
                found[value.vid] = computed(value)
            return found[value.vid]

        def computed(value: Value) -> list[Any] | None:
            if value.vid in self.counters:
                return list(self.counters[value.vid])
            if (fixed := self.e.known(value)) is not None:
                return [fixed] * self.turns
            op = value.producer
            if op is None or value.vid < self.first or value.spec.numel > FEW:
                return None
            given = [each(values[vid]) if vid >= 0 else [None] * self.turns for vid in op.inputs]
            if any(rows is None for rows in given):
                return None
            at, schema = op.outputs.index(value.vid), schema_of(op.kind)
            return [schema.call_reference(row, op.attrs)[at] for row in zip(*given)]

        with np.errstate(all="ignore"):
            rows = each(index)
        return None if rows is None else np.array([int(np.asarray(v).reshape(())) for v in rows])


def as_scan(
    e: Any, node: Operation, state: Sequence[Value], outer: Mapping[int, Value], known: Counters, same: set[int]
) -> list[Value]:  # fmt: skip
    """The loop's state after its turns, of which there is one at the least."""
    refused: set[int] = set()
    while True:
        made, wrong = _emitted(e, node, state, outer, known, same, refused)
        if not wrong:
            return made
        refused |= wrong


def _emitted(
    e: Any, node: Operation, state: Sequence[Value], outer: Mapping[int, Value], known: Counters, same: set[int], refused: set[int]
) -> tuple[list[Value], set[int]]:  # fmt: skip
    ctx, turns, changing = (
        e.ctx,
        known.turns,
        [n for n in range(len(state)) if n not in same and n not in known.values],
    )
    rows = LoopRows(e, turns, len(ctx.builder.graph.values))
    operands: list[Value] = []
    inside = list(state)
    after: list[Value] = []
    kept: list[int] = []
    counted: list[int] = []

    def body() -> list[Value]:
        for n in (*changing, *known.values):
            inside[n] = rows.placeholder(state[n].spec)
        rows.counters = {inside[n].vid: each for n, (each, _) in known.values.items()}
        rows.buffers = {inside[n].vid: n for n in changing if n not in refused and state[n].rank}
        e.loops.append(rows)
        try:
            after.extend(e.run(node.bodies[1], inside, outer))
        finally:
            e.loops.pop()
        kept.extend(n for n in changing if n not in rows.written)
        used = {v.vid for v in (*(after[n] for n in kept), *(row for row, _, _ in rows.written.values()))}
        for op in reversed(ctx.builder.graph.ops):
            if used.intersection(op.outputs):
                used.update(op.inputs)
        counted.extend(n for n in known.values if inside[n].vid in used)
        operands.extend([*(inside[n] for n in (*kept, *counted)), *rows.read.values()])
        return [*(after[n] for n in kept), *(row for row, _, _ in rows.written.values())]

    problems = {what: list(places) for what, places in e.problems.items()}
    traced = ctx.traced("while", body, (), operands)
    read = {v.vid for v in traced.read}
    wrong = {
        n
        for n, (_, whole, _) in rows.written.items()
        if after[n].vid != whole.vid or not read.isdisjoint((inside[n].vid, whole.vid))
    }
    if wrong:
        e.problems.clear()
        e.problems.update(problems)
        return [], wrong
    ways = [*(down for _, _, down in rows.written.values()), *(down for _, _, down in rows.read)]
    back = bool(ways) and ways[0]

    def turned(x: Value, down: bool) -> Value:
        return x if down == back else ctx.reverse(x, dims=(0,))

    values = ctx.builder.graph.values
    stacked = [turned(e.table(known.values[n][0]), False) for n in counted]
    stacked += [
        turned(_part(ctx, values[vid], first - (turns - 1) * down, turns), down)
        for vid, first, down in rows.read
    ]
    made = ctx.op(
        "scan", *(state[n] for n in kept), *stacked, *traced.read, body=traced.body, carried=len(kept), stacked=len(stacked),
        length=turns, reverse=back,
    )  # fmt: skip
    result = [*state]
    for n, (_, end) in known.values.items():
        result[n] = (
            ctx.constant(end.item(), state[n].dtype)
            if state[n].rank == 0
            else e.table(end.astype(state[n].dtype.numpy))
        )
    for n, value in zip(kept, made):
        result[n] = value
    for (n, (_, _, down)), value in zip(rows.written.items(), made[len(kept) :]):
        result[n] = turned(value, down)
    return result, set()


def as_while(
    e: Any, node: Operation, state: Sequence[Value], outer: Mapping[int, Value], same: set[int]
) -> list[Value]:
    """The loop's state after its turns, of which data decide how many there are."""
    changing = [n for n in range(len(state)) if n not in same]

    def inside(body: int, values: Sequence[Value]) -> list[Value]:
        whole = list(state)
        for n, value in zip(changing, values):
            whole[n] = value
        around, e.loops = e.loops, []  # nothing in here is a row of theirs
        try:
            made: list[Value] = e.run(node.bodies[body], whole, outer)
        finally:
            e.loops = around
        return made

    def turn(values: Sequence[Value]) -> tuple[Value, ...]:
        made = inside(1, values)
        return tuple(made[n] for n in changing)

    end = e.ctx.while_loop(lambda values: inside(0, values)[0], turn, tuple(state[n] for n in changing))
    result = list(state)
    for n, value in zip(changing, end):
        result[n] = value
    return result


def _part(ctx: Any, x: Value, first: int, count: int) -> Value:
    if count == x.shape[0]:
        return x
    made: Value = ctx.slice(x, start=(first, *[0] * (x.rank - 1)), limit=(first + count, *x.shape[1:]))
    return made
