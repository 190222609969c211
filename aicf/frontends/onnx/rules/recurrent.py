"""LSTM, GRU and RNN: the products of all inputs as one GEMM, and a scan for each direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....ir import Value
from ....types import DType
from ..operands import Call, Operand
from ..table import rule

ACTIVATIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu"}
FIRST = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
Cell = Callable[["_Direction", tuple[Value, ...], Value], tuple[Value, ...]]


@dataclass
class _Direction:
    """The weights of one direction, and what the node says of its steps."""

    n: Call
    recurrent: Value  # (gates * hidden, hidden)
    inner: Value | None  # biases that are added to the product of the state
    peepholes: Value | None
    acts: tuple[str, ...]
    hidden: int

    @property
    def ctx(self) -> Any:
        return self.n.ctx

    def part(self, x: Value, gate: int) -> Value:
        return x[:, gate * self.hidden : (gate + 1) * self.hidden]

    def product(self, h: Value, gates: slice | None = None) -> Value:
        weight, bias = self.recurrent, self.inner
        if gates is not None:
            rows = slice(gates.start * self.hidden, gates.stop * self.hidden)
            weight, bias = weight[rows], None if bias is None else bias[rows]
        y: Value = self.ctx.gemm(h, weight, trans_b=True)
        return y if bias is None else self.ctx.bias_add(y, bias)

    def act(self, which: int, x: Value) -> Value:
        clip = self.n.attr("clip")
        x = x if clip is None else self.ctx.clamp(-clip, x, clip)
        y: Value = getattr(self.ctx, ACTIVATIONS[self.acts[which]])(x)
        return y

    def peep(self, x: Value, c: Value, which: int) -> Value:
        if self.peepholes is None:
            return x
        return x + c * self.peepholes[which * self.hidden : (which + 1) * self.hidden]


def _lstm(d: _Direction, state: tuple[Value, ...], row: Value) -> tuple[Value, ...]:
    """Gates i, o, f, c."""
    h, c = state
    gates = d.product(h) + row
    i = d.act(0, d.peep(d.part(gates, 0), c, 0))
    f = 1.0 - i if d.n.attr("input_forget") else d.act(0, d.peep(d.part(gates, 2), c, 2))
    c = f * c + i * d.act(1, d.part(gates, 3))
    o = d.act(0, d.peep(d.part(gates, 1), c, 1))
    return o * d.act(2, c), c


def _gru(d: _Direction, state: tuple[Value, ...], row: Value) -> tuple[Value, ...]:
    """Gates z, r, h; the reset gate is before the product of the state, or behind it."""
    (h,) = state
    if d.n.attr("linear_before_reset"):
        inner = d.product(h)
        z, r = (d.act(0, d.part(row, n) + d.part(inner, n)) for n in (0, 1))
        made = d.act(1, d.part(row, 2) + r * d.part(inner, 2))
    else:
        inner = d.product(h, slice(0, 2))
        z, r = (d.act(0, d.part(row, n) + d.part(inner, n)) for n in (0, 1))
        made = d.act(1, d.part(row, 2) + d.product(r * h, slice(2, 3)))
    return (made + z * (h - made),)


def _rnn(d: _Direction, state: tuple[Value, ...], row: Value) -> tuple[Value, ...]:
    return (d.act(0, d.product(state[0]) + row),)


def _run(
    n: Call, cell: Cell, gates: int, x: Operand, w: Operand, r: Operand, b: Operand | None, lengths: Operand | None,
    starts: list[Operand | None], peepholes: Operand | None = None,
) -> tuple[Value, ...]:  # fmt: skip
    """What all steps show, and the last states."""
    if x.dtype.kind != "float" or x.dtype is DType.f64:
        raise n.refuse(f"aicf has no product of {x.dtype}")
    direction, turned = n.attr("direction"), bool(n.attr("layout", 0))
    count = 2 if direction == "bidirectional" else 1
    hidden = r.shape[2] if r.rank == 3 else 0
    if (
        x.rank != 3
        or w.shape != (count, gates * hidden, x.shape[2])
        or r.shape != (count, gates * hidden, hidden)
        or not hidden
    ):
        raise n.wrong(f"X {list(x.shape)}, W {list(w.shape)} and R {list(r.shape)} do not fit")
    ctx, rows = n.ctx, n.value(x)
    rows = rows.transpose(1, 0, 2) if turned else rows
    steps, batch, features = rows.shape
    acts = _activations(n, count)
    mask = _mask(n, lengths, steps, batch)
    zeros = (
        ctx.fill(shape=(batch, hidden), value=0.0, dtype=x.dtype)
        if None in starts or mask is not None
        else None
    )
    shown, ends = [], list[tuple[Value, ...]]()
    for way in range(count):
        outer, inner = _biases(n, b, gates * hidden, way)
        product = ctx.gemm(rows.reshape(steps * batch, features), n.value(w)[way], trans_b=True)
        product = product if outer is None else ctx.bias_add(product, outer)
        of = _Direction(
            n,
            n.value(r)[way],
            inner,
            None if peepholes is None else n.value(peepholes)[way],
            acts[way],
            hidden,
        )
        given = tuple(
            zeros if s is None else n.value(s)[:, way] if turned else n.value(s)[way] for s in starts
        )

        def step(state: tuple[Value, ...], row: Any, of: _Direction = of) -> Any:
            made = cell(of, state, row["product"])
            if mask is None:
                return made, made[0]
            kept = tuple(ctx.select(row["mask"], new, old) for new, old in zip(made, state))
            return kept, ctx.select(row["mask"], made[0], zeros)

        xs = {"product": product.reshape(steps, batch, gates * hidden)} | (
            {} if mask is None else {"mask": mask}
        )
        back = direction == "reverse" or way == 1
        end, y = ctx.scan(step, given, xs, reverse=back)
        shown.append(y)
        ends.append(end)
    y = _stacked(ctx, shown, 1)
    states = [_stacked(ctx, [end[k] for end in ends], 0) for k in range(len(starts))]
    if turned:
        return y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in states)
    return y, *states


def _activations(n: Call, count: int) -> list[tuple[str, ...]]:
    kind = FIRST[n.node.op]
    names = n.attr("activations") or list(kind) * count
    if lacking := [name for name in names if name not in ACTIVATIONS]:
        raise n.refuse(f"aicf has no activation {lacking[0]} in it; it has {', '.join(ACTIVATIONS)}")
    if len(names) < len(kind) * count:  # an RNN's default has one for each of two directions
        raise n.wrong(f"{len(names)} activations for {count} directions of {len(kind)}")
    return [tuple(names[way * len(kind) : (way + 1) * len(kind)]) for way in range(count)]


def _mask(n: Call, lengths: Operand | None, steps: int, batch: int) -> Value | None:
    """(steps, batch, 1): whether a sequence has the step."""
    if lengths is None or (lengths.is_known and (lengths.array == steps).all()):  # type: ignore[union-attr]
        return None
    ctx = n.ctx
    places = ctx.iota(shape=(steps, batch, 1), axis=0, dtype=lengths.dtype)
    mask: Value = ctx.less(places, n.value(lengths).reshape(1, batch, 1))
    return mask


def _biases(n: Call, b: Operand | None, rows: int, way: int) -> tuple[Value | None, Value | None]:
    """What is added to the products of inputs, and of the state: of a GRU each apart."""
    if b is None:
        return None, None
    both = n.value(b)[way]
    outer, inner = both[:rows], both[rows:]
    return (outer, inner) if n.node.op == "GRU" else (outer + inner, None)


def _stacked(ctx: Any, parts: list[Value], axis: int) -> Value:
    made = [p.reshape(*p.shape[:axis], 1, *p.shape[axis:]) for p in parts]
    y: Value = made[0] if len(made) == 1 else ctx.concatenate(*made, axis=axis)
    return y


@rule("LSTM", since=7, folds=False)
def _(
    n: Call, x: Operand, w: Operand, r: Operand, b: Operand | None = None, lengths: Operand | None = None, h: Operand | None = None,
    c: Operand | None = None, p: Operand | None = None,
) -> Any:  # fmt: skip
    return _run(n, _lstm, 4, x, w, r, b, lengths, [h, c], p)


@rule("GRU", since=7, folds=False)
def _(
    n: Call, x: Operand, w: Operand, r: Operand, b: Operand | None = None, lengths: Operand | None = None, h: Operand | None = None
) -> Any:  # fmt: skip
    return _run(n, _gru, 3, x, w, r, b, lengths, [h])


@rule("RNN", since=7, folds=False)
def _(
    n: Call, x: Operand, w: Operand, r: Operand, b: Operand | None = None, lengths: Operand | None = None, h: Operand | None = None
) -> Any:  # fmt: skip
    return _run(n, _rnn, 1, x, w, r, b, lengths, [h])
