"""What a rule is given: operands that are Values, or arrays known while the graph is read; and the node, with its attributes checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...graph.emit.evaluate import FoldBudget
from ...ir import Value
from ...types import DType, TensorSpec, rounded
from ...weights import UnreadArray
from .graph import OnnxNode
from .reading import Source, array_of, bad, library

NONE: frozenset[str] = frozenset()


class Refusal(Exception):
    """Why aicf can't express a node.

    needs     inputs whose values would have to be known
    of_sizes  whether the sizes of its operands may be why
    """

    def __init__(self, reason: str, needs: frozenset[str] = NONE, of_sizes: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.needs, self.of_sizes = reason, needs, of_sizes


class Operand:
    """A tensor on the way: `array` where it is known while the graph is read, `value` once it is in the graph.

    unread   in the place of an array: it is read each time that it is asked for
    weight   the initializer it is, by name; else ""
    origin   of what the graph computes of weights alone: which nodes do, of which
    why      of what could be known: why it is not computed while the graph is read; else ""
    sources  inputs that it depends on
    """

    __slots__ = ("_array", "origin", "sources", "spec", "unread", "value", "weight", "why")

    def __init__(
        self, array: np.ndarray | None = None, value: Value | None = None, weight: str = "", sources: frozenset[str] = NONE,
        unread: UnreadArray | None = None,
    ) -> None:  # fmt: skip
        self._array, self.unread, self.value = array, unread, value
        self.weight, self.sources = weight, sources
        self.origin: Any = None
        self.why = ""
        if value is not None:
            self.spec = value.spec
        elif unread is not None:
            self.spec = unread.spec
        else:
            assert array is not None
            self.spec = TensorSpec(array.shape, DType.of(array.dtype))

    @property
    def array(self) -> np.ndarray | None:
        return self.unread.read() if self._array is None and self.unread is not None else self._array

    @property
    def is_known(self) -> bool:
        """Whether there is an array, which need not be read for that."""
        return self._array is not None or self.unread is not None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def rank(self) -> int:
        return self.spec.rank

    @property
    def dtype(self) -> DType:
        return self.spec.dtype


Given = Operand | Value | np.ndarray | int | float | bool


class Call:
    """A node as its rule sees it. `n.op("add", a, b)` emits; operands are Operands, Values, arrays or numbers."""

    def __init__(
        self, ctx: Any, node: OnnxNode, since: int, schema: Any, source: Source, operands: Sequence[Operand | None],
        declare: Callable[[Operand], Value], budget: FoldBudget,
    ) -> None:  # fmt: skip
        self.ctx, self.node, self.since, self.schema, self.source = ctx, node, since, schema, source
        self.operands, self._declare, self.budget = operands, declare, budget

    # --- emitting -----------------------------------------------------------------------------------------------------

    def op(self, kind: str, *operands: Given | None, **attrs: Any) -> Any:
        """Emit an op. Numbers take the type of the other operands."""
        values = [x if x is None or isinstance(x, (bool, int, float)) else self.value(x) for x in operands]
        return self.ctx.op(kind, *values, **attrs)

    def value(self, x: Given) -> Value:
        """In the graph: an array becomes a weight, a constant or a table."""
        if isinstance(x, Value):
            return x
        if not isinstance(x, Operand):
            x = Operand(np.asarray(x))
        if x.value is None:
            x.value = self._declare(x)
        return x.value

    def number(self, value: float, dtype: DType) -> Value:
        """A 0-D constant of a type, rounded to it."""
        return self.value(rounded(np.asarray(value, np.float64 if dtype.kind == "float" else None), dtype))

    def known(self, x: Operand, what: str) -> np.ndarray:
        """The elements of an operand that shapes depend on."""
        array = x.array
        if array is None:
            why = f": {x.why}" if x.why else ""
            raise Refusal(f"{what} is computed, and a shape depends on its value{why}", x.sources)
        return array

    def reserve(self, *shape: int) -> None:
        """Refusal where an array of numbers of this shape, which the rule is about to create, is more than constants may take. Rules create
        arrays by sizes that a file states, which may be any."""
        if why := self.budget.spend(8 * prod(shape)):
            raise Refusal(f"it needs a table of {' x '.join(map(str, shape))} numbers: {why}")

    def integers(self, x: Operand | None, what: str) -> list[int] | None:
        """The elements of a known operand of integers; None where it is left out."""
        if x is None:
            return None
        array = self.known(x, what)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise bad(f"{self.node.op}: {what} is {array.dtype}{list(array.shape)}", expected="integers along one axis", where=self.node.where)  # fmt: skip
        return [int(v) for v in array.reshape(-1)]

    def integer(self, x: Operand, what: str) -> int:
        """The one element of a known operand."""
        found = self.integers(x, what) or []
        if len(found) != 1:
            raise bad(
                f"{self.node.op}: {what} has {len(found)} elements",
                expected="one integer",
                where=self.node.where,
            )
        return found[0]

    def number_of(self, x: Operand, what: str) -> Any:
        """The one element of a known operand, a NumPy scalar."""
        array = self.known(x, what)
        if array.size != 1:
            raise self.wrong(f"{what} is {array.dtype}{list(array.shape)}, expected one number")
        return array.reshape(())

    def axis(self, axis: int, rank: int) -> int:
        """An axis from 0 on."""
        if not -rank <= axis < rank:
            raise bad(f"{self.node.op}: axis {axis} is not in [-{rank}, {rank})", where=self.node.where)
        return axis % rank

    def refuse(self, reason: str) -> Refusal:
        return Refusal(reason)

    def wrong(self, reason: str) -> Exception:
        return bad(f"{self.node.op}: {reason}", where=self.node.where)

    # --- attributes ---------------------------------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value; what is not given is as the op declares it, or `default`."""
        proto = self.node.attrs.get(name)
        declared = self.schema.attributes.get(name)
        if proto is None:
            if declared is None or not declared.default_value.name:
                return default
            return plain(declared.default_value, self.source, self.node)
        return plain(proto, self.source, self.node)


def check_attributes(node: OnnxNode, schema: Any) -> None:
    """That the op declares each attribute, with its type, and that none is missing; and as many operands as it takes."""
    for name, proto in node.attrs.items():
        declared = schema.attributes.get(name)
        if declared is None:
            raise bad(
                f"{node.op} has no attribute {name!r}", where=node.where, expected=", ".join(sorted(schema.attributes)) or "none",
            )  # fmt: skip
        if proto.ref_attr_name:
            raise bad(
                f"{node.op}: attribute {name} is that of a function, which the node is not in",
                where=node.where,
            )
        if proto.type != int(declared.type.value):
            kinds = library().AttributeProto.AttributeType
            raise bad(
                f"{node.op}: attribute {name} has the wrong type", where=node.where, expected=declared.type.name,
                got=kinds.Name(proto.type) if proto.type in kinds.values() else proto.type,
            )  # fmt: skip
    missing = [n for n, a in schema.attributes.items() if a.required and n not in node.attrs]
    if missing:
        raise bad(f"{node.op} lacks the attribute {missing[0]!r}", where=node.where)
    for name, declared in zip(node.inputs, schema.inputs):
        if not name and declared.option == library().defs.OpSchema.FormalParameterOption.Single:
            raise bad(f"{node.op}: its input {declared.name} is left out", where=node.where)
    counts = len(node.inputs), len(node.outputs)
    ranges = (schema.min_input, schema.max_input), (schema.min_output, schema.max_output)
    for what, count, (least, most) in zip(("inputs", "outputs"), counts, ranges):
        if not least <= count <= most:
            raise bad(f"{node.op} has {count} {what}", where=node.where, expected=f"{least} to {most}")


def plain(proto: Any, source: Source, node: OnnxNode) -> Any:
    """An AttributeProto's value."""
    kinds = library().AttributeProto
    what = f"attribute {proto.name!r} of {node.where}"
    if proto.type == kinds.FLOAT:
        return float(proto.f)
    if proto.type == kinds.INT:
        return int(proto.i)
    if proto.type == kinds.STRING:
        return _text(proto.s, what)
    if proto.type == kinds.TENSOR:
        return array_of(proto.t, source, what)
    if proto.type == kinds.GRAPH:
        return proto.g
    if proto.type in (kinds.FLOATS, kinds.INTS):
        return list(proto.floats if proto.type == kinds.FLOATS else proto.ints)
    if proto.type == kinds.STRINGS:
        return [_text(s, what) for s in proto.strings]
    raise Refusal(f"{what} is of a type that aicf lacks")


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise bad(f"{what} is no text", got=data[:40]) from None


def constant(ctx: Any, array: np.ndarray) -> Value:
    """An array in the graph: a number as such, others as a table named by its content, so that equal ones are one."""
    dtype = DType.of(array.dtype)
    if array.ndim == 0:
        number: Value = ctx.constant(array.item() if dtype.kind != "float" else float(array), dtype)
        return number
    head = f"{dtype}{array.shape}".encode()
    digest = hashlib.sha256(head + np.ascontiguousarray(array).view(np.uint8).data).hexdigest()[:24]
    table: Value = ctx.table(f"onnx.{digest}", array.shape, partial(_same, array), dtype)
    return table


def _same(array: np.ndarray, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return array
