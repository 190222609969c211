"""Random graphs over the op set: drawn once as data, then emitted as often as a test likes.

A Dag is a list of steps over a pool of values: first x and the states, then every step's results in order. Values keep a
bound on their magnitude while they are drawn, so that nothing overflows, and what compares or converts reads inputs alone:
a rounding error must not become a jump. Numbers are checked against the ops' references in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import aicf
from aicf.errors import AttrError, TypeInferenceError
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.ir import EXTERNAL, Graph, Role, Value
from aicf.ops.schema import schema_of
from aicf.rows import RegionOp, RegionSpec
from aicf.types import ActKind, DType, OpKind, TensorDesc, TensorSpec

F32, I32, BOOL = DType.f32, DType.i32, DType.bool
UNARY = ["relu", "neg", "abs", "tanh", "sigmoid", "gelu", "leaky_relu", "exp", "square", "scale", "copy"]
BINARY = ["add", "sub", "mul", "maximum", "minimum"]
COMPARE = ["less", "less_equal", "greater", "greater_equal"]
RULES = [
    "unary", "unary", "unary", "binary", "binary", "binary", "bias", "broadcast", "reduce", "gemm", "select", "convert",
    "constant", "ratio", "grad", "dropout", "step", "backward",
]  # fmt: skip
LARGEST = 50.0


@dataclass(frozen=True)
class Step:
    """One op. Operands are places in the pool, numbers as floats, or None; `rng` stands for the graph's random state."""

    kind: str
    operands: tuple[int | float | str | None, ...]
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Dag:
    """x and y of `shape` are inputs; states follow; `outputs` are places in the pool. `fences`: steps with a sync point before."""

    shape: tuple[int, int]
    states: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    fences: frozenset[int] = frozenset()

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> list[Value]:
        pool = [inputs["x"], inputs["y"]]
        for n, shape in enumerate(self.states):
            pool.append(ctx.state(f"s{n}", shape, lambda shape, rng: rng.normal(size=shape)))
        for n, step in enumerate(self.steps):
            if n in self.fences:
                ctx.sync()
            given, attrs = [], dict(step.attrs)
            for operand in step.operands:
                if operand == "rng":
                    rng, attrs["layer"] = ctx.random()
                    given.append(rng)
                else:
                    given.append(pool[operand] if isinstance(operand, int) else operand)
            made = ctx.op(step.kind, *given, **attrs)
            pool += made if isinstance(made, tuple) else [made]
            for result, (operand, how) in schema_of(step.kind).alias.items():
                if how == "must":
                    ctx.update(given[operand], made[result])
        return [pool[n] for n in self.outputs]

    def graph(self, device: str = "cpu") -> Graph:
        """The bare graph, for selection."""
        builder = Builder()
        ctx = GraphEmitter(builder, device)
        for n, value in enumerate(self.emit(ctx, {name: ctx.input(name, self.shape) for name in "xy"})):
            builder.output(f"output{n}", value)
        return builder.graph

    def feed(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, *self.shape])
        return {name: rng.normal(size=self.shape).astype(np.float32) for name in "xy"}


class Model:
    """A Dag as something that compiles, all its outputs returned."""

    def __init__(self, dag: Dag) -> None:
        self.dag, self.seed, self.sizes = dag, 3, {}
        self.inputs = {name: TensorSpec(dag.shape) for name in "xy"}

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Value:
        *others, last = self.dag.emit(ctx, inputs)
        for n, value in enumerate(others):
            ctx.builder.output(f"output{n}", value)
        return last


def exact(graph: Graph, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs and new states by name: every op's reference in order, floats in float64."""
    env = {}
    for value in graph.externals(*EXTERNAL):
        array = value.init(value.shape, None) if value.constant else known[value.name]
        env[value.vid] = np.asarray(array, np.float64 if value.dtype.kind == "float" else value.dtype.numpy)
    for op in graph.ops:
        made = schema_of(op.kind).call_reference([env[v] if v >= 0 else None for v in op.inputs], op.attrs)
        env.update(zip(op.outputs, made))
    found = {value.name: env[value.vid] for value in graph.outputs}
    found |= {graph.values[old].name: env[new] for old, new in graph.updates.items()}
    return found


def whole_region(graph: Graph, order: list[int] | None = None, strict: bool = False) -> RegionSpec:
    """All ops of a graph as one region, in this order; tensors are numbered as they are met."""
    number: dict[int, int] = {-1: -1}
    ops, made = [], set()
    for i in order if order is not None else range(len(graph.ops)):
        op = graph.ops[i]
        ins, outs = (
            tuple(number.setdefault(v, len(number) - 1) for v in vids) for vids in (op.inputs, op.outputs)
        )
        ops.append(RegionOp(OpKind(op.kind), schema_of(op.kind).pack(op.attrs), ins, outs))
        made.update(outs)
    del number[-1]
    kept = {v.vid for v in graph.values if v.role is Role.output} | set(graph.updates.values())
    return RegionSpec(
        tuple(ops),
        tuple(TensorDesc.dense(graph.values[v].spec) for v in number),
        tuple(n for n in number.values() if n not in made),
        tuple(n for v, n in number.items() if v in kept),
        strict,
    )


def random_order(graph: Graph, pick: Any) -> list[int]:
    """A linear extension of the ops' order; `pick` chooses one of a list."""
    makers = {v: i for i, op in enumerate(graph.ops) for v in op.outputs}
    waits = [{makers[v] for v in op.inputs if v in makers} for op in graph.ops]
    order: list[int] = []
    while len(order) < len(waits):
        order.append(pick([i for i in range(len(waits)) if i not in order and waits[i] <= set(order)]))
    return order


# --- drawing ----------------------------------------------------------------------------------------------------------


@dataclass
class _Held:
    """What is known of a value of the pool while a Dag is drawn."""

    spec: TensorSpec
    bound: float
    plain: bool = False  # an input or a state as it was given: what may be compared
    gone: bool = False  # written over
    state: bool = False
    read: bool = False


class _Drawer:
    def __init__(self, draw: Any, shape: tuple[int, int], halves: bool) -> None:
        rows, columns = shape
        self.draw, self.halves = draw, halves
        shapes = [(columns,), (columns, columns), (), shape, shape, (rows, 1), (rows,)]
        self.states = tuple(draw(st.lists(st.sampled_from(shapes), min_size=2, max_size=4)))
        self.pool = [_Held(TensorSpec(s), 4.0, plain=True) for s in (shape, shape)]
        self.pool += [_Held(TensorSpec(s), 4.0, plain=True, state=True) for s in self.states]
        self.steps: list[Step] = []

    def dag(self, count: int, rules: list[str]) -> Dag:
        for _ in range(count):
            getattr(self, "_" + self.draw(st.sampled_from(rules)))()
        made = range(2 + len(self.states), len(self.pool))
        left = [n for n in made if not (self.pool[n].read or self.pool[n].gone)]
        inner = [n for n in made if self.pool[n].read and not self.pool[n].gone]
        extra = self.draw(st.lists(st.sampled_from(inner), unique=True, max_size=2)) if inner else []
        if not (left or extra):
            self._add("neg", (0,), 4.0)
            left = [len(self.pool) - 1]
        return Dag(
            tuple(self.pool[0].spec.shape), self.states, tuple(self.steps), tuple(sorted([*left, *extra]))
        )

    def _pick(self, fits: Any = lambda v: True, dtype: DType | None = F32) -> int | None:
        """A value of the pool; later ones more often than not, so that chains are long."""
        found = [
            n for n, v in enumerate(self.pool)
            if not v.gone and (dtype is None or v.spec.dtype is dtype) and fits(v)
        ]  # fmt: skip
        if not found:
            return None
        return self.draw(st.one_of(st.sampled_from(found), st.sampled_from(found[-3:])))

    def _add(self, kind: str, operands: tuple, bound: float, **attrs: Any) -> int | None:
        """The step, if the op takes these operands and stays within the bound; the place of its first result."""
        schema = schema_of(kind)
        left_out = [d for d, o in zip(schema.operands, operands) if o is None]
        if not (all(d.optional for d in left_out) and bound <= LARGEST):
            return None
        given = [self.pool[o].spec if isinstance(o, int) else TensorSpec((2,), "i64") if o == "rng" else None
                 for o in operands]  # fmt: skip
        shared = next((s.dtype for s in given if s is not None), F32)
        for n, o in enumerate(operands):
            if isinstance(o, float):
                given[n] = TensorSpec((), shared if schema.operands[n].type.shared else F32)
        given += [TensorSpec((), DType.bool) for d in schema.operands[len(given) :] if d.type.name == "flag"]
        try:
            packed = schema.pack(
                schema.normalized(given, attrs | ({"layer": 0} if "rng" in operands else {}))
            )
            made = schema.infer(given, packed)
        except (TypeInferenceError, AttrError):
            return None
        if any(s.rank > 2 for s in made):
            return None
        for o in operands:
            if isinstance(o, int):
                self.pool[o].read = True
        self.steps.append(Step(kind, operands, tuple(attrs.items())))
        self.pool += [_Held(s, bound) for s in made]
        return len(self.pool) - len(made)

    def _bound(self, *operands: int | None) -> float:
        return max((self.pool[o].bound for o in operands if o is not None), default=0.0)

    def _unary(self) -> None:
        kind, a = self.draw(st.sampled_from(UNARY)), self._pick()
        m = self._bound(a)
        bound = {
            "tanh": 1.0,
            "sigmoid": 1.0,
            "exp": np.exp(min(m, 9.0)),
            "square": m * m,
            "scale": m / 2,
        }.get(kind, m)
        self._add(kind, (a,), bound, **({"factor": 0.5} if kind == "scale" else {}))

    def _binary(self) -> None:
        kind, a, b = self.draw(st.sampled_from(BINARY)), self._pick(), self._pick()
        m, n = self._bound(a), self._bound(b)
        self._add(kind, (a, b), m * n if kind == "mul" else m + n)

    def _constant(self) -> None:
        a = self._pick()
        self._add(
            self.draw(st.sampled_from(["add", "mul", "maximum"])), (a, 1.25), 1.25 * self._bound(a) + 1.25
        )

    def _ratio(self) -> None:
        """a / (b^2 + 1)."""
        a, b = self._pick(), self._pick(lambda v: v.bound <= 5)
        if a is None or b is None:
            return
        square = self._add("square", (b,), self._bound(b) ** 2)
        self._add("div", (a, self._add("add", (square, 1.0), self._bound(square) + 1)), self._bound(a))

    def _bias(self) -> None:
        x, b = self._pick(lambda v: v.spec.rank == 2), self._pick(lambda v: v.spec.rank == 1)
        self._add("bias_add", (x, b), self._bound(x) + self._bound(b))

    def _broadcast(self) -> None:
        x = self._pick(lambda v: v.spec.rank < 2, None)
        if x is not None:
            shape = self.pool[0].spec.shape
            dims = self.draw(st.sampled_from([(0,), (1,)])) if self.pool[x].spec.rank else ()
            self._add("broadcast_in_dim", (x,), self._bound(x), shape=shape, dims=dims)

    def _reduce(self) -> None:
        kind, x = self.draw(st.sampled_from(["reduce_sum", "reduce_mean", "reduce_max"])), self._pick()
        if x is not None:
            spec = self.pool[x].spec
            axes = self.draw(st.sampled_from([(), *((a,) for a in range(spec.rank))]))
            bound = self._bound(x) * (max(spec.numel, 1) if kind == "reduce_sum" else 1)
            if kind == "reduce_sum" and bound > LARGEST:
                kind, bound = "reduce_mean", self._bound(x)
            self._add(kind, (x,), bound, axes=axes, keepdims=self.draw(st.booleans()))

    def _gemm(self) -> None:
        two = lambda v: v.spec.rank == 2  # noqa: E731
        a, b = self._pick(two), self._pick(two)
        if a is None or b is None:
            return
        flips = [{"trans_a": p, "trans_b": q} for p in (False, True) for q in (False, True)]
        inner = lambda f: self.pool[a].spec.shape[0 if f["trans_a"] else 1]  # noqa: E731
        fitting = [f for f in flips if inner(f) == self.pool[b].spec.shape[1 if f["trans_b"] else 0]]
        if not fitting:
            return
        how = self.draw(st.sampled_from(fitting))
        m = self.pool[a].spec.shape[1 if how["trans_a"] else 0]
        n = self.pool[b].spec.shape[0 if how["trans_b"] else 1]
        c = self._pick(lambda v: v.spec.shape == (m, n)) if self.draw(st.booleans()) else None
        bias = self._pick(lambda v: v.spec.shape == (n,)) if self.draw(st.booleans()) else None
        if self.draw(st.booleans()):  # what the op itself can carry
            how |= {"act": int(self.draw(st.sampled_from([ActKind.relu, ActKind.gelu, ActKind.tanh])))}
            how |= {"save_preact": self.draw(st.booleans())}
        alpha = 1.0 / (4 * max(inner(how), 1))
        bound = self._bound(a) * self._bound(b) / 4 + self._bound(c) + self._bound(bias)
        self._add("gemm", (a, b, c, bias), bound, alpha=alpha, beta=1.0 if c is not None else 0.0, **how)

    def _select(self) -> None:
        plain = self._pick(lambda v: v.plain)
        kind = self.draw(st.sampled_from(COMPARE))
        other: int | float | None = self.draw(st.sampled_from([0.37, -1.1, None]))
        other = self._pick(lambda v: v.plain) if other is None else other
        a, b = self._pick(), self._pick()
        c = self._add(kind, (plain, other), 1.0)
        if c is not None and b is not None:
            self._add("select", (c, a, b), self._bound(a, b))

    def _convert(self) -> None:
        """Through the other types and back to f32: a whole number, a truth value, a half."""
        to = self.draw(st.sampled_from([I32, BOOL, *([DType.f16, DType.bf16] if self.halves else [])]))
        x = self._pick(lambda v: v.plain or to.kind == "float")
        between = self._add("convert", (x,), self._bound(x), dtype=to.id)
        if between is None:
            return
        if to is not BOOL and self.draw(st.booleans()):
            between = self._add("neg", (between,), self._bound(x)) or between
        self._add("convert", (between,), self._bound(x), dtype=F32.id)

    def _grad(self) -> None:
        kind = self.draw(st.sampled_from(["relu_grad", "tanh_grad", "sigmoid_grad"]))
        dy, y = self._pick(), self._pick(lambda v: v.plain)
        self._add(kind, (dy, y), self._bound(dy) * 20)

    def _backward(self) -> None:
        """A product, an activation's gradient, and the sums of its columns: a bias's gradient."""
        dy = len(self.pool)
        self._gemm()
        if dy == len(self.pool):
            return
        y = self._pick(lambda v: v.plain and v.spec == self.pool[dy].spec)
        gz = (
            self._add(self.draw(st.sampled_from(["relu_grad", "tanh_grad"])), (dy, y), self._bound(dy) * 20)
            or dy
        )
        self._add("reduce_sum", (gz,), self._bound(gz) * max(self.pool[gz].spec.shape[0], 1), axes=(0,))

    def _dropout(self) -> None:
        x = self._pick()
        self._add("dropout", (x, "rng"), 2 * self._bound(x), rate=0.5)

    def _step(self) -> None:
        """A step of SGD in place, of a state with another as its momentum; neither is read afterwards."""
        old = lambda v: v.state  # noqa: E731
        p = self._pick(old)
        like = lambda v: p is not None and v.spec == self.pool[p].spec  # noqa: E731
        g, v = self._pick(like), self._pick(lambda v: v.state and like(v) and v is not self.pool[p])
        if g == v or p is None or g is None or v is None:
            return
        numbers = (0.1, 0.5, 0.0)
        if self._add("sgd_step", (p, g, v, *numbers), 2 * self._bound(p, g, v)) is None:
            return
        for n in (p, v, len(self.pool) - 1, len(self.pool) - 2):
            self.pool[n].gone = True  # the new values too: they live where the old ones did


@st.composite
def dags(
    draw: Any, max_ops: int = 12, rules: list[str] = RULES, halves: bool = False, rows: tuple[int, ...] = (1, 3, 5),
    columns: tuple[int, ...] = (1, 3, 4, 7),
) -> Dag:  # fmt: skip
    """Random graphs of about so many ops, with x and y of random shapes."""
    shape = draw(st.sampled_from(rows)), draw(st.sampled_from(columns))
    return _Drawer(draw, shape, halves).dag(draw(st.integers(1, max_ops)), rules)


def compiled(dag: Dag, device: str = "cpu", **more: Any) -> aicf.Program:
    return aicf.compile(Model(dag), device=device, **more)
