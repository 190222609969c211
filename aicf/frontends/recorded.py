"""Recorded: a graph that was emitted once, as data. A body that emits it again knows nothing of where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from ..graph.emit.builder import GraphEmitter
from ..graph.emit.declare import Constant
from ..ir import Graph, Role, Value
from ..types import DType

_OF_THE_PROGRAM = frozenset({"precision"})  # attributes that whoever compiles the model sets


@dataclass(frozen=True)
class _Call:
    kind: str
    operands: tuple[int, ...]  # vids; -1 is left out
    results: tuple[int, ...]
    attrs: Mapping[str, Any]
    where: str


@dataclass(frozen=True)
class IndexCheck:
    """A check of indices.

    before  the number of calls that are emitted first
    asked   the arguments of `check_indices`
    """

    before: int
    indices: int  # its vid
    asked: Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """The body of an `Imported` model of one size.

    named       vids of inputs and weights, by name
    constants   vids of numbers
    tables      what ops have made of constant arrays, such as a resize's: by name
    checks      of indices, in the order of the calls
    returned    vids of results, by name
    updates     vids of what weights are at the end of a run, by the weight's name
    """

    named: Mapping[str, int]
    constants: Mapping[int, tuple[float, DType]]
    calls: tuple[_Call, ...]
    returned: Mapping[str, int]
    updates: Mapping[str, int]
    tables: Mapping[str, tuple[tuple[int, ...], Any, DType]]
    checks: Sequence[IndexCheck] = ()

    @classmethod
    def of(cls, graph: Graph, results: Mapping[str, Value], checks: Sequence[IndexCheck] = ()) -> Recorded:
        """A graph whose inputs and weights have the names that the model's have."""
        named, constants = {}, {}
        tables: dict[str, tuple[tuple[int, ...], Any, DType]] = {}
        for value in graph.externals():
            if value.constant and isinstance(value.init, Constant) and value.rank == 0:
                constants[value.vid] = (value.init.value, value.dtype)
            else:
                named[_own_name(value)] = value.vid
                if value.constant and is_dataclass(value.init):  # an initialiser that is a record
                    tables[_own_name(value)] = (value.shape, value.init, value.dtype)
        calls = tuple(
            _Call(
                op.kind,
                op.inputs,
                op.outputs,
                {k: v for k, v in op.attrs.items() if k not in _OF_THE_PROGRAM},
                op.where,
            )
            for op in graph.ops
        )
        returned = {name: value.vid for name, value in results.items()}
        return cls(
            named,
            constants,
            calls,
            returned,
            {graph.values[old].name: new for old, new in graph.updates.items()},
            tables,
            checks,
        )

    def __call__(
        self, ctx: GraphEmitter, inputs: Mapping[str, Value], weights: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Emit it."""
        known = {**inputs, **weights}
        for name, (shape, init, dtype) in self.tables.items():
            if name not in known:
                known[name] = ctx.table(name, shape, init, dtype)
        env: dict[int, Value | None] = {vid: known[name] for name, vid in self.named.items()}
        env.update({vid: ctx.constant(number, dtype) for vid, (number, dtype) in self.constants.items()})
        env[-1] = None
        checks = list(self.checks)[::-1]
        for number, call in enumerate(self.calls):
            while checks and checks[-1].before <= number:
                self._check(ctx, checks.pop(), env, call.where)
            with ctx.at(call.where):
                made = ctx.op(call.kind, *(env[vid] for vid in call.operands), **call.attrs)
            first = made[0] if isinstance(made, tuple) else made
            outputs = first.producer.outputs if len(call.results) > 1 else (first.vid,)
            env.update({old: ctx.builder.graph.values[new] for old, new in zip(call.results, outputs)})
        for check in checks[::-1]:
            self._check(ctx, check, env, "")
        for name, vid in self.updates.items():
            new = env[vid]
            assert new is not None
            ctx.update(known[name], new)
        return {name: value for name, vid in self.returned.items() if (value := env[vid]) is not None}

    @staticmethod
    def _check(ctx: GraphEmitter, check: IndexCheck, env: Mapping[int, Value | None], where: str) -> None:
        with ctx.at(where):
            indices = env[check.indices]
            assert indices is not None
            ctx.check_indices(indices, **check.asked)


def _own_name(value: Value) -> str:
    """What the model calls a value: a table's is marked as a constant's."""
    marked = value.role is Role.state and value.constant
    return value.name.removeprefix("const.") if marked else value.name
