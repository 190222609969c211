"""From a checked model to a graph. Every node becomes ops by its rule, or by the nodes of the function that defines it, or is
refused; what is refused is collected, so that one error names all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import AicfError, AttrError, TypeInferenceError, VerifyError
from ...graph.emit.builder import GraphEmitter
from ...ir import Value
from ...types import TensorSpec
from ..imported import Weight
from .fold import budget_of, folded, kept_known, room, stays_a_weight
from .functions import NUMBERS, body_of, defined_by
from .graph import MOST_DEPTH, MOST_NODES, NEWEST, Document, OnnxNode
from .loops import Inner, branch, loop, scan
from .operands import NONE, Call, Operand, Refusal, check_attributes, constant
from .reading import bad, library
from .table import OnnxRule, find, without_rule

MOST_BYTES = 1 << 42  # of one tensor
BROKEN = (TypeInferenceError, AttrError, VerifyError, Refusal)
LARGE = "{} of constants makes {}, which is too large to be computed while the model is read"
# What Python and NumPy raise of numbers in a file that a rule does not foresee: a file may state any.
UNFORESEEN = (ArithmeticError, LookupError, MemoryError, ValueError)


class _Unknown:
    """The result of a node that was refused."""


UNKNOWN = _Unknown()
Env = dict[str, "Operand | _Unknown | None"]


@dataclass
class RefusedNode:
    """A node that can't be expressed."""

    op: str
    where: str
    reason: str
    needs: frozenset[str] = NONE
    of_sizes: bool = False  # its operands' sizes may be why


@dataclass
class OnnxWalk:
    """One emission of a model.

    weights  initializers that are declared, by name; those of others become constants. None in a walk that finds out which are read
    asked    initializers that were read as they are
    """

    document: Document
    ctx: GraphEmitter
    weights: Mapping[str, Value] | None
    asked: dict[str, Weight] = field(default_factory=dict)
    refused: list[RefusedNode] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.budget = budget_of(self.document)

    def run(
        self, inputs: Mapping[str, Value], constants: Mapping[str, np.ndarray]
    ) -> dict[str, Value] | None:
        """Emit the model; its outputs, or None where something was refused."""
        env: Env = {name: Operand(value=value, sources=frozenset((name,))) for name, value in inputs.items()}
        env |= {name: Operand(array) for name, array in constants.items()}
        for name, array in self.document.arrays.items():
            env[name] = Operand(unread=array, weight=name)
        self.emit(self.document.nodes, env, self.document.opsets, ())
        if self.refused:
            return None
        return {name: self._result(name, env[name], kind) for name, kind in self.document.outputs.items()}

    def _result(self, name: str, x: Any, kind: int) -> Value:
        if x is None:
            raise bad(f"the output {name!r} is left out by the node that would make it")
        value = self.declare(x)
        if kind and NUMBERS[value.dtype] != kind:
            raise bad(
                f"the output {name!r} is declared with another element type",
                expected=kind,
                got=f"{NUMBERS[value.dtype]}, {value.spec}",
            )
        return value

    def declare(self, x: Operand) -> Value:
        """An operand in the graph."""
        if x.value is None:
            if x.weight and x.unread is not None and _is_weight(x.spec):
                self.asked.setdefault(x.weight, Weight(x.spec, x.unread.read))
                if self.weights is None:
                    x.value = self.ctx.param(x.weight, x.shape, _unmade, x.dtype)
                else:
                    x.value = self.weights.get(x.weight)
            if x.value is None:
                array = x.array
                assert array is not None
                x.value = constant(self.ctx, array)
        return x.value

    # --- nodes --------------------------------------------------------------------------------------------------------

    def emit(
        self,
        nodes: Iterable[OnnxNode],
        env: Env,
        opsets: Mapping[str, int],
        calls: tuple[tuple[str, str], ...],
    ) -> None:
        for node in nodes:
            self.count += 1
            if self.count > MOST_NODES:
                raise bad(
                    f"the model has more than {MOST_NODES} nodes when its functions are expanded",
                    where=node.where,
                )
            operands = [env[name] if name else None for name in node.inputs]
            try:
                with self.ctx.at(f"ONNX {node.where}"):
                    results = self._results(node, operands, env, opsets, calls)
            except Refusal as refusal:
                self.refused.append(
                    RefusedNode(node.kind, node.where, refusal.reason, refusal.needs, refusal.of_sizes)
                )
                results = None
            for n, name in enumerate(node.outputs):
                if name:
                    env[name] = UNKNOWN if results is None else results[n]

    def _results(
        self, node: OnnxNode, operands: Sequence[Any], env: Env, opsets: Mapping[str, int], calls: tuple[tuple[str, str], ...]
    ) -> Sequence[Operand | None] | None:  # fmt: skip
        """What a node makes; None where its operands are unknown, since nodes before it were refused."""
        unknown = any(x is UNKNOWN for x in operands)
        local = self.document.functions.get((node.domain, node.op))
        if local is not None:
            return None if unknown else self._called(node, local, None, list(operands), opsets, calls)
        version = opsets.get(node.domain)
        if version is None:
            raise bad(
                f"the model names no version of the ops of {node.domain or 'ai.onnx'!r}", where=node.where
            )
        schema = _schema(node, version)
        check_attributes(node, schema)
        if not node.domain and (
            node.op in ("If", "Loop") or (node.op == "Scan" and schema.since_version >= 9)
        ):
            return None if unknown else self._branch(node, operands, env, opsets, calls)
        found = find(node.domain, node.op, schema.since_version)
        if unknown:
            if found is None and not (schema.has_function or schema.has_context_dependent_function):
                raise Refusal(without_rule(node.domain, node.op, schema.since_version))
            return None
        reason: Exception | None = None
        if found is not None:
            mark = self.ctx.builder.mark()
            try:
                return self._by_rule(found, node, schema, list(operands))
            except BROKEN as error:
                self.ctx.builder.rewind(mark)
                reason = error
            except UNFORESEEN as error:
                if isinstance(error, AicfError):
                    raise
                raise bad(
                    f"{node.op} can't be read: {error}", where=node.where, got=", ".join(str(x and x.spec) for x in operands),
                ) from error  # fmt: skip
        function = defined_by(node, schema, min(version, NEWEST), list(operands))
        if function is None:
            if reason is None:
                raise Refusal(without_rule(node.domain, node.op, schema.since_version))
            raise _refusal(reason)
        before = len(self.refused)
        results = self._called(node, function, schema, list(operands), opsets, calls)
        lacking = self.refused[before:]
        if lacking:
            del self.refused[before:]
            needs = frozenset[str]().union(*(r.needs for r in lacking))
            if reason is not None:
                refusal = _refusal(reason)
                raise Refusal(refusal.reason, refusal.needs | needs)
            kinds = sorted({f"{r.op} ({r.reason})" for r in lacking})
            raise Refusal(f"its definition needs {', '.join(kinds)}", needs)
        return results

    def _by_rule(
        self, found: OnnxRule, node: OnnxNode, schema: Any, operands: list[Operand | None]
    ) -> Sequence[Operand | None]:
        given = [x for x in operands if x is not None]
        known = found.folds and all(x.is_known for x in given)
        stays = known and stays_a_weight(node, operands)
        why = next((x.why for x in given if x.why), "")
        if known and not stays:
            made = folded(self.document, self.budget, found, node, schema, operands)
            if not isinstance(made, str):
                return made
            why = made
        sources = frozenset[str]().union(*(x.sources for x in given))
        results = self._wrapped(
            node, found.function(self._call(node, schema, operands), *_padded(operands, schema)), sources
        )
        for x in results:
            if x is not None and not x.is_known:
                x.why = why or (LARGE.format(node.op, x.spec) if all(o.is_known for o in given) else "")
        if stays:
            kept_known(self.document, self.budget, found, node, schema, operands, results)
        return results

    def _call(self, node: OnnxNode, schema: Any, operands: Sequence[Operand | None]) -> Call:
        return Call(
            self.ctx, node, schema.since_version, schema, self.document.source, operands, self.declare, self.budget
        )  # fmt: skip

    def _wrapped(self, node: OnnxNode, made: Any, sources: frozenset[str]) -> Sequence[Operand | None]:
        results: list[Operand | None] = []
        for x in made if isinstance(made, tuple) else (made,):
            if x is not None and not isinstance(x, Operand):
                x = (
                    Operand(value=x, sources=sources)
                    if isinstance(x, Value)
                    else self._table(node, np.asarray(x))
                )
            if x is not None and room(x.spec) > MOST_BYTES:
                raise bad(
                    f"{node.op} makes a tensor that no machine holds", got=str(x.spec), where=node.where
                )
            results.append(x)
        return [*results, *[None] * (len(node.outputs) - len(results))]

    def _table(self, node: OnnxNode, array: np.ndarray) -> Operand:
        """What a rule has computed without a graph; the elements of a Constant are the file's own."""
        if node.op != "Constant" and (why := self.budget.spend(array.nbytes)):
            raise Refusal(why)
        return Operand(array)

    # --- functions and branches -----------------------------------------------------------------------------------------

    def _called(
        self, node: OnnxNode, function: Any, schema: Any, operands: list[Any], opsets: Mapping[str, int], calls: tuple[tuple[str, str], ...]
    ) -> Sequence[Operand | None] | None:  # fmt: skip
        """The nodes of a function in the place of its call."""
        key = node.domain, node.op
        if key in calls:
            raise bad(f"the function {node.kind} calls itself", where=node.where)
        if len(calls) >= MOST_DEPTH:
            raise bad(f"functions call each other {MOST_DEPTH} deep", where=node.where)
        body = body_of(function, node, schema, "")
        given = dict(zip(body.inputs, operands))
        env: Env = {name: given.get(name) for name in body.inputs}
        before = len(self.refused)
        self.emit(body.nodes, env, {**opsets, **body.opsets}, (*calls, key))
        if len(self.refused) > before:
            return None
        results = [env.get(name) for name, _ in zip(body.outputs, node.outputs)]
        return [x if isinstance(x, Operand) else None for x in results]

    def _branch(
        self, node: OnnxNode, operands: Sequence[Any], env: Env, opsets: Mapping[str, int], calls: tuple[tuple[str, str], ...]
    ) -> Sequence[Operand | None] | None:  # fmt: skip
        """The one branch of an If whose condition is known, or a selection; a Scan or a Loop."""
        schema = _schema(node, opsets[""])

        def inner(name: str) -> Inner:
            made = Inner(self, node, name, env, opsets, calls)
            if node.op == "If" and len(made.outputs) != len(node.outputs):
                raise bad(f"{name} has {len(made.outputs)} outputs, If {len(node.outputs)}", where=node.where)
            return made

        if node.op == "If":
            condition = operands[0]
            if condition is None:
                raise Refusal("it has no condition")
            if (array := condition.array) is None or array.size != 1:
                return branch(inner("then_branch"), inner("else_branch"), condition)
            return inner("then_branch" if array.reshape(-1)[0] else "else_branch").results([])
        try:
            made = (
                scan(inner("body"), operands, self._call(node, schema, operands).attr)
                if node.op == "Scan"
                else loop(inner("body"), operands)
            )
        except (TypeInferenceError, AttrError, VerifyError) as error:
            raise _refusal(error) from error
        return [*made, *[None] * (len(node.outputs) - len(made))]


def _unmade(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Of a weight in a graph that is not kept."""
    raise AssertionError(shape)


def _schema(node: OnnxNode, version: int) -> Any:
    defs = library().defs
    with suppress(defs.SchemaError):
        return defs.get_schema(node.op, version, node.domain)
    raise Refusal(f"ONNX has no such op in version {version} of {node.domain or 'ai.onnx'!r}")


def _padded(operands: list[Operand | None], schema: Any) -> list[Operand | None]:
    """One for each that the op takes; a variadic one takes all there are."""
    most = schema.max_input
    return operands if most > 1000 else [*operands, *[None] * (most - len(operands))]


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    parts = [getattr(error, "what", str(error)), *getattr(error, "details", ())[:1]]
    return Refusal(
        "; ".join(" ".join(part.split()) for part in parts), of_sizes=isinstance(error, TypeInferenceError)
    )


def _is_weight(spec: TensorSpec) -> bool:
    return spec.rank > 0 and spec.dtype.kind == "float"
