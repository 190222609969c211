"""Attention: a product of queries and keys, what is done with its scores, their softmax, and its product with values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...ir import Op, Value
from ...types import ActKind, DType
from .arrange import Laid, arranged, sources
from .axes import MOVED, Axis, Group, Layout, atoms, before, behind, every, fresh, settled
from .flow import CameClose, Flow
from .masks import Condition, Masks, masks_of
from .probe import Domain
from .scores import Scores, scores_of
from .softmax import Softmax, axis_of, is_plain, softmax_behind

TYPES = frozenset({DType.f32, DType.f16, DType.bf16})


@dataclass(frozen=True)
class Found:
    """Attention as it was found. Layouts share their atoms.

    ops     all that it replaces, in order; the last one makes `result`, whose layout is `target`
    rows    atoms of queries: those that queries are counted along are the last ones
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
    softmax: Softmax
    dtype: DType
    result: Value
    target: Layout
    ops: tuple[Op, ...]


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
        softmax = softmax_behind(flow, _before_views(flow, operand))
        if softmax is not None and _has_product(flow, softmax.scores):
            other = next((v for m, v in enumerate(operands) if m != n and flow.number(v) is None), None)
            by = "" if other is None else f" by {other.producer.kind if other.producer else other.name}"
            raise CameClose(f"weights go through {op.kind}{by}{_at(op.where)}")


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
    def __init__(self, flow: Flow, op: Op, side: int, softmax: Softmax, trains: bool) -> None:
        self.flow, self.op, self.side, self.softmax, self.trains = flow, op, side, softmax, trains
        self.scores: Scores = scores_of(flow, softmax.scores)
        self.domain = Domain(flow, {self.product.vid: fresh(self.product.shape)})

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
            raise CameClose(f"{lost.kind}{_at(lost.where)} has axes that no attention has")
        keys = axis_of(flow, self.domain, self.softmax.ops)
        (q, k), depth = self._queries_and_keys(keys)
        v, values, out = self._values(keys)
        chain, target = self._behind(out)
        inner = tuple(sorted({*ops, self.op, *chain}, key=lambda op: op.oid))
        self._refuse_readers(inner)
        q, k, v, scale = self._peeled(q, k, v, keys, depth, values)
        rows = tuple(axis for axis in every(self.domain.of(self.product)) if axis not in (*k.atoms, *v.atoms, *atoms(keys)))
        shared = tuple(axis for axis in every(self.domain.of(self.product)) if axis not in (*rows, *atoms(keys)))
        masks = masks_of(flow, self.domain, self.scores, atoms(keys), rows, self.trains)
        queries = masks.rows or self._queries(rows)
        group = tuple(axis for axis in rows if axis not in queries)
        result = flow.result(inner[-1])
        dtype = self._type(q, k)
        if not math.isfinite(self.scores.scale * scale):
            raise CameClose(f"its scale is {self.scores.scale * scale}")
        return Found(
            q, k, v, self.scores.scale * scale, self.scores.softcap, masks, keys, (atoms(depth), atoms(values)), shared, group,
            queries, self.softmax, dtype, result, target, inner,
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
        op, layout = self.scores.product, self.domain.of(self.product)
        depth: Group = ()
        a, b = self.flow.value(op.inputs[0]), self.flow.value(op.inputs[1])
        inner = a.shape[-2 if op.attrs["trans_a"] else -1]
        depth = (Axis(inner),) if inner != 1 else ()
        left = _operand(a, layout[:-2], (layout[-2], depth), op.attrs["trans_a"])
        right = _operand(b, layout[:-2], (depth, layout[-1]), op.attrs["trans_b"])
        if layout[-1] == keys:
            return (left, right), depth
        if layout[-2] == keys:
            return (right, left), depth
        raise CameClose(f"its softmax goes over another axis than keys{_at(self.softmax.weights.where)}")

    def _values(self, keys: Group) -> tuple[Laid, Group, Layout]:
        """(values, the atoms of their rows, the layout of the result)."""
        op, flow, first = self.op, self.flow, self.side == 0
        names = ("trans_a", "trans_b") if first else ("trans_b", "trans_a")
        turned, other_turned = (op.attrs[name] for name in names)
        layout, other = self.domain.of(flow.value(op.inputs[self.side])), flow.value(op.inputs[1 - self.side])
        rows, along = layout[-2:] if turned is not first else layout[-2:][::-1]
        if along != keys:
            raise NotAttention
        width = other.shape[-2 if other_turned is first else -1]
        values = (Axis(width),) if width != 1 else ()
        batch, plain = layout[:-2], {"act": ActKind.none, "alpha": 1.0}
        more = any(vid >= 0 for vid in op.inputs[2:]) or {n: op.attrs[n] for n in plain} != plain
        if len(batch) != flow.result(op).rank - 2 or more:
            raise CameClose(f"its product with values does more than that{_at(op.where)}")
        pair, made = ((keys, values), (rows, values)) if first else ((values, keys), (values, rows))
        return _operand(other, batch, pair, other_turned), values, (*batch, *made)

    def _behind(self, layout: Layout) -> tuple[list[Op], Layout]:
        """What moves the result, up to what else reads it; and the layout there."""
        flow, value = self.flow, self.flow.result(self.op)
        chain: list[Op] = []
        while not flow.is_returned(value):
            readers = flow.readers(value)
            if len(readers) != 1 or readers[0].kind not in MOVED - {"broadcast_in_dim"} or readers[0].constraints.get("sync"):
                break
            made = behind(readers[0], [settled(layout)], [value], flow.result(readers[0]).shape)
            if made is None:
                break
            chain.append(readers[0])
            value, layout = flow.result(readers[0]), made
        return chain, layout

    def _refuse_readers(self, inner: Sequence[Op]) -> None:
        other = self.flow.outside(inner)
        if other is not None:
            value, reader = other
            what = "weights" if value.producer and value.producer.oid >= self.softmax.ops[0].oid else "scores"
            if reader is None:
                raise CameClose(f"{what}{_at(value.where)} are returned, too")
            raise CameClose(f"{what}{_at(value.where)} are also read by {reader.kind}{_at(reader.where)}")

    def _peeled(self, q: Laid, k: Laid, v: Laid, keys: Group, depth: Group, values: Group) -> tuple[Laid, Laid, Laid, float]:
        """Operands before they were moved, scaled by numbers, and repeated for several heads."""
        flow = self.flow
        (q, of_q), (k, of_k) = _unscaled(flow, q), _unscaled(flow, k)
        all_q, all_k, all_v = (list(sources(flow, x.value, x.layout)) for x in (q, k, v))
        wanted = {axis for axis in every(self.domain.of(self.product)) if axis not in atoms(keys)}
        q = next((x for x in reversed(all_q) if wanted <= set(x.atoms)), q)
        for left, right in itertools.product(reversed(all_k), reversed(all_v)):
            if set(left.atoms) - {*atoms(keys), *atoms(depth)} == set(right.atoms) - {*atoms(keys), *atoms(values)}:
                return q, left, right, of_q * of_k
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
        narrowed = all(reader.kind == "convert" and reader.attrs["dtype"] is dtype for reader in flow.readers(result))
        kept = result.dtype is dtype or (narrowed and not flow.is_returned(result))
        return dtype if len(types) == 1 and kept else DType.f32


def _operand(value: Value, batch: Layout, pair: tuple[Group, Group], turned: bool) -> Laid:
    own = batch if value.rank > 2 else ()
    return Laid(value, (*own, *(pair[::-1] if turned else pair)))


def _at(where: str) -> str:
    return f" at {where}" if where else ""


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
        if op.kind == "convert" and operands[0].dtype.kind == "float" and operands[0].dtype.itemsize < value.dtype.itemsize:
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


# --- what stands in its place -----------------------------------------------------------------------------------------


def emit_attention(flow: Flow, found: Found) -> Value:
    """The op, between what brings its operands into their places and the result into its own."""
    emit: Any = flow.ctx
    places = _Heads(found)
    of_q, of_v = found.depth
    q = _cast(emit, arranged(emit, found.q, places.of(found.rows, of_q, True), repeat=False), found.dtype)
    k = _cast(emit, arranged(emit, found.k, places.of(found.keys, of_q, False), repeat=False), found.dtype)
    v = _cast(emit, arranged(emit, found.v, places.of(found.keys, of_v, False), repeat=False), found.dtype)
    scores = places.of(found.rows, found.keys, True)
    masks = found.masks
    mask = None
    for condition in masks.conditions:
        one = _condition(emit, condition, scores)
        mask = one if mask is None else emit.logical_and(mask, one)
    bias = None
    for laid, factor in masks.bias:
        one = _cast(emit, laid.value, DType.f32) if factor != 1 else laid.value
        one = emit.mul(one, factor) if factor != 1 else one
        one = arranged(emit, replace(laid, value=one), scores, repeat=False)
        bias = one if bias is None else emit.add(*(_cast(emit, x, DType.f32) for x in (bias, one)))
    asked = {"scale": found.scale, "causal": masks.causal, "window": masks.window, "softcap": found.softcap}
    out = emit.attention(q, k, v, mask, None, bias, **asked)
    out = _of_empty(flow, found, out, v, places)
    out = arranged(emit, Laid(out, places.of(found.rows, found.depth[1], True)), found.target, repeat=True)
    return _cast(emit, out, found.result.dtype)


class _Heads:
    """Which atoms are batches and which are heads: grouped heads go with the last atom that q, k and v share, if that leaves a batch."""

    def __init__(self, found: Found) -> None:
        shared, group = found.shared, found.group
        if group and len(shared) < 2:
            self.batch, self.heads, self.group = shared, (), group
        else:
            self.batch, self.heads, self.group = shared[:-1], shared[-1:], group

    def of(self, rows: Group, columns: Group, grouped: bool) -> Layout:
        heads = (*self.heads, *self.group) if grouped else self.heads
        return (*((axis,) for axis in self.batch), heads, rows, columns)


def _cast(emit: Any, x: Value, dtype: DType) -> Value:
    made: Value = x if x.dtype is dtype else emit.convert(x, dtype=dtype)
    return made


def _condition(emit: Any, condition: Condition, scores: Layout) -> Value:
    value = arranged(emit, condition.laid, scores, repeat=False)
    return value if condition.shown else emit.logical_not(value)


def _of_empty(flow: Flow, found: Found, out: Value, v: Value, places: _Heads) -> Value:
    """The result with what queries without keys give when it is spelt out; the op gives zeros."""
    emit: Any = flow.ctx
    assert out.producer is not None
    lse = flow.value(out.producer.outputs[1])
    empty, softmax = found.masks.empty, found.softmax
    column = (*lse.shape, 1)
    if softmax.broken == "zero":
        out = emit.select(emit.reshape(emit.is_nan(lse), shape=column), 0.0, out)
    if empty is None or (empty == "nan" and softmax.empty == "zero"):
        return out
    nothing = emit.reshape(emit.equal(lse, -math.inf), shape=column)
    if empty == "nan":
        made: Value = emit.select(nothing, math.nan, out)
        return made
    made = emit.select(nothing, _mean_value(emit, found, v, places), out)
    return made


def _mean_value(emit: Any, found: Found, v: Value, places: _Heads) -> Value:
    """Of all keys, for each head of queries: of values where they lie, if their keys are an axis there."""
    keys, width = atoms(found.keys), found.depth[1]
    at = found.v if atoms(found.keys) in settled(found.v.layout) else Laid(v, places.of(keys, width, False))
    axis = settled(at.layout).index(keys)
    mean = emit.reduce_mean(at.value, axes=(axis,), keepdims=True)
    layout = tuple(() if n == axis else group for n, group in enumerate(at.layout))
    return _cast(emit, arranged(emit, Laid(mean, layout), places.of((), width, True), repeat=False), found.dtype)


def described(found: Found) -> str:
    """`causal, scale 0.125, 4 heads share keys`: what of the op it has."""
    masks, parts = found.masks, []
    parts += ["causal"] * masks.causal + [f"window {masks.window}"] * bool(masks.window)
    parts += ["mask"] * bool(masks.conditions) + ["bias"] * bool(masks.bias)
    parts.append(f"scale {found.scale:.4g}")
    parts += [f"softcap {found.softcap:g}"] * bool(found.softcap)
    shared = math.prod(axis.size for axis in found.group)
    parts += [f"{shared} heads share keys"] * (shared > 1)
    return ", ".join(parts)

