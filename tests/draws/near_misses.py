"""Near misses of what is recognised: a spelling of a form, drawn, with one op more, or one that is another, at a drawn place of its graph.

Whatever recognition does with such a graph, its results stay those of the graph without recognition: both are computed in f64 by the ops' references, on
inputs that are as hard as those that users have. Every form of `RECOGNISERS` needs a spelling here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aicf.errors import AicfError
from aicf.graph.emit.autodiff import from_seeds
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.evaluate import evaluate
from aicf.graph.emit.passes import verify
from aicf.graph.recognise.flow import Flow
from aicf.graph.recognise.run import recognise
from aicf.ir import Op, Role, Value

NAME = "near misses"
TRIES = 40


@dataclass(frozen=True)
class Slip:
    """What is different: `kind`, at an operand of an op, by its number; `late`: behind the gradients, not before."""

    kind: str
    op: int
    operand: int
    number: float
    late: bool = False


@dataclass(frozen=True)
class NearMiss:
    """A spelling of a form, which follows from a seed, with its gradient or without; None for the form as it is."""

    form: str
    seed: int
    gradient: bool
    slip: Slip | None = None


# --- graphs -----------------------------------------------------------------------------------------------------------


class Spelling:
    """A graph under construction, and how its inputs are drawn."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.ctx: Any = GraphEmitter(Builder(), "cpu")
        self.inputs: dict[Value, int | None] = {}  # of integers: what they are less than
        self.wrt: list[Value] = []

    @property
    def graph(self) -> Any:
        return self.ctx.builder.graph

    def real(self, name: str, *shape: int, wrt: bool = True) -> Value:
        value = self.ctx.input(name, shape, "f32")
        self.inputs[value] = None
        if wrt:
            self.wrt.append(value)
        return value

    def integers(self, name: str, *shape: int, below: int, dtype: str = "i32") -> Value:
        value = self.ctx.input(name, shape, dtype)
        self.inputs[value] = below
        return value

    def any(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def feed(self, seed: int) -> dict[Value, np.ndarray]:
        rng = np.random.default_rng((seed, 1))
        fed = {}
        for value, below in self.inputs.items():
            if below is None:
                fed[value] = np.asarray(_hard(rng, value.shape, seed), np.float64)
            else:
                fed[value] = rng.integers(0, below, value.shape).astype(value.dtype.numpy)
        return fed | {v: np.zeros(v.shape, np.int64) for v in self.graph.externals(Role.fault)}


def _hard(rng: np.random.Generator, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Numbers as training has them, then such as it has at its worst; each row of another kind."""
    x = rng.normal(size=shape)
    if seed == 0 or not shape:
        return x
    rows = np.empty((*shape[:-1], 1))
    kinds = rng.integers(0, 8, rows.shape)
    scale = np.select([kinds == n for n in range(8)], [1.0, 30.0, 90.0, 1e-3, 0.0, 1.0, 5.0, 1e-2])
    x = scale * x + np.where(kinds == 4, rng.normal(size=rows.shape), np.where(kinds == 5, 100.0, 0.0))
    one = rng.integers(0, shape[-1], rows.shape) == np.arange(shape[-1])
    return np.where(one & (kinds == 6), rng.uniform(20, 200), x)


FEEDS = 6


# --- spellings --------------------------------------------------------------------------------------------------------


def _softmax(s: Spelling, x: Value, axis: int, ops: bool = True) -> Value:
    """Spelt out, or as one op if there may be `ops`."""
    c, along = s.ctx, {"axes": (axis,), "keepdims": True}
    how = s.any("op", "exponentials", "guarded maximum", "logarithm", "difference of logarithms")
    if how == "op" and ops:
        return c.softmax(x, axis=axis)
    if how == "logarithm":
        return c.exp(c.log_softmax(x, axis=axis))
    most = c.reduce_max(x, **along)
    if how == "difference of logarithms":
        total = c.log(c.reduce_sum(c.exp(c.sub(x, most)), **along))
        return c.exp(c.sub(c.sub(x, most), total))
    most = c.maximum(-math.inf, most) if how == "guarded maximum" else most
    e = c.exp(c.sub(x, most))
    return c.div(e, c.reduce_sum(e, **along))


def attention(s: Spelling) -> list[Value]:
    c, (t, keys) = s.ctx, s.any((4, 4), (3, 5), (6, 6))
    q, k, v = s.real("q", 2, 2, t, 4), s.real("k", 2, 2, keys, 4), s.real("v", 2, 2, keys, 3)
    x = c.gemm(q, k, trans_b=True)
    x = s.any(lambda: c.mul(x, 0.5), lambda: c.div(x, 2.0), lambda: c.scale(x, factor=0.5))()
    if s.any(False, False, True):
        x = c.mul(c.tanh(c.div(x, 20.0)), 20.0)
    mask = s.any("none", "causal", "data", "added")
    if mask == "causal":
        row, column = (c.iota(shape=(t, keys), axis=n, dtype="i32") for n in (0, 1))
        x = c.select(c.less_equal(column, c.add(row, keys - t)), x, s.any(-math.inf, -1e9))
    elif mask == "data":
        seen = c.greater(s.integers("seen", 2, 1, t, keys, below=5), 0)
        x = c.select(seen, x, -1e9)
    elif mask == "added":
        x = c.add(x, s.real("bias", 2, 1, t, keys, wrt=False))
    return [c.gemm(_softmax(s, x, 3), v)]


def cross_entropy(s: Spelling) -> list[Value]:
    c, rows, classes = s.ctx, s.any(6, 10), s.any(9, 24, 40)
    x, y = s.real("x", rows, classes), s.integers("y", rows, below=classes)
    along = {"axes": (1,), "keepdims": True}
    how = s.any("op", "steps", "logarithm", "sum")
    if how == "op":
        logs = c.log_softmax(x, axis=1)
    elif how == "logarithm":
        logs = c.log(_softmax(s, x, 1, ops=False))  # the search starts at exponentials
    elif how == "sum":
        logs = c.sub(x, c.reshape(c.logsumexp(x, axis=1), shape=(rows, 1)))
    else:
        shifted = c.sub(x, c.reduce_max(x, **along))
        logs = c.sub(shifted, c.log(c.reduce_sum(c.exp(shifted), **along)))
    loss = c.neg(_picked(s, logs, y))
    after = s.any("rows", "weighted", "some", "mean")
    if after == "weighted":
        return [c.mul(loss, s.real("weights", rows, wrt=False))]
    if after == "some":
        return [c.select(c.not_equal(y, int(s.rng.integers(classes))), loss, 0.0)]
    return [c.reduce_mean(loss, axes=(0,), keepdims=False) if after == "mean" else loss]


def _picked(s: Spelling, logs: Value, y: Value) -> Value:
    c, (rows, classes) = s.ctx, logs.shape
    how = s.any("take", "gather", "product", "select")
    if how == "take":
        return c.reshape(c.take_along_axis(logs, c.reshape(y, shape=(rows, 1)), axis=1), shape=(rows,))
    if how == "gather":
        index = c.add(c.mul(c.iota(shape=(rows,), axis=0, dtype="i32"), classes), y)
        return c.gather(c.reshape(logs, shape=(rows * classes,)), index, axis=0)
    wide = c.broadcast_in_dim(y, shape=(rows, classes), dims=(0,))
    hot = c.equal(wide, c.iota(shape=(rows, classes), axis=1, dtype="i32"))
    one = c.mul(c.convert(hot, dtype="f32"), logs) if how == "product" else c.select(hot, logs, 0.0)
    return c.reduce_sum(one, axes=(1,), keepdims=False)


def norm(s: Spelling) -> list[Value]:
    c, centred = s.ctx, s.any(True, False)
    shape = s.any(
        (6, 8), (2, 4, 16)
    )  # whose inverse lengths f32 has exactly: terms that cancel show its rounding
    last = len(shape) - 1
    x = s.real("x", *shape)

    def mean(v: Value) -> Value:
        return c.reduce_mean(v, axes=(last,), keepdims=True)

    m = mean(x) if centred else None
    d = c.sub(x, m) if centred else x
    v = mean(s.any(c.square, lambda d: c.mul(d, d))(d))
    if centred and s.any(True, False):
        v = c.maximum(c.sub(mean(c.square(x)), c.square(m)), 0.0)
    total = c.add(v, s.any(1e-5, 1e-6, 1e-2))
    rstd = s.any(lambda: c.rsqrt(total), lambda: c.div(1.0, c.sqrt(total)))()
    h = c.mul(d, rstd)
    h = c.mul(h, s.real("w", shape[-1])) if s.any(True, False) else h
    return [h, c.copy(x)] if s.any(True, False) else [h]  # a residual


def mask(s: Spelling) -> list[Value]:
    c, t = s.ctx, s.any(4, 6)
    q, k, v = (s.real(n, 2, 2, t, 4) for n in "qkv")
    row, column = (c.iota(shape=(t, t), axis=n, dtype="i32") for n in (0, 1))
    seen = c.less_equal(column, row)
    if s.any(True, False):
        seen = c.logical_and(seen, c.greater(column, c.sub(row, 3)))
    if s.any(True, False):
        return [
            c.attention(
                q, k, v, None, None, c.select(seen, 0.0, c.fill(shape=(t, t), value=-math.inf, dtype="f32"))
            )
        ]
    return [c.attention(q, k, v, c.broadcast_in_dim(seen, shape=(2, 1, t, t), dims=(2, 3)))]


SPELLINGS: dict[str, Callable[[Spelling], list[Value]]] = {
    "attention": attention, "cross entropy": cross_entropy, "gradient of a norm": norm, "mask of attention": mask,
}  # fmt: skip


# --- slips ------------------------------------------------------------------------------------------------------------

Change = Callable[[Any, Value, float], Value]
OF_REALS: dict[str, Change] = {
    "a floor": lambda c, v, n: c.maximum(v, n),
    "a ceiling": lambda c, v, n: c.minimum(v, n),
    "large ones left out": lambda c, v, n: c.select(c.greater(v, n), 0.0, v),
    "small ones left out": lambda c, v, n: c.select(c.less_equal(v, n), 0.0, v),
    "large ones marked": lambda c, v, n: c.select(c.less(v, n), v, -1.0),
    "a soft cap": lambda c, v, n: c.mul(c.tanh(c.div(v, abs(n) + 1e-3)), abs(n) + 1e-3),
    "a soft floor": lambda c, v, n: c.log(c.add(c.exp(v), math.exp(min(n, 50.0)))),
    "a fold": lambda c, v, n: c.add(c.abs(c.sub(v, n)), n),
    "an eps": lambda c, v, n: c.add(v, 10.0 ** -(3 + abs(int(n)) % 30)),
    "a factor": lambda c, v, n: c.mul(v, 1.001),
    "a square": lambda c, v, n: c.add(v, c.mul(c.square(v), 1e-6)),
    "no NaN": lambda c, v, n: c.select(c.is_nan(v), 0.0, v),
    "the size": lambda c, v, n: c.abs(v),
    "no negatives": lambda c, v, n: c.relu(v),
    "steps": lambda c, v, n: c.floor(v),
}
OF_INTEGERS: dict[str, Change] = {
    "a bound": lambda c, v, n: c.minimum(v, int(n)),
    "one for another": lambda c, v, n: c.select(c.equal(v, int(n)), 0, v),
    "the next": lambda c, v, n: c.maximum(c.sub(v, 1), 0),
    "the row's number": lambda c, v, n: c.select(
        c.equal(v, c.iota(shape=v.shape, axis=0, dtype=v.dtype)), 0, v
    ),
}
OF_BOOLS: dict[str, Change] = {
    "the other way": lambda c, v, n: c.logical_not(v),
    "all": lambda c, v, n: c.logical_or(v, True),
}
OF_OPS = ("another axis", "another number", "a term left out")


def _slip(s: Spelling, results: list[Value], slip: Slip) -> None:
    """Change the graph; AicfError or IndexError where the slip does not fit."""
    flow = Flow(s.ctx, results)
    op = s.graph.ops[slip.op]
    if slip.kind == "another axis":
        _another_axis(s, flow, op)
        return
    operand = flow.operands(op)[slip.operand]
    if slip.kind == "a term left out":
        result = flow.result(op)
        if result.spec != operand.spec or flow.is_returned(result):
            raise IndexError(slip.kind)
        flow.read_instead(result, operand)
        flow.renumber()
        return
    number = flow.number(operand)
    if slip.kind == "another number" and (
        number is None or not math.isfinite(number) or operand.dtype.kind != "float"
    ):
        raise IndexError(slip.kind)

    def make() -> Value:
        if slip.kind == "another number":
            made: Value = s.ctx.fill(shape=operand.shape, value=number * 1.01 + 1e-4, dtype=operand.dtype)
            return made
        return {**OF_REALS, **OF_INTEGERS, **OF_BOOLS}[slip.kind](s.ctx, operand, slip.number)

    made = flow.before(op, make)
    assert made is not None
    if made.spec != operand.spec:
        raise IndexError(slip.kind)
    flow.read_by(op, operand, made)
    flow.renumber()


def _another_axis(s: Spelling, flow: Flow, op: Op) -> None:
    """Let a softmax or a reduction go along the axis before its own."""
    x, result = flow.operands(op)[0], flow.result(op)
    if op.kind in ("softmax", "log_softmax") and x.rank > 1:
        flow.amend(op, flow.operands(op), {"axis": op.attrs["axis"] % x.rank - 1})
        return
    axes = [n % x.rank for n in op.attrs["axes"]] if op.kind.startswith("reduce_") else []
    if len(axes) != 1 or axes[0] == 0 or x.shape[axes[0]] != x.shape[axes[0] - 1] or flow.is_returned(result):
        raise IndexError("another axis")
    perm = list(range(x.rank))
    perm[axes[0] - 1 : axes[0] + 1] = axes[0], axes[0] - 1
    reduce = getattr(s.ctx, op.kind)

    def make() -> Value:
        turned = s.ctx.transpose(x, perm=tuple(perm))
        made: Value = reduce(turned, axes=tuple(axes), keepdims=op.attrs["keepdims"])
        return made

    made = flow.before(op, make)
    assert made is not None and made.spec == result.spec
    flow.read_instead(result, made)
    flow.renumber()


# --- cases ------------------------------------------------------------------------------------------------------------


def built(case: NearMiss) -> tuple[Spelling, list[Value]]:
    """The graph of a case, and its results."""
    s = Spelling(case.seed)
    results = SPELLINGS[case.form](s)
    slip = case.slip
    if slip is not None and not slip.late:
        _slip(s, results, slip)
    if case.gradient:
        seeds = [(y, s.real(f"dy{n}", *y.shape, wrt=False)) for n, y in enumerate(results)]
        results += [
            dx for dx in from_seeds(s.ctx, seeds, s.wrt) if dx is not None and dx.producer is not None
        ]
    if slip is not None and slip.late:
        _slip(s, results, slip)
    return s, results


def values(s: Spelling, results: list[Value]) -> list[list[np.ndarray]]:
    """The results for each feed."""
    with np.errstate(all="ignore"):
        found = [evaluate(s.graph, s.feed(seed)) for seed in range(FEEDS)]
    return [[one[v] for v in results] for one in found]


def draw(rng: np.random.Generator, device: str = "cpu", form: str | None = None) -> NearMiss | None:
    """A spelling with a slip; the slip's number is one that its operand has, or nearly, for some feed."""
    for _ in range(TRIES):
        name = form or str(rng.choice(list(SPELLINGS)))
        gradient = name == "gradient of a norm" or bool(rng.random() < 0.5)
        base = NearMiss(name, int(rng.integers(2**31)), gradient)
        late = gradient and bool(rng.random() < 0.4)
        s, results = built(base if late else replace(base, gradient=False))
        n = int(rng.integers(len(s.graph.ops)))
        operands = Flow(s.ctx, results).operands(s.graph.ops[n])
        if not operands:
            continue
        place = int(rng.integers(len(operands)))
        kinds = {"float": OF_REALS, "bool": OF_BOOLS}.get(operands[place].dtype.kind, OF_INTEGERS)
        kind = str(rng.choice(OF_OPS if rng.random() < 0.2 else list(kinds)))
        case = replace(base, slip=Slip(kind, n, place, _number(rng, s, operands[place]), late))
        try:
            built(case)
        except (AicfError, IndexError):
            continue
        return case
    return None


def _number(rng: np.random.Generator, s: Spelling, value: Value) -> float:
    with np.errstate(all="ignore"):
        met = np.concatenate([np.ravel(evaluate(s.graph, s.feed(n))[value]) for n in range(FEEDS)]).astype(
            np.float64
        )
    met = met[np.isfinite(met)]
    number = float(rng.choice(met)) if met.size else 1.0
    return float(np.float32(number * rng.choice([0.9, 1.0, 1.1])))


def recognised(case: NearMiss) -> tuple[str, list[str]]:
    """(how results differ from those without recognition, or nothing; the forms that were recognised)."""
    s, results = built(case)
    results = [v if v.role == "tmp" else s.ctx.copy(v) for v in results]
    wanted = values(s, results)
    notes = recognise(s.ctx, results, lambda *_: 0.0)
    for n, value in enumerate(results):
        s.ctx.builder.output(f"y{n}", value)
    verify(s.graph)
    found = [note.what for note in notes if note.ops]
    for feed, (want, got) in enumerate(zip(wanted, values(s, results))):
        largest = max(float(np.abs(x).max(initial=1.0)) for x in s.feed(feed).values() if x.dtype.kind == "f")
        for n, (w, g) in enumerate(zip(want, got)):
            if said := _differs(w, g, largest):
                return f"result {n} for feed {feed}: {said}; recognised: {', '.join(found)}", found
    return "", found


def _differs(want: np.ndarray, got: np.ndarray, largest: float) -> str:
    """How they differ; products of inputs as large as `largest` are rounded. Where a graph overflows, or meets 0 times infinity, the op need not."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    finite = np.isfinite(want)
    sizes = np.abs(np.where(finite, want, 0.0))
    row = sizes.max(-1, keepdims=True) if sizes.ndim else sizes
    near = 2e-6 * row + 1e-8 * sizes.max(initial=0.0) + 1e-14 * largest**2 + 1e-12
    with np.errstate(all="ignore"):
        bad = finite & ~(np.abs(want - got) <= near)
    if not bad.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{got[at]:.7g} where {want[at]:.7g} is right, at {at}, and {int(bad.sum())} elements in all"


def check(case: NearMiss, device: str = "cpu") -> str | None:
    """None, or how results differ from those of the graph without recognition."""
    return recognised(case)[0] or None


def smaller(case: NearMiss) -> Iterator[NearMiss]:
    """Without the gradient, where the slip is before it."""
    if case.gradient and case.slip is not None and not case.slip.late:
        yield replace(case, gradient=False)


def script(case: NearMiss, device: str = "cpu") -> str:
    """A program that shows the graph and how results differ."""
    s, _ = built(case)
    ops = "\n".join(f"# {op.oid}: {op.kind} {op.inputs} -> {op.outputs} {op.attrs}" for op in s.graph.ops)
    return f"""# Run it in the repository. The graph:
{ops}
import sys

sys.path[:0] = ["tests", "."]
from draws.near_misses import NearMiss, Slip, check

print(check({case!r}) or "equal")
"""
