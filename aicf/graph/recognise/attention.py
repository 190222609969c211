"""Attention: a product of queries and keys, what is done with its scores, their softmax, and its product with values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir import Op, Value
from ...types import DType
from .arrange import Laid, sources
from .attention_grad import Gradient, NoGradient, Operands, gradient_of
from .axes import MOVED, Group, Layout, atoms, before, behind, every, fresh, settled
from .flow import CameClose, Flow, at
from .forms import refused
from .masks import Masks, masks_of
from .probe import Layouts
from .products import crossing, factors
from .scores import Scores, scores_of
from .softmax import SOFTMAX, FoundSoftmax, axis_of, is_plain, softmax_behind

TYPES = frozenset({DType.f32, DType.f16, DType.bf16})


@dataclass(frozen=True)
class Found:
    """Attention as it was found. Layouts share their atoms.

    product that of weights and values
    ops     all of the forward pass that go, in order; the last one makes `result`, whose layout is `target`
    rows    atoms of queries
    """

    q: Laid
    k: Laid
    v: Laid
    scale: float
    softcap: float
    masks: Masks
    keys: Group
    depth: tuple[Group, Group]  # of q and k, of v
    shared: Group  # atoms of q, k and v: batches and heads
    group: Group  # heads of q that share one of k and v
    rows: Group
    softmax: FoundSoftmax
    dtype: DType
    product: Op
    result: Value
    target: Layout
    ops: tuple[Op, ...]
    gradient: Gradient | None


def find(flow: Flow, op: Op, trains: bool) -> Found | None:
    """Attention whose product with values is this op. CameClose says what is in the way of it."""
    if op.kind != "gemm" or len(op.outputs) != 1 or flow.result(op).dtype not in TYPES:
        return None
    for side in (0, 1):
        weights = _before_views(flow, flow.value(op.inputs[side]))
        if 0 in weights.shape:
            return None
        softmax = softmax_behind(flow, weights)
        if softmax is None:
            _refuse_changed(flow, weights)
        elif _has_product(flow, softmax.scores):
            if softmax.stray is not None:
                raise refused(SOFTMAX, softmax.stray)
            try:
                return _Match(flow, op, side, softmax, trains).found()
            except NotAttention:
                return None
    return None


def _refuse_changed(flow: Flow, weights: Value) -> None:
    """CameClose where weights are a softmax that something else has changed, such as a dropout."""
    op = weights.producer
    if op is None or op.kind not in ("mul", "div", "select", "dropout"):
        return
    operands = flow.operands(op)
    for n, operand in enumerate(operands):
        inner = _before_views(flow, operand)
        while inner.producer is not None and (
            scaled := _times(flow, inner.producer, flow.operands(inner.producer))
        ):
            inner = _before_views(flow, scaled[0])
        softmax = softmax_behind(flow, inner)
        rest = [v for m, v in enumerate(operands) if m != n]
        if (
            softmax is not None
            and softmax.stray is None
            and _has_product(flow, softmax.scores)
            and not _reads(flow, rest, softmax.weights)
        ):
            other = next((v for v in rest if flow.number(v) is None), None)
            by = "" if other is None else f" by {other.producer.kind if other.producer else other.name}"
            raise CameClose(f"weights go through {op.kind}{by}{at(op.where)}")


def _reads(flow: Flow, values: Sequence[Value], weights: Value) -> bool:
    """Whether these are made of weights, as the gradient of scores is."""
    waiting, seen = [*values], set[int]()
    while waiting and len(seen) < 32:
        value = waiting.pop(0)
        if value.vid == weights.vid:
            return True
        if value.vid not in seen and value.producer is not None and is_plain(value.producer):
            waiting += flow.operands(value.producer)
        seen.add(value.vid)
    return False


def _before_views(flow: Flow, value: Value) -> Value:
    """What a weight is before it is moved and rounded."""
    while value.producer is not None and value.producer.kind in ("reshape", "transpose", "copy", "convert"):
        value = flow.value(value.producer.inputs[0])
    return value


def _has_product(flow: Flow, scores: Value) -> bool:
    """Whether scores are made of a product near by: other softmaxes are none that came close."""
    waiting, seen = [scores], set[int]()
    while waiting and len(seen) < 64:
        op = waiting.pop(0).producer
        if op is None or op.oid in seen:
            continue
        if op.kind == "gemm":
            return True
        seen.add(op.oid)
        waiting += flow.operands(op) if is_plain(op) else ()
    return False


class NotAttention(Exception):
    """A product with weights that is none with values: that of a gradient."""


class _Match:
    def __init__(self, flow: Flow, op: Op, side: int, softmax: FoundSoftmax, trains: bool) -> None:
        self.flow, self.op, self.side, self.softmax, self.trains = flow, op, side, softmax, trains
        self.scores: Scores = scores_of(flow, softmax.scores)
        self.domain = Layouts(flow, {self.product.vid: fresh(self.product.shape)})

    @property
    def product(self) -> Value:
        return self.flow.result(self.scores.product)

    def found(self) -> Found:
        flow = self.flow
        moves = self._moves()
        ops = tuple({op.oid: op for op in (*self.scores.ops, *self.softmax.ops, *moves)}.values())
        if any(op.constraints.get("sync") for op in (*ops, self.op)):
            raise CameClose("a fence stands within it")
        lost = self.domain.follow(sorted(ops[1:], key=lambda op: op.oid))
        if lost is not None:
            raise CameClose(f"{lost.kind}{at(lost.where)} has axes that no attention has")
        keys = axis_of(flow, self.domain, self.softmax.ops)
        (q, k), depth = self._queries_and_keys(keys)
        v, values, out = self._values(keys)
        chain, target = self._behind(out)
        inner = tuple(sorted({*ops, self.op, *chain}, key=lambda op: op.oid))
        gradient = self._gradient(inner, Operands(q, k, v, atoms(keys), depth, values))
        q, k, v, scale = self._peeled(q, k, v, keys, depth, values, gradient is not None)
        rows = tuple(
            axis
            for axis in every(self.domain.of(self.product))
            if axis not in (*k.atoms, *v.atoms, *atoms(keys))
        )
        shared = tuple(
            axis for axis in every(self.domain.of(self.product)) if axis not in (*rows, *atoms(keys))
        )
        trains = self.trains or gradient is not None
        if gradient is not None and gradient.first.oid < self.op.oid:
            raise CameClose("its gradient stands before it")
        masks = masks_of(flow, self.domain, self.scores, atoms(keys), rows, trains)
        queries = masks.rows or self._queries(rows)
        group = tuple(axis for axis in rows if axis not in queries)
        result = flow.result(inner[-1])
        dtype = DType.f32 if gradient is not None and gradient.wide else self._type(q, k)
        if not math.isfinite(self.scores.scale * scale):
            raise CameClose(f"its scale is {self.scores.scale * scale}")
        return Found(
            q, k, v, self.scores.scale * scale, self.scores.softcap, masks, keys, (atoms(depth), atoms(values)), shared, group,
            queries, self.softmax, dtype, self.op, result, target, inner, gradient,
        )  # fmt: skip

    # --- operands ---------------------------------------------------------------------------------------------------------

    def _moves(self) -> list[Op]:
        """From the weights to the operand of the product with values."""
        found = []
        value = self.flow.value(self.op.inputs[self.side])
        while value.vid != self.softmax.weights.vid:
            assert value.producer is not None
            found.append(value.producer)
            value = self.flow.value(value.producer.inputs[0])
        return found[::-1]

    def _queries_and_keys(self, keys: Group) -> tuple[tuple[Laid, Laid], Group]:
        layout = self.domain.of(self.product)
        left, right, depth = factors(self.flow, self.scores.product, layout)
        if layout[-1] == keys:
            return (left, right), depth
        if layout[-2] == keys:
            return (right, left), depth
        raise CameClose(f"its softmax goes over another axis than keys{at(self.softmax.weights.where)}")

    def _values(self, keys: Group) -> tuple[Laid, Group, Layout]:
        """(values, the atoms of their rows, the layout of the result)."""
        made = crossing(
            self.flow, self.op, self.side, self.domain.of(self.flow.value(self.op.inputs[self.side]))
        )
        if made is None:
            raise CameClose(f"its product with values does more than that{at(self.op.where)}")
        if made.along != keys:
            raise NotAttention
        return made.other, made.width, made.layout

    def _behind(self, layout: Layout) -> tuple[list[Op], Layout]:
        """What moves the result, up to what else reads it; and the layout there."""
        flow, value = self.flow, self.flow.result(self.op)
        chain: list[Op] = []
        while not flow.is_returned(value):
            readers = flow.readers(value)
            if (
                len(readers) != 1
                or readers[0].kind not in MOVED - {"broadcast_in_dim"}
                or readers[0].constraints.get("sync")
            ):
                break
            made = behind(readers[0], [settled(layout)], [value], flow.result(readers[0]).shape)
            if made is None:
                break
            chain.append(readers[0])
            value, layout = flow.result(readers[0]), made
        return chain, layout

    def _gradient(self, inner: Sequence[Op], operands: Operands) -> Gradient | None:
        """What else reads scores and weights: nothing, or the gradient that a graph has of them, spelt out, too."""
        other = self.flow.outside(inner)
        if other is None:
            return None
        value, reader = other
        what = "weights" if value.producer and value.producer.oid >= self.softmax.ops[0].oid else "scores"
        if reader is None:
            raise CameClose(f"{what}{at(value.where)} are returned, too")
        own = [*self.scores.ops, *self.softmax.ops, *self._moves()]
        try:
            return gradient_of(
                self.flow, self.domain, self.scores, self.softmax.weights, own, inner, operands
            )
        except NoGradient as why:
            raise CameClose(
                f"{what}{at(value.where)} are also read by {reader.kind}{at(reader.where)}{why}"
            ) from None

    def _peeled(
        self, q: Laid, k: Laid, v: Laid, keys: Group, depth: Group, values: Group, whole: bool
    ) -> tuple[Laid, Laid, Laid, float]:
        """Operands before they were moved, scaled by numbers, and repeated for several heads; `whole`: moved alone."""
        flow, scale = self.flow, 1.0
        if not whole:
            (q, of_q), (k, of_k) = _unscaled(flow, q), _unscaled(flow, k)
            scale = of_q * of_k
        all_q, all_k, all_v = (
            [y for y in sources(flow, x.value, x.layout) if not whole or set(y.atoms) == set(x.atoms)]
            for x in (q, k, v)
        )
        wanted = {axis for axis in every(self.domain.of(self.product)) if axis not in atoms(keys)}
        q = next((x for x in reversed(all_q) if wanted <= set(x.atoms)), q)
        for left, right in itertools.product(reversed(all_k), reversed(all_v)):
            if set(left.atoms) - {*atoms(keys), *atoms(depth)} == set(right.atoms) - {
                *atoms(keys),
                *atoms(values),
            }:
                return q, left, right, scale
        raise CameClose("keys and values are of other heads")

    def _queries(self, rows: Group) -> Group:
        """The atom that queries are counted along, where no mask says so: whichever it is, all give the same; the longest is quickest."""
        return max(((axis,) for axis in reversed(rows)), key=lambda group: group[0].size, default=())

    def _type(self, q: Laid, k: Laid) -> DType:
        """What attention computes in, so that nothing is rounded that was not before: the type of weights and values, if all have it."""
        flow = self.flow
        result = flow.result(self.op)
        dtype = flow.value(self.op.inputs[0]).dtype
        types = {dtype, q.value.dtype, k.value.dtype}
        if not types <= TYPES:
            raise CameClose(f"its operands are {', '.join(sorted(map(str, types)))}")
        kept = flow.kept_as(result) == {dtype}
        return dtype if len(types) == 1 and kept else DType.f32


def _unscaled(flow: Flow, x: Laid) -> tuple[Laid, float]:
    """An operand before it was multiplied by a number or widened, and that number."""
    factor, value, layout = 1.0, x.value, x.layout
    best = x, factor
    while value.producer is not None:
        op = value.producer
        operands = flow.operands(op)
        if op.kind in MOVED:
            inner = before(op, settled(layout), operands[0])
            if inner is None:
                break
            value, layout = operands[0], inner
            continue
        if (
            op.kind == "convert"
            and operands[0].dtype.kind == "float"
            and operands[0].dtype.itemsize < value.dtype.itemsize
        ):
            value = operands[0]
        elif (scaled := _times(flow, op, operands)) is not None and scaled[0].shape == value.shape:
            value, factor = scaled[0], factor * scaled[1]
        else:
            break
        if not operands[0].dtype.is_fp8:
            best = Laid(value, layout), factor
    return best


def _times(flow: Flow, op: Op, operands: list[Value]) -> tuple[Value, float] | None:
    if op.kind == "scale":
        return operands[0], float(op.attrs["factor"])
    if op.kind not in ("mul", "div"):
        return None
    numbers = [flow.number(v) for v in operands]
    if numbers[1]:
        return operands[0], numbers[1] if op.kind == "mul" else 1 / numbers[1]
    return (operands[1], numbers[0]) if op.kind == "mul" and numbers[0] else None
