"""Walks a StableHLO module and emits aicf's ops: calls inlined, what nothing reads left out, all that aicf lacks named at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...errors import AttrError, FrontendError, TypeInferenceError, VerifyError
from ...graph.emit.builder import GraphEmitter
from ...graph.emit.evaluate import FoldBudget, price_of
from ...ir import Op, Value
from ...ops.schema import schema_of
from ...types import DType, TensorSpec
from .loops import LoopRows
from .nodes import Body, Function, Operation, StableModule, TensorType, called
from .table import RULES, UnsupportedForm

MAX_OPERATIONS = 1_000_000  # of a module whose calls are inlined
MAX_BYTES = 2**40  # of one tensor
KNOWN_ELEMENTS = 2**16  # of a value that is computed while the graph is read
_EFFECTS = frozenset(
    {"stablehlo.custom_call", "stablehlo.send", "stablehlo.recv", "stablehlo.outfeed", "stablehlo.infeed"}
)


class Emission:
    """One walk of a module into one graph. A rule is given it, the node, and the node's operands."""

    def __init__(self, module: StableModule, ctx: GraphEmitter) -> None:
        self.module, self.ctx = module, ctx
        self.problems: dict[str, list[str]] = defaultdict(list)  # what can't be emitted -> where
        self._where = [""]
        self._live: dict[int, tuple[Operation, ...]] = {}
        self._known: dict[int, np.ndarray | None] = {}
        self._budget = FoldBudget()
        self._tables = 0
        self.unrolled = 0  # operations of loops' turns
        self.loops: list[LoopRows] = []  # that are scans, around what is emitted

    def main(self, operands: Sequence[Value]) -> list[Value]:
        """Emit the whole module; FrontendError with everything that can't be."""
        function = self.module.functions[self.module.main]
        check_size(self.module)
        made = self.call(function, operands)
        if self.problems:
            raise _refusal(self.problems)
        return made

    def call(self, function: Function, operands: Sequence[Value]) -> list[Value]:
        return self.run(function.body, operands, {})

    def run(self, body: Body, operands: Sequence[Value], outer: Mapping[int, Value]) -> list[Value]:
        """Emit a body of these arguments; `outer` has the values around it."""
        values = {**outer, **dict(zip(body.arguments, operands))}
        for node in self._needed(body):
            with self._at(node.where):
                made = self._emitted(node, values)
            values.update(zip(node.results, made))
        return [values[n] for n in body.returned]

    @contextmanager
    def _at(self, where: str) -> Iterator[None]:
        """Messages give this line; where there is none, that of the call around it."""
        self._where.append(where or self._where[-1])
        try:
            with self.ctx.at(self._where[-1]):
                yield
        finally:
            self._where.pop()

    def _emitted(self, node: Operation, values: Mapping[int, Value]) -> Sequence[Value]:
        try:
            if (name := called(node)) is not None:
                return self.call(self.module.functions[name], [values[n] for n in node.operands])
            if node.name not in RULES:
                raise UnsupportedForm("")
            _check_types(node.types)
            operands = [values[n] for n in node.operands]
            more = {"outer": values} if node.bodies else {}
            made = RULES[node.name](self, node, *operands, **more)
            results = list(made) if isinstance(made, (tuple, list)) else [made]
            _check_results(node, results)
            return results
        except UnsupportedForm as refusal:
            self._refuse(node, str(refusal))
        except (TypeInferenceError, AttrError, VerifyError) as error:
            self._refuse(node, error.what)
        return [self._placeholder(kind) for kind in node.types]

    def _refuse(self, node: Operation, reason: str) -> None:
        target = f" @{node.attrs['call_target_name']}" if "call_target_name" in node.attrs else ""
        self.problems[f"{node.name}{target}{': ' if reason else ''}{reason}"].append(self._where[-1])

    def _placeholder(self, kind: TensorType) -> Value:
        """Stands for what can't be emitted, so that the walk finds the rest of it."""
        shape, dtype = (kind.shape, kind.dtype) if _held(kind) is None else ((), DType.f32)
        number: Value = self.ctx.constant(0, dtype)
        return self.ctx.broadcast_in_dim(number, shape=shape, dims=()) if shape else number

    def _needed(self, body: Body) -> tuple[Operation, ...]:
        """The nodes that what it returns needs, and those with effects."""
        if id(body) not in self._live:
            needed, kept = set(body.returned), []
            for node in reversed(body.nodes):
                if needed.isdisjoint(node.results) and not _has_effect(node):
                    continue
                kept.append(node)
                needed.update(node.operands)
                for inner in node.bodies:
                    for within in inner.walk():
                        needed.update(within.operands)
                    needed.update(inner.returned)
            self._live[id(body)] = tuple(reversed(kept))
        return self._live[id(body)]

    # --- for rules --------------------------------------------------------------------------------------------------------

    def number(self, value: float, like: DType) -> Value:
        return self.ctx.constant(value, like)

    def spread(self, x: Value, shape: tuple[int, ...], dims: tuple[int, ...] | None = None) -> Value:
        """x repeated to a shape, its axes as dims says: by default they are the last. A repeated x that is repeated again is repeated once."""
        if dims is None:
            dims = tuple(range(len(shape) - x.rank, len(shape)))
        if x.shape == shape:
            return x
        op = x.producer
        if op is not None and op.kind == "broadcast_in_dim":
            source, inner = self.ctx.builder.graph.values[op.inputs[0]], op.attrs["dims"]
            if all(
                n == x.shape[d] or x.shape[d] == shape[dims[d]] == 1 or n == 1
                for n, d in zip(source.shape, inner)
            ):
                x, dims = source, tuple(dims[d] for d in inner)
        return self.ctx.broadcast_in_dim(x, shape=shape, dims=dims)

    def bare(self, x: Value) -> Value:
        """What x repeats, if NumPy would repeat it so: elementwise ops broadcast by themselves."""
        op = x.producer
        if op is None or op.kind != "broadcast_in_dim":
            return x
        source = self.ctx.builder.graph.values[op.inputs[0]]
        last = tuple(range(x.rank - source.rank, x.rank))
        return source if op.attrs["dims"] == last else x

    def known(self, x: Value) -> np.ndarray | None:
        """The elements of a value that depends on constants alone, if they are few."""
        values, waiting = self.ctx.builder.graph.values, [x]
        while waiting:  # a chain of ops may be longer than Python's stack
            value = waiting[-1]
            few = value.spec.numel <= KNOWN_ELEMENTS and value.producer is not None
            needed = (
                [values[vid] for vid in value.producer.inputs if vid >= 0] if few and value.producer else []
            )
            missing = [] if value.vid in self._known else [v for v in needed if v.vid not in self._known]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if value.vid not in self._known:
                self._known[value.vid] = self._computed(value)
        return self._known[x.vid]

    def _computed(self, x: Value) -> np.ndarray | None:
        """The elements of a value whose operands were looked at."""
        if x.spec.numel > KNOWN_ELEMENTS:
            return None
        if x.producer is None:
            if not x.constant or x.init is None:
                return None
            return np.asarray(x.init(x.shape, np.random.default_rng(0))).astype(x.dtype.numpy)
        operands = [self._known[vid] for vid in x.producer.inputs if vid >= 0]
        if len(operands) < len(x.producer.inputs) or any(n is None for n in operands):
            return None
        if self._budget.spend(*price_of(self.ctx.builder.graph, x.producer)):
            return None
        return self._evaluated(x.producer, operands)[x.producer.outputs.index(x.vid)]

    def _evaluated(self, op: Op, operands: Sequence[Any]) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(y) for y in schema_of(op.kind).call_reference(list(operands), op.attrs)]

    def table(self, array: np.ndarray) -> Value:
        """A constant of several values."""
        self._tables += 1
        return self.ctx.table(
            f"stablehlo.{self._tables}", array.shape, lambda shape, rng: array, DType.of(array.dtype)
        )


def _has_effect(node: Operation) -> bool:
    return node.name in _EFFECTS and bool(
        node.attrs.get("has_side_effect", node.name != "stablehlo.custom_call")
    )


def _held(kind: TensorType) -> str | None:
    """Why aicf has no such tensor; None if it has."""
    if kind.dtype is None:
        return f"aicf lacks {kind.lacking}"
    size = kind.dtype.itemsize
    for n in kind.shape:
        size *= n
    return f"{kind} has {size:.1e} bytes, {MAX_BYTES:.1e} or more" if size >= MAX_BYTES else None


def _check_types(types: Sequence[TensorType]) -> None:
    for kind in types:
        if (why := _held(kind)) is not None:
            raise UnsupportedForm(why)


def specs_of(types: Sequence[TensorType], names: Sequence[str]) -> dict[str, TensorSpec]:
    """The specs of a function's arguments; FrontendError for those that aicf can't have."""
    problems = {
        f"{name}: {why}": [""] for name, kind in zip(names, types) if (why := _held(kind)) is not None
    }
    if problems:
        raise _refusal(problems)
    return {name: TensorSpec(kind.shape, kind.dtype or DType.f32) for name, kind in zip(names, types)}


def _check_results(node: Operation, results: Sequence[Value]) -> None:
    made = [(v.shape, v.dtype) for v in results]
    expected = [(kind.shape, kind.dtype) for kind in node.types]
    if made != expected:
        raise VerifyError(f"the rule of {node.name} made {made}, the module says {expected}")


def check_size(module: StableModule) -> None:
    """That no function calls itself, and how many operations there are once calls are inlined."""
    counts: dict[str, int] = {}
    path: list[str] = []

    def count(name: str) -> int:
        if name in path:
            raise FrontendError(
                "functions of this StableHLO module call each other in a circle",
                got=" -> ".join([*path, name]),
            )
        if name not in module.functions:
            raise FrontendError(f"this StableHLO module calls {name!r}, which it does not have")
        if name not in counts:
            path.append(name)
            if len(path) > 200:
                raise FrontendError("functions of this StableHLO module call each other more than 200 deep")
            counts[name] = sum(
                count(inner) if (inner := called(node)) is not None else 1
                for node in module.functions[name].body.walk()
            )
            path.pop()
        return counts[name]

    if (total := count(module.main)) > MAX_OPERATIONS:
        raise FrontendError(
            "this StableHLO module is too large",
            expected=f"up to {MAX_OPERATIONS} operations, calls inlined",
            got=f"{total:.2g}",
        )


def _refusal(problems: Mapping[str, Sequence[str]]) -> FrontendError:
    """One error with all that is missing, the commonest first."""
    ordered = sorted(problems.items(), key=lambda item: (-len(item[1]), item[0]))
    details = []
    for what, places in ordered[:40]:
        at = next((place for place in places if place), "")
        details.append(f"{len(places)} x {what}" + (f"   at {at}" if at else ""))
    total = sum(map(len, problems.values()))
    return FrontendError(
        f"aicf lacks {total} of the operations of this StableHLO module", details=details,
        hint="docs/frontends.md lists what it has; aicf.jax.jit(f, fallback='jax') leaves the whole function to JAX",
    )  # fmt: skip
