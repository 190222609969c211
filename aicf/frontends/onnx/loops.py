"""Scan, Loop and If: nodes with graphs in them. A Scan, and a Loop whose number of turns is known, are scans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from ...errors import AttrError, TypeInferenceError, VerifyError
from ...ir import Value
from ...types import DType, numel
from .graph import MOST_DEPTH, OnnxNode, nodes_of
from .operands import NONE, Operand, Refusal, plain
from .reading import array_of, bad

MOST_TURNS = (1 << 31) - 1  # of a Loop that counts them: it would go on for hours
MOST_UNROLLED = 4096  # nodes of all turns of a Loop that can be no scan, since its turns differ in shape
Calls = tuple[tuple[str, str], ...]


class Inner:
    """The graph of an attribute, where its node stands."""

    def __init__(
        self, walk: Any, node: OnnxNode, name: str, env: Mapping[str, Any], opsets: Mapping[str, int], calls: Calls
    ) -> None:  # fmt: skip
        if len(calls) >= MOST_DEPTH:
            raise bad(f"branches lie {MOST_DEPTH} deep in each other", where=node.where)
        self.walk, self.node, self.name, self.env, self.opsets = walk, node, name, env, opsets
        self.calls = (*calls, ("", f"{name} of {node.where}"))
        self.graph = plain(node.attrs[name], walk.document.source, node)
        self.inputs = [info.name for info in self.graph.input]
        self.outputs = [info.name for info in self.graph.output]

    def results(self, given: Sequence[Operand | None]) -> list[Operand]:
        """What it makes of these inputs; Refusal where it can't be expressed."""
        walk, source = self.walk, self.walk.document.source
        inner: Any = {
            name: copy(x) if isinstance(x, Operand) and x.value is None and not x.weight else x
            for name, x in self.env.items()
        }  # what is declared inside may be gone outside; weights stay
        for tensor in self.graph.initializer:
            inner[tensor.name] = Operand(array_of(tensor, source, f"initializer {tensor.name!r}"))
        inner |= dict(zip(self.inputs, given))
        nodes = nodes_of(self.graph.node, inner, f"{self.name} › ")
        before = len(walk.refused)
        walk.emit(nodes, inner, self.opsets, self.calls)
        if lacking := walk.refused[before:]:
            del walk.refused[before:]
            kinds = sorted({f"{r.op} ({r.reason})" for r in lacking})
            raise Refusal(
                f"its {self.name} needs {', '.join(kinds)}",
                frozenset[str]().union(*(r.needs for r in lacking)),
            )
        if missing := [name for name in self.outputs if name not in inner]:
            raise bad(f"{self.name} makes no {missing[0]!r}", where=self.node.where)
        made = [inner[name] for name in self.outputs]
        if not all(isinstance(x, Operand) for x in made):
            raise Refusal(f"its {self.name} reads what nodes before it could not make")
        return made


def branch(inner: Inner, other: Inner, condition: Operand) -> list[Operand]:
    """Both branches, and a selection: what an If whose condition is computed makes."""
    walk, ctx = inner.walk, inner.walk.ctx
    both = [[walk.declare(x) for x in part.results([])] for part in (inner, other)]
    if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(*both)):
        raise Refusal(
            "its condition is computed, and its branches make tensors of other shapes", condition.sources
        )
    flag = walk.declare(condition)
    flag = flag.reshape() if flag.rank else flag
    return [Operand(value=ctx.select(flag, a, b), sources=condition.sources) for a, b in zip(*both)]


def scan(inner: Inner, operands: Sequence[Operand | None], attr: Any) -> list[Operand]:
    """A Scan of ONNX: its axes and directions are those of operands and results around a scan."""
    walk, ctx, node = inner.walk, inner.walk.ctx, inner.node
    count = attr("num_scan_inputs")
    if (
        not 0 < count <= len(operands)
        or any(x is None for x in operands)
        or len(inner.inputs) != len(operands)
    ):
        raise bad(
            f"Scan has {len(operands)} operands, {count} of them to be scanned, and its body {len(inner.inputs)} inputs",
            where=node.where,
        )
    given = [walk.declare(x) for x in operands if x is not None]
    carry, rows = given[:-count], given[-count:]
    axes, ways = _each(attr("scan_input_axes"), count), _each(attr("scan_input_directions"), count)
    xs = [_turned(ctx, _first(ctx, x, axis, node), way) for x, axis, way in zip(rows, axes, ways)]
    kept = len(carry)

    def step(state: Any, x: Any) -> Any:
        made = inner.results([Operand(value=v) for v in (*state, *x)])
        values = [walk.declare(y) for y in made]
        return tuple(values[:kept]), tuple(values[kept:])

    end, ys = ctx.scan(step, tuple(carry), tuple(xs))
    axes, ways = _each(attr("scan_output_axes"), len(ys)), _each(attr("scan_output_directions"), len(ys))
    shown = [_back(ctx, _turned(ctx, y, way), axis, node) for y, axis, way in zip(ys, axes, ways)]
    return [Operand(value=v, sources=_sources(operands)) for v in (*end, *shown)]


def loop(inner: Inner, operands: Sequence[Operand | None]) -> list[Operand]:
    """A Loop: a scan where its turns are counted by its first operand alone, else a while_loop, which shows no rows."""
    most, goes_on, *state = operands
    for x, name in ((most, "the number of its iterations"), (goes_on, "its condition")):
        if x is not None and numel(x.shape) != 1:
            raise bad(f"Loop: {name} is {x.spec}", expected="one element", where=inner.node.where)
    known = None if most is None else most.array
    turns = None if known is None else max(int(known.reshape(())), 0)
    if goes_on is not None:
        first = goes_on.array
        turns = None if first is None else turns if first.reshape(-1)[0] else 0
    if turns is not None:
        try:
            return _counted(inner, turns, state, operands)
        except _Decided:
            pass
    return _as_while(inner, most, goes_on, state, operands)


class _Decided(Refusal):
    """A turn computes whether there is another one."""


def _as_while(
    inner: Inner, most: Operand | None, goes_on: Operand | None, state: Sequence[Operand | None], operands: Sequence[Operand | None]
) -> list[Operand]:  # fmt: skip
    walk, ctx = inner.walk, inner.walk.ctx
    sources = _sources(operands)
    if ctx.device != "cpu":
        raise Refusal("data decide how many turns it has, which no kernel for CUDA has", sources)
    if len(inner.outputs) > 1 + len(state):
        raise Refusal("data decide how many turns it has, and so the shape of what it shows", sources)
    if any(x is None for x in state):
        raise Refusal("a value that it carries is left out", sources)
    limit = None if most is None else walk.declare(most).reshape()
    first = ctx.constant(True, DType.bool) if goes_on is None else walk.declare(goes_on).reshape()
    zero = ctx.constant(0, DType.i64)

    def more(values: Any) -> Value:
        on: Value = values[1]
        return on if limit is None else ctx.logical_and(on, ctx.less(values[0], limit))

    def turn(values: Any) -> Any:
        made = [walk.declare(y) for y in inner.results([Operand(value=v) for v in values])]
        return (values[0] + 1, made[0].reshape(), *made[1:])

    carry = (zero, first, *(walk.declare(x) for x in state if x is not None))
    return [Operand(value=v, sources=sources) for v in ctx.while_loop(more, turn, carry)[2:]]


def _counted(
    inner: Inner, turns: int, state: Sequence[Operand | None], operands: Sequence[Operand | None]
) -> list[Operand]:
    builder = inner.walk.ctx.builder
    mark = builder.mark()
    weights = [x for x in inner.env.values() if isinstance(x, Operand) and x.weight and x.value is None]

    def rewind() -> None:
        builder.rewind(mark)
        for weight in weights:
            weight.value = None

    try:
        return _as_scan(inner, turns, state, operands)
    except (TypeInferenceError, AttrError, VerifyError, Refusal) as error:
        if turns * max(len(inner.graph.node), 1) > MOST_UNROLLED:
            if isinstance(error, Refusal):
                raise
            raise Refusal(
                f"{error.what}; and {turns} iterations of {len(inner.graph.node)} nodes are more than the {MOST_UNROLLED} nodes that are unrolled"
            ) from error
        rewind()
    try:
        return _unrolled(inner, turns, state)
    except _Decided:
        rewind()
        raise


def _as_scan(
    inner: Inner, turns: int, state: Sequence[Operand | None], operands: Sequence[Operand | None]
) -> list[Operand]:
    walk, ctx = inner.walk, inner.walk.ctx
    carry = tuple(walk.declare(x) for x in state if x is not None)

    def step(values: Any, number: Value) -> Any:
        made = inner.results(
            [Operand(value=number), Operand(np.array(True)), *(Operand(value=v) for v in values)]
        )
        if made[0].array is None or not made[0].array.reshape(-1)[0]:
            raise _Decided("a turn computes whether there is another one", made[0].sources)
        after = [walk.declare(y) for y in made[1:]]
        return tuple(after[: len(carry)]), tuple(after[len(carry) :])

    numbers = ctx.iota(shape=(turns,), axis=0, dtype=DType.i64)
    end, ys = ctx.scan(step, carry, numbers)
    if turns > MOST_TURNS:
        raise Refusal(
            f"it has {turns} iterations, of which no step of its body ends it, and aicf runs up to {MOST_TURNS}"
        )
    return [Operand(value=v, sources=_sources(operands)) for v in (*end, *ys)]


def _unrolled(inner: Inner, turns: int, state: Sequence[Operand | None]) -> list[Operand]:
    walk, ctx = inner.walk, inner.walk.ctx
    current, shown = list(state), list[list[Value]]()
    for turn in range(turns):
        made = inner.results([Operand(np.array(turn, np.int64)), Operand(np.array(True)), *current])
        if made[0].array is None:
            raise _Decided("a turn computes whether there is another one", made[0].sources)
        current = list(made[1 : 1 + len(state)])
        shown.append([walk.declare(y) for y in made[1 + len(state) :]])
        if not made[0].array.reshape(-1)[0]:
            break
    if not shown and len(inner.outputs) > 1 + len(state):
        raise Refusal("it has no turn, and shows what turns make")
    stacks = [
        ctx.concatenate(*(y.reshape(1, *y.shape) for y in rows), axis=0)
        if len(rows) > 1
        else rows[0].reshape(1, *rows[0].shape)
        for rows in zip(*shown)
    ]
    return [*(x for x in current if x is not None), *(Operand(value=v) for v in stacks)]


def _each(given: Sequence[int] | None, count: int) -> list[int]:
    return list(given) if given else [0] * count


def _first(ctx: Any, x: Value, axis: int, node: OnnxNode) -> Value:
    """The axis of the steps in front."""
    if not -x.rank <= axis < x.rank:
        raise bad(f"Scan: axis {axis} is not in [-{x.rank}, {x.rank})", where=node.where)
    at = axis % x.rank
    return x if at == 0 else ctx.transpose(x, perm=(at, *(a for a in range(x.rank) if a != at)))


def _back(ctx: Any, y: Value, axis: int, node: OnnxNode) -> Value:
    """The axis of the steps, which is the first one, where the node wants it."""
    if not -y.rank <= axis < y.rank:
        raise bad(f"Scan: axis {axis} is not in [-{y.rank}, {y.rank})", where=node.where)
    order = list(range(1, y.rank))
    order.insert(axis % y.rank, 0)
    return y if axis % y.rank == 0 else ctx.transpose(y, perm=tuple(order))


def _turned(ctx: Any, x: Value, way: int) -> Value:
    return ctx.reverse(x, dims=(0,)) if way else x


def _sources(operands: Sequence[Operand | None]) -> frozenset[str]:
    return frozenset[str]().union(*(x.sources for x in operands if x is not None)) if operands else NONE
