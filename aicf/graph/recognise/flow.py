"""A graph under construction as passes look at it: who reads what, what is known of a value, and one op in the place of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ...errors import AicfError
from ...ir import Op, Value
from ...ops.schema import ELEMENTWISE, schema_of
from ...types import DType, bool_
from ..emit.builder import GraphEmitter
from ..emit.declare import Constant
from ..emit.evaluate import FLOPS, FoldBudget, price_of
from .axes import MOVED

KNOWN_ELEMENTS = (
    2**26
)  # of a value whose elements are computed while the graph is looked at: a mask of 8192 x 8192
_TOO_LARGE = object()
_RANDOM = frozenset({"dropout", "rng_advance"})


class CameClose(Exception):
    """What stands in the way of recognising something that is nearly there."""


Edit = tuple[
    Op, Callable[[], Sequence[tuple[Value, Value]]]
]  # (the op that it stands before, emits: (old, new) values)


def at(where: str) -> str:
    """`where`, behind what is there; nothing where that is not known."""
    return f" at {where}" if where else ""


class Flow:
    """The graph of an emitter, with what of it is wanted: an op that nothing of that needs does not count as a reader."""

    def __init__(self, ctx: GraphEmitter, wanted: Iterable[Value]) -> None:
        self.ctx, self.graph = ctx, ctx.builder.graph
        self.wanted = {value.vid for value in wanted}
        self._known: dict[int, Any] = {}
        self._budget = FoldBudget()
        self.renumber()

    def renumber(self) -> None:
        """Ops have their places as numbers again; who is needed is found anew."""
        graph, needed = self.graph, self.wanted | set(self.graph.updates.values())
        self._live: set[int] = set()
        for n in range(len(graph.ops) - 1, -1, -1):
            op = graph.ops[n]
            op.oid = n
            if needed.intersection(op.outputs):
                needed.update(op.inputs)
                self._live.add(n)
        self._needed = needed

    # --- reading ----------------------------------------------------------------------------------------------------------

    def value(self, vid: int) -> Value:
        return self.graph.values[vid]

    def operands(self, op: Op) -> list[Value]:
        """Those that are given."""
        return [self.graph.values[vid] for vid in op.inputs if vid >= 0]

    def result(self, op: Op) -> Value:
        return self.graph.values[op.outputs[0]]

    def has(self, op: Op) -> bool:
        """Whether it is still there, and needed."""
        return op.oid < len(self.graph.ops) and self.graph.ops[op.oid] is op and op.oid in self._live

    def is_live(self, op: Op) -> bool:
        return op.oid in self._live

    def readers(self, value: Value) -> list[Op]:
        """Ops that read it, each once, in their order."""
        return sorted({op.oid: op for op in value.users if self.is_live(op)}.values(), key=lambda op: op.oid)

    def is_returned(self, value: Value) -> bool:
        return value.vid in self.wanted or value.vid in self.graph.updates.values()

    def outside(self, inner: Sequence[Op]) -> tuple[Value, Op | None] | None:
        """A result of these ops, but for the last one's, that something else needs, and what does: None if it is returned."""
        own = {op.oid for op in inner}
        for op in inner[:-1]:
            for vid in op.outputs:
                value = self.value(vid)
                if self.is_returned(value):
                    return value, None
                other = next((reader for reader in self.readers(value) if reader.oid not in own), None)
                if other is not None:
                    return value, other
        return None

    def kept_as(self, value: Value) -> set[DType]:
        """The types in which a value is used: its own, or narrower ones that it is converted to wherever it goes."""
        waiting, found = [value], set[DType]()
        while waiting:
            one = waiting.pop()
            readers = self.readers(one)
            if self.is_returned(one) or not readers:
                found.add(value.dtype)
            for op in readers:
                if op.kind in MOVED:
                    waiting.append(self.result(op))
                else:
                    narrow = op.kind == "convert" and op.attrs["dtype"].itemsize < value.dtype.itemsize
                    found.add(op.attrs["dtype"] if narrow else value.dtype)
        return found

    # --- what is known ----------------------------------------------------------------------------------------------------

    def number(self, value: Value) -> float | None:
        """The number that all elements are."""
        while value.producer is not None and value.producer.kind in (
            "reshape",
            "broadcast_in_dim",
            "copy",
            "transpose",
        ):
            value = self.value(value.producer.inputs[0])
        op = value.producer
        if op is not None and op.kind == "fill":
            return float(np.asarray(op.attrs["value"], value.dtype.numpy))
        if op is not None and value.spec.numel > 4096:
            return None
        if op is None and not value.constant:
            return None
        if op is None and isinstance(value.init, Constant):
            return float(np.asarray(value.init.value, value.dtype.numpy))
        array = self.known(value)
        if array is None or not array.size or not np.all(array == array.flat[0]):
            return None
        return float(array.flat[0])

    def known(self, value: Value) -> np.ndarray | None:
        """The elements of a value that depends on constants alone."""
        waiting = [value]
        while waiting:  # a chain of ops may be longer than Python's stack
            at = waiting[-1]
            missing = [] if at.vid in self._known else self._missing(at)
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if at.vid not in self._known:
                self._known[at.vid] = self._computed(at)
        found: np.ndarray | None = self._known[value.vid]
        return found

    def _missing(self, value: Value) -> list[Value]:
        """What has to be looked at first. One operand that is not known is enough."""
        op = value.producer
        if op is None or value.spec.numel > KNOWN_ELEMENTS:
            return []
        for operand in self.operands(op):
            if operand.vid not in self._known:
                return [operand]
            if self._known[operand.vid] is None:
                return []
        return []

    def _computed(self, value: Value) -> np.ndarray | None:
        op = value.producer
        if value.spec.numel > KNOWN_ELEMENTS:
            return None
        if op is None:
            if not value.constant or value.init is None:
                return None
            start = np.asarray(value.init(value.shape, np.random.default_rng(0)))
            return start.astype(value.dtype.numpy)
        operands = self.operands(op)
        if (
            op.kind in _RANDOM
            or len(operands) < len(op.inputs)
            or ("alias" in op.constraints and not _may(op))
        ):
            return None
        arrays = [array for v in operands if (array := self._known.get(v.vid)) is not None]
        if len(arrays) < len(operands) or schema_of(op.kind).reference_fn is None:
            return None
        if (view := _view(op, arrays, value.shape)) is not None:
            return view
        nbytes, steps = price_of(self.graph, op)
        if ELEMENTWISE in schema_of(op.kind).traits and len(op.outputs) == 1:
            few = _few(arrays, value.shape)
            nbytes = prod(np.broadcast_shapes(*(a.shape for a in few))) * value.dtype.itemsize
            if self._budget.spend(nbytes, 1 + nbytes // FLOPS):
                return None
            (result,) = schema_of(op.kind).call_reference(few, op.attrs)
            return np.broadcast_to(result, value.shape)
        if self._budget.spend(nbytes, steps):
            return None
        made: np.ndarray = schema_of(op.kind).call_reference(arrays, op.attrs)[op.outputs.index(value.vid)]
        return made

    def constant(self, number: float, dtype: DType) -> Value:
        """A number that elements of this type have."""
        made = number if dtype.kind == "float" else bool(number) if dtype is bool_ else int(number)
        return self.ctx.constant(made, dtype)

    # --- writing ----------------------------------------------------------------------------------------------------------

    def replace(self, edits: Sequence[Edit], price: Callable[[Sequence[Op], Sequence[Value]], bool]) -> bool:
        """Emit edits, each before an op, and let what they make be what other ops have made: values stay, and who reads them. `price` is
        asked of the new ops and their results before; where it says no, all is as it was."""
        ctx, graph = self.ctx, self.graph
        mark = ctx.builder.mark()
        parts: list[tuple[Op, list[Op]]] = []
        pairs: list[tuple[Value, Value]] = []
        for before, make in edits:
            first = len(graph.ops)
            try:
                with ctx.at(before.where):
                    pairs += make()
            except AicfError as error:
                ctx.builder.rewind(mark)
                raise CameClose(f"the op is refused: {error.what}") from error
            parts.append((before, graph.ops[first:]))
        assert all(new.spec == old.spec and new.producer is not None for old, new in pairs)
        if not price([op for _, ops in parts for op in ops], [new for _, new in pairs]):
            ctx.builder.rewind(mark)
            return False
        del graph.ops[mark[1] :]
        gone = [self._renamed(old, new) for old, new in pairs]
        lost = {id(op) for op in gone}
        placed = {id(before): ops for before, ops in parts}
        graph.ops = [one for op in graph.ops for one in (*placed.get(id(op), ()), op) if id(one) not in lost]
        for vid in {vid for op in gone for vid in op.inputs if vid >= 0}:
            value = self.value(vid)
            value.users = [user for user in value.users if id(user) not in lost]
        self.renumber()
        return True

    def read_instead(self, old: Value, new: Value) -> None:
        """Let all who read a value read another one. `renumber` finds what is needed no more."""
        for op in old.users:
            op.inputs = tuple(new.vid if vid == old.vid else vid for vid in op.inputs)
        old.users, new.users = [], [*new.users, *old.users]

    def read_by(self, op: Op, old: Value, new: Value) -> None:
        """Let one op read another value."""
        op.inputs = tuple(new.vid if vid == old.vid else vid for vid in op.inputs)
        old.users = [user for user in old.users if user is not op]
        new.users.append(op)

    def drop_check(self, op: Op) -> bool:
        """Let a check of indices be no part of a run any more; False where something else asks what it found."""
        _, fault = self.operands(op)
        valid, told = (self.value(vid) for vid in op.outputs)
        if self.graph.updates.get(fault.vid) != told.vid or self.is_returned(valid):
            return False
        del self.graph.updates[fault.vid]
        if self.ctx.builder.valid is valid:
            self.ctx.builder.valid = None
        self.read_instead(valid, self.ctx.constant(True, bool_))
        return True

    def before(self, op: Op, make: Callable[[], Value | None]) -> Value | None:
        """Emit something before an op."""
        ctx, graph = self.ctx, self.graph
        first = len(graph.ops)
        with ctx.at(op.where):
            made = make()
        new = graph.ops[first:]
        graph.ops[first:] = []
        graph.ops[op.oid : op.oid] = new
        self.renumber()
        return made

    def amend(self, op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any]) -> None:
        """Let an op read other operands, and have other attributes."""
        for value in self.operands(op):
            value.users = [user for user in value.users if user is not op]
        op.inputs = tuple(-1 if value is None else value.vid for value in operands)
        for vid in {vid for vid in op.inputs if vid >= 0}:
            self.value(vid).users.append(op)
        schema = schema_of(op.kind)
        pack = schema.pack({**op.attrs, **attrs})
        op.attrs, op.attr_blob = schema.values(pack), pack.blob
        self.renumber()

    def _renamed(self, old: Value, new: Value) -> Op:
        """Let an old value be what an op made that made a new one; the op that made it before."""
        gone, maker = old.producer, new.producer
        assert gone is not None and maker is not None and len(gone.outputs) == 1
        maker.outputs = tuple(old.vid if vid == new.vid else vid for vid in maker.outputs)
        for op in new.users:
            op.inputs = tuple(old.vid if vid == new.vid else vid for vid in op.inputs)
        old.users, new.users = [*old.users, *new.users], []
        old.producer, new.producer = maker, None
        return gone


def _view(op: Op, arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray | None:
    """What only repeats or turns takes no memory: a mask is made of few numbers."""
    if op.kind == "iota":
        axis = op.attrs["axis"] % len(shape)
        count = np.arange(shape[axis]).astype(DType.of(op.attrs["dtype"]).numpy)
        return np.broadcast_to(count.reshape([-1 if n == axis else 1 for n in range(len(shape))]), shape)
    if op.kind == "broadcast_in_dim":
        column = [1] * len(shape)
        for size, axis in zip(arrays[0].shape, op.attrs["dims"]):
            column[axis] = size
        return np.broadcast_to(arrays[0].reshape(column), shape)
    return np.transpose(arrays[0], op.attrs["perm"]) if op.kind == "transpose" else None


def _few(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> list[np.ndarray]:
    """The operands of an elementwise op, with one element along axes along which all of them repeat theirs."""
    rank = len(shape)
    repeated = {
        n
        for n in range(rank)
        if all(a.ndim < rank - n or a.strides[n - rank] == 0 or a.shape[n - rank] == 1 for a in arrays)
    }
    return [
        a[tuple(slice(1) if n in repeated else slice(None) for n in range(rank - a.ndim, rank))]
        for a in arrays
    ]


def _may(op: Op) -> bool:
    """Whether its results may lie elsewhere than in its operands."""
    return all(how == "may" for _, how in op.constraints["alias"].values())
