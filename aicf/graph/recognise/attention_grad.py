"""The gradient of attention, spelt out in a graph that brings its own backward pass. Products around it are found by what they read, and what is
between them by computing it: only if it is what the gradient is, it is recognised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import Op, Value
from ...types import DType
from .arrange import Laid, sources
from .axes import Axis, Group, Layout, atoms, every, settled, unify
from .flow import Flow
from .forms import SOFTMAXES, FormOps, reached, refused, stray
from .probe import Layouts, Probe, Unknowable
from .products import crossing, factors, is_plain_product
from .scores import Scores
from .softmax import is_plain

FAR = 64  # ops between the products
EXACT = 1e-6
GRADIENT = FormOps(
    "the gradient of attention",
    SOFTMAXES | {"softmax_grad", "log_softmax_grad", "tanh", "tanh_grad", "power"},
)
_SPREADS = (
    (1.0, 1.0),
    (30.0, 1.0),
    (1e-3, 1e3),
    (300.0, 1e-3),
    (0.0, 1.0),
)  # of scores, and of the gradient of weights


class NoGradient(Exception):
    """What reads scores and weights is not their gradient; says why where it came close."""


@dataclass(frozen=True)
class Operands:
    """Of the forward pass: queries, keys and values as their products read them."""

    q: Laid
    k: Laid
    v: Laid
    keys: Group
    depth: Group
    values: Group


@dataclass(frozen=True)
class Piece:
    """The gradient of q, k or v, as a value of the graph."""

    value: Value
    layout: Layout


@dataclass(frozen=True)
class Gradient:
    """dout    the gradient of the result
    pieces     by "q", "k" and "v": those that the graph makes
    ops        all that go, in order
    first      the first of them that reads dout
    wide       whether some piece is kept in f32, and others are halves
    """

    dout: Laid
    pieces: dict[str, Piece]
    ops: tuple[Op, ...]
    first: Op
    wide: bool


def gradient_of(
    flow: Flow,
    domain: Layouts,
    scores: Scores,
    weights: Value,
    forward: Sequence[Op],
    inner: Sequence[Op],
    operands: Operands,
) -> Gradient:
    """forward: ops from the product of queries and keys to the product of weights and values; inner: all ops of the forward pass."""
    return _Backward(flow, domain, scores, weights, forward, inner, operands).found()


class _Backward:
    def __init__(
        self, flow: Flow, domain: Layouts, scores: Scores, weights: Value, forward: Sequence[Op], inner: Sequence[Op], operands: Operands
    ) -> None:  # fmt: skip
        self.flow, self.scores, self.weights, self.operands = flow, scores, weights, operands
        self.domain = Layouts(flow, domain.layouts)
        self.forward = sorted({op.oid: op for op in forward}.values(), key=lambda op: op.oid)
        self.inner = {op.oid for op in inner}
        self.made = {vid for op in self.forward for vid in op.outputs}

    def found(self) -> Gradient:
        flow = self.flow
        within, products = self._behind()
        entry, first = self._entry(within) if within else ([], None)
        ops = sorted({op.oid: op for op in (*entry, *within)}.values(), key=lambda op: op.oid)
        if self.domain.follow(ops) is not None:
            raise NoGradient(", whose axes are no attention's")
        dout = self._dout(first) if first is not None else self._dout_of_values(products)
        pieces, ends = self._pieces(products, dout)
        self._check(ops, None if first is None else flow.result(first), ends)
        starts = products if first is None else [first, *products]
        gone = sorted({op.oid: op for op in (*starts, *ops)}.values(), key=lambda op: op.oid)
        kinds = {dout.value.dtype, self.operands.v.value.dtype}.union(
            *(flow.kept_as(p.value) for p in pieces.values())
        )
        earliest = min(starts, key=lambda op: op.oid)
        return Gradient(dout, pieces, tuple(gone), earliest, len(kinds) > 1)

    # --- which ops --------------------------------------------------------------------------------------------------------

    def _behind(self) -> tuple[list[Op], list[Op]]:
        """Ops that compute with scores and weights, and the products that they end in."""
        flow = self.flow
        within: dict[int, Op] = {}
        products: dict[int, Op] = {}
        waiting = [*self.made]
        while waiting:
            value = flow.value(waiting.pop())
            if flow.is_returned(value):
                raise NoGradient(", which is returned")
            for op in flow.readers(value):
                if op.oid in self.inner or op.oid in within or op.oid in products:
                    continue
                if op.kind == "gemm":
                    products[op.oid] = op
                elif is_plain(op) and not op.constraints.get("sync") and len(within) < FAR:
                    within[op.oid] = op
                    waiting += op.outputs
                else:
                    raise NoGradient(f", and by {op.kind}")
        return [within[n] for n in sorted(within)], [products[n] for n in sorted(products)]

    def _entry(self, within: Sequence[Op]) -> tuple[list[Op], Op]:
        """The product that the gradient of weights is, and what is done with it before it meets them."""
        flow = self.flow
        known = (
            self.made
            | {vid for op in within for vid in op.outputs}
            | {h.condition.vid for h in self.scores.hidden}
        )
        entry: dict[int, Op] = {}
        first: dict[int, Op] = {}
        waiting = [v for op in within for v in flow.operands(op)]
        while waiting:
            value = waiting.pop()
            op = value.producer
            if (
                value.vid in known
                or flow.number(value) is not None
                or (op is not None and op.oid in {**entry, **first})
            ):
                continue
            if op is None or len(entry) > FAR:
                raise NoGradient(f", which also reads {value.name}")
            if op.kind == "gemm":
                first[op.oid] = op
            elif is_plain(op):
                entry[op.oid] = op
                waiting += flow.operands(op)
            else:
                raise NoGradient(f", which also reads {op.kind}")
        if len(first) != 1:
            raise NoGradient(
                f", with {len(first)} products where the gradient of weights is one" if first else ""
            )
        (only,) = first.values()
        if not is_plain_product(only):
            raise NoGradient(", where the gradient of weights is more than a product")
        return list(entry.values()), only

    # --- what they read and make ------------------------------------------------------------------------------------------

    def _dout(self, first: Op) -> Laid:
        layout = self.domain.of(self.flow.result(first))
        left, right, inner = factors(self.flow, first, layout, free=True)
        for values, dout, group in ((left, right, layout[-2]), (right, left, layout[-1])):
            if (
                group == self.operands.keys
                and unify(inner, self.operands.values)
                and self._same(values, self.operands.v)
            ):
                return dout
        raise NoGradient(", where the gradient of weights is not that of the result times values")

    def _dout_of_values(self, products: Sequence[Op]) -> Laid:
        """Where the gradient of values is all that there is."""
        crossed = None
        if len(products) == 1:
            side = 0 if self._is_score_like(self.flow.value(products[0].inputs[0])) else 1
            layout = self.domain.of(self.flow.value(products[0].inputs[side]))
            crossed = crossing(self.flow, products[0], side, layout, free=True)
        if (
            crossed is None
            or crossed.rows != self.operands.keys
            or not unify(crossed.width, self.operands.values)
        ):
            raise NoGradient("")
        return crossed.other

    def _same(self, one: Laid, other: Laid) -> bool:
        """Whether both are the same tensor, seen in the same way."""
        for a in sources(self.flow, one.value, one.layout):
            for b in sources(self.flow, other.value, other.layout):
                if a.value.vid == b.value.vid:
                    return (
                        len(a.layout) == len(b.layout)
                        and all(map(unify, a.layout, b.layout))
                        and settled(a.layout) == settled(b.layout)
                    )
        return False

    def _pieces(self, products: Sequence[Op], dout: Laid) -> tuple[dict[str, Piece], dict[str, Value]]:
        """The gradients, and what each is a product of: weights, or the gradient of scores."""
        flow, keys = self.flow, self.operands.keys
        pieces: dict[str, Piece] = {}
        ends: dict[str, Value] = {}
        inside = set(self.domain.layouts)
        for op in products:
            side = 0 if op.inputs[0] in inside and self._is_score_like(flow.value(op.inputs[0])) else 1
            value = flow.value(op.inputs[side])
            crossed = crossing(flow, op, side, self.domain.of(value), free=True)
            if crossed is None:
                raise NoGradient(", and by what is more than a product")
            if crossed.along == keys:
                name, other = "q", self.operands.k
            elif crossed.rows == keys and self._is_dout(crossed.other, dout):
                name, other = "v", dout
            else:
                name, other = "k", self.operands.q
            if crossed.along != keys and crossed.rows != keys:
                raise NoGradient(", and by a product along other axes")
            if not self._same(crossed.other, other) or name in pieces:
                raise NoGradient(f", and by a product that is not the gradient of {name}")
            pieces[name], ends[name] = Piece(flow.result(op), crossed.layout), value
        return pieces, ends

    def _is_score_like(self, value: Value) -> bool:
        return set(every(self.domain.of(value))) == set(
            every(self.domain.of(self.flow.value(self.forward[0].outputs[0])))
        )

    def _is_dout(self, one: Laid, dout: Laid) -> bool:
        wanted = {x.value.vid for x in sources(self.flow, dout.value, dout.layout)}
        return any(x.value.vid in wanted for x in sources(self.flow, one.value, one.layout))

    # --- what they compute ------------------------------------------------------------------------------------------------

    def _check(self, ops: Sequence[Op], dp: Value | None, ends: dict[str, Value]) -> None:
        """NoGradient unless the ends are weights and the gradient of scores: of no op that a gradient has not, and by samples."""
        product = self.flow.result(self.scores.product)
        dp = product if dp is None else dp
        ops = [*self.forward[1:], *ops]
        starts = {product.vid, dp.vid}
        other = stray(self.flow, GRADIENT, reached(self.flow, ends.values(), ops, starts), starts)
        if other is not None:
            raise NoGradient(f": {refused(GRADIENT, other)}")
        for seed, spreads in enumerate(_SPREADS):
            self._sampled(ops, product, dp, ends, spreads, np.random.default_rng((3, seed)))

    def _sampled(
        self, ops: Sequence[Op], product: Value, dp: Value, ends: dict[str, Value], spreads: tuple[float, float], rng: np.random.Generator
    ) -> None:  # fmt: skip
        """NoGradient unless the ends are weights and the gradient of scores, at scores and gradients that are spread so far."""
        domain, scores = self.domain, self.scores
        keys = atoms(self.operands.keys)
        others = tuple(axis for axis in every(domain.of(product)) if axis not in keys)
        order = (*others, *keys)
        sizes: dict[Axis, int] = {axis: 2 + n % 2 for n, axis in enumerate(others)} | dict.fromkeys(keys, 4)
        for layout in list(domain.layouts.values()):
            sizes |= {axis: 2 for axis in every(layout) if axis not in sizes}

        def drawn(value: Value, spread: float = 1.0) -> tuple[np.ndarray, Group]:
            own = every(domain.of(value))
            shape = [sizes[axis] for axis in own]
            return (
                rng.random(shape) < 0.6 if value.dtype is DType.bool else spread * rng.normal(size=shape)
            ), own

        given = {product.vid: drawn(product, spreads[0])} | {dp.vid: drawn(dp, spreads[1])}
        given |= {added.value.vid: drawn(added.value) for added in scores.added}
        seen = np.ones([sizes[axis] for axis in order], np.bool_)
        probe = Probe(domain, sizes, given)
        for hidden in scores.hidden:
            array, own = drawn(hidden.condition)
            probe.arrays[hidden.condition.vid] = (array, own)
            seen &= probe.whole(hidden.condition, order) == hidden.shown
        try:
            probe.run(ops)
            made = {name: probe.whole(value, order) for name, value in ends.items()}
        except Unknowable as unknown:
            raise NoGradient(f", which also reads {unknown}") from None
        raw, grad = probe.whole(product, order), probe.whole(dp, order)
        weights = probe.whole(self.weights, order)
        slope = scores.scale * (
            1 - np.tanh(scores.scale * raw / scores.softcap) ** 2 if scores.softcap else 1.0
        )
        axes = tuple(n for n, axis in enumerate(order) if axis in keys)
        ds = weights * (grad - (weights * grad).sum(axes, keepdims=True)) * slope * seen
        whole = np.broadcast_to(seen.any(axes, keepdims=True), ds.shape)
        rounded = 1e-12 * abs(scores.scale) * np.abs(grad).max(initial=0.0)  # where weights are 0 and 1
        for name, array in made.items():
            got, want = array[whole], (weights if name == "v" else ds)[whole]
            near = EXACT * np.abs(want).max(initial=0.0) + rounded * (name != "v")
            if not np.allclose(got, want, rtol=EXACT, atol=near):
                raise NoGradient(f", by what is not the gradient of {name}")
