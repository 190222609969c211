"""The pass that keeps images channels last: transposes around convolutions go through what stands between them, until they meet and are nothing.

A value's *twin* is the same value with its channels last. Twins begin at convolutions, whose results are transposed back. An op that can as
well compute the twin of its result, from twins, does: maps, pads, slices, reductions, reshapes of spatial axes, and what batch norms and
pools are made of. Where a value itself is read it is its twin, transposed. All that counts is how many bytes are transposed: if not fewer,
the graph stays as it is. Run before gradients are made, these are channels last as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from ...errors import AicfError
from ...ir import Op, Recognised, Value
from ...ops.schema import ELEMENTWISE, schema_of
from ..emit.builder import GraphEmitter
from .flow import Flow

CONVOLUTION = "convolution_channels_last"
LEAST = 3  # axes of what has spatial ones
REDUCTIONS = frozenset({"reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min"})

Shape = tuple[int, ...]


def last(rank: int) -> Shape:
    """The permutation that brings channels behind the spatial axes."""
    return (0, *range(2, rank), 1)


def first(rank: int) -> Shape:
    """And the one that brings them back."""
    return (0, rank - 1, *range(1, rank - 1))


def keep_channels_last(ctx: GraphEmitter, wanted: Iterable[Value]) -> list[Recognised]:
    """Rewrite a graph under construction; what was done is returned, if anything was."""
    if not any(_is_convolution(op) for op in ctx.builder.graph.ops):
        return []
    return _Layout(Flow(ctx, wanted)).run()


def _is_convolution(op: Op) -> bool:
    return op.kind == CONVOLUTION or op.constraints.get("instead") in ("convolution", CONVOLUTION)


class _Layout:
    def __init__(self, flow: Flow) -> None:
        self.flow, self.ctx = flow, flow.ctx
        self.twins: dict[int, Value] = {}  # by the value that they are twins of
        self.same: dict[
            int, Value
        ] = {}  # values that were made otherwise: the same elements in the same places
        self.converted: set[int] = (
            set()
        )  # ops that are needed no more: results have twins, or are made otherwise
        self.emitted: dict[int, list[Op]] = {}  # behind which op they stand
        self.moved = 0  # bytes of transposes that were emitted
        self.rules: dict[str, Callable[[Op], Value | None]] = {
            "slice": self._slice, "pad": self._pad, "reverse": self._reverse, "concatenate": self._concatenate,
            "broadcast_in_dim": self._broadcast, "reshape": self._reshape, "channel_affine": self._affine, "stop_gradient": self._only,
        }  # fmt: skip

    def run(self) -> list[Recognised]:
        flow, graph = self.flow, self.flow.graph
        mark, ops = self.ctx.builder.mark(), [op for op in graph.ops if flow.is_live(op)]
        before = sum(_nbytes(flow.result(op)) for op in ops if self._is_move(op))
        for op in ops:
            start = len(graph.ops)
            try:
                with self.ctx.at(op.where):
                    self._look_at(op)
            except AicfError:  # an emitter refuses what it is asked for: the op stays as it is
                self.converted.discard(op.oid)
            self.emitted[op.oid] = graph.ops[start:]
        turned = [op for op in ops if op.oid in self.converted and op.kind != "transpose"]
        back = [y for y in self._made(ops) if y.vid not in self.same and self._is_asked(y)]
        stay = [
            op for op in ops if self._is_move(op) and op.oid not in self.converted and self._is_needed(op)
        ]
        after = self.moved + sum(map(_nbytes, (*back, *map(flow.result, stay))))
        if after >= before or not self.converted:
            self.ctx.builder.rewind(mark)
            return []
        self._settle(ops, back)
        marked = [op for op in ops if _is_convolution(op)]
        # one of patches is a product, and the transpose behind it is all that is marked
        convolutions = [op for op in marked if op.kind != "transpose"] or marked
        told = f"{len(convolutions)} convolutions and {len(turned)} ops between them; transposes move {_size(after)} in the place of {_size(before)}"
        return [Recognised("channels last", (convolutions or ops)[0].where, told, len(turned))]

    # --- reading ----------------------------------------------------------------------------------------------------------

    def _is_move(self, op: Op) -> bool:
        """A transpose that images pay for."""
        return op.kind == "transpose" and len(op.attrs["perm"]) >= LEAST

    def _made(self, ops: Sequence[Op]) -> list[Value]:
        """Results of ops that are needed no more."""
        return [self.flow.result(op) for op in ops if op.oid in self.converted]

    def _is_asked(self, y: Value) -> bool:
        """Whether the value itself is needed, not its twin."""
        return self.flow.is_returned(y) or any(op.oid not in self.converted for op in self.flow.readers(y))

    def _is_needed(self, op: Op) -> bool:
        """Of a transpose that begins a twin, whether any reader still asks for its result."""
        return self._is_asked(self.flow.result(op))

    def _begins(self, op: Op) -> bool:
        """Whether a transpose brings channels to the front: behind a convolution, or before one."""
        y, perm = self.flow.result(op), op.attrs["perm"]
        if y.rank < LEAST or perm != first(y.rank):
            return False
        if _is_convolution(op):
            return True
        return any(
            reader.kind == "transpose" and reader.attrs["perm"] == last(y.rank)
            for reader in self.flow.readers(y)
        )

    # --- an op, from twins --------------------------------------------------------------------------------------------------

    def _look_at(self, op: Op) -> None:
        if len(op.outputs) != 1 or "must" in {how for _, how in op.constraints.get("alias", {}).values()}:
            return
        y = self.flow.result(op)
        if op.kind == "transpose":
            self._transpose(op, y)
            return
        if y.rank < LEAST and op.kind not in REDUCTIONS and op.kind != "reshape":
            return
        if not self._pays(op):
            return
        if op.kind in REDUCTIONS:
            self._reduce(op, y)
            return
        rule = self.rules.get(op.kind)
        if rule is None and ELEMENTWISE in schema_of(op.kind).traits:
            rule = self._map
        made = rule(op) if rule else None
        if made is not None:
            self.twins[y.vid] = made
            self.converted.add(op.oid)

    def _pays(self, op: Op) -> bool:
        """Whether more bytes of its operands have twins than would have to be transposed."""
        operands = {v.vid: v for v in self.flow.operands(op)}.values()
        own = sum(_nbytes(v) for v in operands if v.vid in self.twins)
        lacking = sum(_nbytes(v) for v in operands if v.vid not in self.twins and not self._is_free(v))
        return own > 0 and own >= lacking

    def _is_free(self, x: Value) -> bool:
        """Whether a twin costs no transpose."""
        return _is_line(x.shape) or (
            x.producer is not None and x.producer.kind in ("broadcast_in_dim", "fill")
        )

    def _twin(self, x: Value) -> Value:
        """x with its channels last."""
        if x.vid not in self.twins:
            self.twins[x.vid] = self._new_twin(x)
        return self.twins[x.vid]

    def _new_twin(self, x: Value) -> Value:
        op, order = x.producer, last(x.rank)
        shape = tuple(x.shape[n] for n in order)
        if op is not None and op.kind == "fill":
            made: Value = self.ctx.fill(shape=shape, value=op.attrs["value"], dtype=x.dtype)
            return made
        if op is not None and op.kind == "broadcast_in_dim":
            dims = tuple(order.index(n) for n in op.attrs["dims"])
            if dims == tuple(sorted(dims)):
                made = self.ctx.broadcast_in_dim(self.flow.value(op.inputs[0]), shape=shape, dims=dims)
                return made
        if _is_line(x.shape):
            made = self.ctx.reshape(x, shape=shape)
            return made
        self.moved += _nbytes(x)
        made = self.ctx.transpose(x, perm=order)
        return made

    def _map(self, op: Op) -> Value:
        rank = self.flow.result(op).rank

        def of(x: Value | None) -> Value | None:
            if x is None or x.rank == 0:
                return x
            if x.rank < rank:  # aligned at the right
                x = self.ctx.reshape(x, shape=((1,) * (rank - x.rank) + x.shape))
            return self._twin(x)

        operands = [of(None if vid < 0 else self.flow.value(vid)) for vid in op.inputs]
        made: Value = self.ctx.op(op.kind, *operands, **op.attrs)
        return made

    def _only(self, op: Op, **attrs: Any) -> Value:
        """Of one operand, with its attributes along the twin's axes."""
        made: Value = self.ctx.op(op.kind, self._twin(self.flow.value(op.inputs[0])), **{**op.attrs, **attrs})
        return made

    def _along(self, op: Op, *names: str) -> Value:
        rank = self.flow.result(op).rank
        return self._only(
            op, **{name: tuple(op.attrs[name][n] for n in last(rank)) for name in names if op.attrs[name]}
        )

    def _slice(self, op: Op) -> Value:
        return self._along(op, "start", "limit", "step")

    def _pad(self, op: Op) -> Value:
        return self._along(op, "low", "high", "interior")

    def _reverse(self, op: Op) -> Value:
        order = last(self.flow.result(op).rank)
        return self._only(op, dims=tuple(sorted(order.index(n) for n in op.attrs["dims"])))

    def _affine(self, op: Op) -> Value:
        """Numbers for each channel stay where they are."""
        x, *others = map(self.flow.value, op.inputs)
        made: Value = self.ctx.channel_affine(
            self._twin(x), *others, axis=last(x.rank).index(op.attrs["axis"] % x.rank)
        )
        return made

    def _concatenate(self, op: Op) -> Value:
        rank = self.flow.result(op).rank
        xs = [self._twin(x) for x in map(self.flow.value, op.inputs)]
        made: Value = self.ctx.concatenate(*xs, axis=last(rank).index(op.attrs["axis"] % rank))
        return made

    def _broadcast(self, op: Op) -> Value | None:
        """Images, the channels too, keep their places."""
        x, y = self.flow.value(op.inputs[0]), self.flow.result(op)
        dims = op.attrs["dims"]
        if x.rank < LEAST or tuple(dims[:2]) != (0, 1):
            return None
        order = last(y.rank)
        to = tuple(order.index(dims[n]) for n in last(x.rank))
        if to != tuple(sorted(to)):
            return None
        made: Value = self.ctx.broadcast_in_dim(
            self._twin(x), shape=tuple(y.shape[n] for n in order), dims=to
        )
        return made

    def _reshape(self, op: Op) -> Value | None:
        """Of spatial axes alone. Where they have one element, a matrix of channels is the same for both."""
        x, y = self.flow.value(op.inputs[0]), self.flow.result(op)
        if x.vid not in self.twins or x.shape[:2] != y.shape[:2]:
            return None
        if y.rank == 2:
            self._same(op, self.ctx.reshape(self.twins[x.vid], shape=y.shape))
            return None
        made: Value = self.ctx.reshape(self.twins[x.vid], shape=tuple(y.shape[n] for n in last(y.rank)))
        return made

    def _reduce(self, op: Op, y: Value) -> None:
        x = self.flow.value(op.inputs[0])
        if x.vid not in self.twins:
            return
        axes, order = {n % x.rank for n in op.attrs["axes"]}, last(x.rank)
        along = tuple(sorted(order.index(n) for n in axes))
        if op.attrs["keepdims"]:
            self.twins[y.vid] = self._only(op, axes=along)
            self.converted.add(op.oid)
            return
        kept = [n for n in range(x.rank) if n not in axes]
        there = [n for n in order if n not in axes]
        if kept == there:
            self._same(op, self._only(op, axes=along))
        elif len(kept) >= LEAST and there == [kept[n] for n in last(len(kept))]:
            self.twins[y.vid] = self._only(op, axes=along)
            self.converted.add(op.oid)

    def _same(self, op: Op, made: Value) -> None:
        self.same[self.flow.result(op).vid] = made
        self.converted.add(op.oid)

    def _transpose(self, op: Op, y: Value) -> None:
        x = self.flow.value(op.inputs[0])
        if x.vid in self.twins:
            order = last(x.rank)
            perm = tuple(order.index(n) for n in op.attrs["perm"])
            if perm == tuple(range(x.rank)):
                self._same(op, self.twins[x.vid])
            else:
                self.moved += _nbytes(y)
                self._same(op, self.ctx.transpose(self.twins[x.vid], perm=perm))
        elif self._begins(op):
            self.twins[y.vid] = x
        elif x.rank >= LEAST and op.attrs["perm"] == last(x.rank):
            self.twins[x.vid] = y  # others that need one read it too

    # --- writing ----------------------------------------------------------------------------------------------------------

    def _settle(self, ops: Sequence[Op], back: Sequence[Value]) -> None:
        """What was emitted stands where it is needed; values that are still read are made of twins."""
        graph, flow = self.flow.graph, self.flow
        del graph.ops[self._first_emitted() :]
        for y in back:
            maker = y.producer
            assert maker is not None
            start = len(graph.ops)
            with self.ctx.at(maker.where):
                made = self.ctx.transpose(self.twins[y.vid], perm=first(y.rank))
            self.emitted[maker.oid] += graph.ops[start:]
            del graph.ops[start:]
            self.same[y.vid] = made
        graph.ops = [one for op in graph.ops for one in (op, *self.emitted.get(op.oid, ()))]
        renamed: dict[int, Value] = {}  # by what a value was made as
        gone = {id(op) for op in ops if op.oid in self.converted}
        for op in ops:
            y = flow.result(op)
            if op.oid not in self.converted or y.vid not in self.same:
                continue
            made = self.same[y.vid]
            made = renamed.get(made.vid, made)
            if not flow.is_returned(y):
                flow.read_instead(y, made)
            elif (
                made.producer is None
                or flow.is_returned(made)
                or made.vid in {v.vid for v in renamed.values()}
            ):
                self._copied(op, y, made)
            else:
                flow._renamed(y, made)
                renamed[made.vid] = y
        self._drop(gone)
        flow.renumber()

    def _drop(self, gone: set[int]) -> None:
        """Without these ops, and without those that nothing needs and that read what they made."""
        graph, lost, kept = self.flow.graph, set[int](), []
        for op in graph.ops:
            if id(op) in gone or lost.intersection(op.inputs):
                gone.add(id(op))
                lost.update(vid for vid in op.outputs if graph.values[vid].producer is op)
            else:
                kept.append(op)
        graph.ops = kept
        for value in graph.values:
            value.users = [op for op in value.users if id(op) not in gone]

    def _first_emitted(self) -> int:
        graph = self.flow.graph
        return len(graph.ops) - sum(map(len, self.emitted.values()))

    def _copied(self, op: Op, y: Value, made: Value) -> None:
        """What is returned has to be a value of its own."""
        graph = self.flow.graph
        start = len(graph.ops)
        with self.ctx.at(op.where):
            own = self.ctx.copy(made)
        (copy,) = graph.ops[start:]
        del graph.ops[start:]
        graph.ops.insert(next(n for n, one in enumerate(graph.ops) if one is op) + 1, copy)
        self.flow._renamed(y, own)


def _is_line(shape: Shape) -> bool:
    """Whether at most one axis has more than one element: its order does not matter."""
    return sum(n != 1 for n in shape) <= 1


def _nbytes(x: Value) -> int:
    return prod(x.shape) * x.dtype.itemsize


def _size(nbytes: int) -> str:
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= of:
            return f"{nbytes / of:.3g} {unit}"
    return f"{nbytes} bytes"
