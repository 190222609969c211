"""The gradient of a scan: a scan backward, over what each step began with.

The forward scan is made to keep what its gradient needs and a step can't cheaply make again: what is carried, and the results of
products and reductions. Maps are computed again from those. What goes to an operand that is the same in every step is the sum of what
the steps give it; where that is a product of rows, or a sum of them, the rows are stacked and the sum over all steps is one product, or
one sum, behind the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...ir import Op, Role, Subgraph, Value, body_of
from ...ops.scan import rows_of, types_of
from ...ops.schema import schema_of
from ...types import ActKind, TensorSpec

Pull = Callable[..., list[Value | None]]  # (seeds, wrt) -> gradients: see autodiff.from_seeds
Place = tuple[
    str, int
]  # ("x", operand), ("before", operand that is carried), ("kept", result), ("dy", result)


def scan_gradient(
    emit: Any, tracer: Any, pull: Pull, xs: Sequence[Value], ys: Sequence[Value], dys: Sequence[Value | None],
    *, body: Subgraph, carried: int, stacked: int, length: int, reverse: bool,
) -> tuple[Value | None, ...]:  # fmt: skip
    """The gradients of its operands.

    emit    what the gradient is emitted with
    tracer  the GraphEmitter in which the body is differentiated: `emit` itself, but for tests
    """
    if length == 0:
        return (*dys[:carried], *[None] * (len(xs) - carried))
    if all(dy is None for dy in dys):
        return (None,) * len(xs)
    specs = rows_of([x.spec for x in xs], carried, stacked)
    back = _BackwardScan(
        tracer, pull, body, specs, carried, stacked, [dy is not None for dy in dys[carried:]]
    )
    attrs = {"carried": carried, "stacked": stacked, "length": length, "reverse": reverse}
    kept = ys
    if len(back.forward.results) > len(body.results):
        kept = emit.more_results(ys, xs, body=back.forward, **attrs)

    def at(place: Place) -> Any:
        what, n = place
        if what == "before":
            return _shifted(emit, xs[n], kept[back.after[n]], reverse)
        return {"x": xs, "kept": kept, "dy": dys}[what][n]

    def zeros(spec: TensorSpec) -> Any:
        return emit.fill(shape=spec.shape, value=0.0, dtype=spec.dtype)

    starts = [dys[n] if dys[n] is not None else zeros(specs[n]) for n in back.floats]
    starts += map(zeros, back.sums)
    rows, same = map(at, back.rows), [*map(at, back.same), *(_constant(emit, tracer, v) for v in back.read)]
    made = emit.op(
        "scan", *starts, *rows, *same, body=back.body, carried=len(starts), stacked=len(back.rows), length=length,
        reverse=not reverse,
    )  # fmt: skip
    made = made if isinstance(made, tuple) else (made,)
    found: list[Value | None] = [None] * len(xs)
    for n, where in back.found.items():
        found[n] = made[where] if isinstance(where, int) else at(where)
    for n, joined in back.joined.items():
        found[n] = joined.emitted(
            emit, [made[r] if isinstance(r, int) else at(r) for r in map(back.where, joined.rows)]
        )
    return tuple(found)


def _constant(emit: Any, tracer: Any, value: Value) -> Any:
    return value if emit is tracer else emit.constant(value.init.value, value.dtype)  # type: ignore[union-attr]


def _shifted(emit: Any, first: Value, after: Value, reverse: bool) -> Value:
    """What each step began with: the first with `first`, the others with what the one before them had made."""
    one, steps = emit.reshape(first, shape=(1, *first.shape)), after.shape[0]
    if steps > 1:
        start, limit = (int(reverse), *[0] * first.rank), (steps - 1 + int(reverse), *first.shape)
        rest = emit.slice(after, start=start, limit=limit, step=(1,) * len(start))
        one = emit.concatenate(*((rest, one) if reverse else (one, rest)), axis=0)
    return one


@dataclass(frozen=True)
class _Joined:
    """A sum over all steps of what their rows make: the product of two, or the sum of one along axes. Rows are values of a step."""

    rows: tuple[int, ...]
    attrs: dict[str, Any]

    def emitted(self, emit: Any, rows: Sequence[Value]) -> Value:
        if len(rows) == 2:
            a, b = (emit.reshape(x, shape=(x.shape[0] * x.shape[1], x.shape[2])) for x in rows)
            return emit.gemm(a, b, **self.attrs)
        axes = (0, *(axis + 1 for axis in self.attrs["axes"]))
        return emit.reduce_sum(rows[0], axes=axes, keepdims=False)


@dataclass
class _BackwardScan:
    """The body of the backward scan, and of the forward one, which keeps what it needs.

    Operands of the backward body: gradients of what is carried (`floats`), sums, `rows`, what is the `same` in every step, `read`. Its
    results: gradients and sums to carry on, and rows.

    given  of each row of results, whether it has a gradient
    found  by operand: where its gradient is, a result of the backward scan or a tensor that is there
    after  by operand that is carried: the result of the forward scan with what all steps made of it
    """

    tracer: Any
    pull: Pull
    source: Subgraph
    specs: tuple[TensorSpec, ...]
    carried: int
    stacked: int
    given: list[bool]
    found: dict[int, int | Place] = field(default_factory=dict)
    joined: dict[int, _Joined] = field(default_factory=dict)
    sums: list[TensorSpec] = field(default_factory=list)
    after: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.floats = [n for n in range(self.carried) if self.specs[n].dtype.kind == "float"]
        self.values: list[Value] = self.tracer.builder.graph.values
        with self.tracer._inside("the gradient of scan", self.tracer.builder.here()) as ops:
            self.operands = [self._placeholder(spec) for spec in self.specs]
            self._replay()
            count = len(self.source.ops)
            self._differentiate()
        self.ahead, self.behind = ops[:count], ops[count:]
        self._cut()

    # --- the body and its gradient, as ops of the tracer; values are their vids ----------------------------------------------

    def _placeholder(self, spec: TensorSpec) -> int:
        return self.tracer.builder.value("scan.operand", spec, Role.tmp).vid

    def _replay(self) -> None:
        types, known = types_of(self.source, self.specs), dict(enumerate(self.operands))
        for step in self.source.ops:
            schema = schema_of(step.kind)
            made = self.tracer.builder.emit(
                step.kind, tuple(None if v < 0 else self.values[known[v]] for v in step.inputs), tuple(types[v] for v in step.outputs),
                schema.values(step.attrs), {"alias": dict(schema.alias)} if schema.alias else {},
                (schema.kind.id, schema.attr_schema, step.attrs.blob),
            )  # fmt: skip
            known.update((n, value.vid) for n, value in zip(step.outputs, made))
        self.results = [known[v] for v in self.source.results]

    def _differentiate(self) -> None:
        values, end = self.values, self.carried + self.stacked
        self.seeds = [self._placeholder(self.specs[n]) for n in self.floats]
        rows = [self.carried + n for n, given in enumerate(self.given) if given]
        self.row_seeds = {self._placeholder(values[self.results[n]].spec): n for n in rows}
        seeds = [*zip(self.floats, self.seeds), *((n, seed) for seed, n in self.row_seeds.items())]
        wrt = [vid for vid in self.operands if values[vid].dtype.kind == "float"]
        pulled = self.pull(
            [(values[self.results[n]], values[seed]) for n, seed in seeds], [values[vid] for vid in wrt]
        )
        grads = {vid: grad.vid for vid, grad in zip(wrt, pulled) if grad is not None}
        self.next = [
            grads[vid] if (vid := self.operands[n]) in grads else self._zeros(self.specs[n])
            for n in self.floats
        ]
        self.direct, self.totals, self.total_seeds = dict[int, int](), dict[int, int](), list[int]()
        for n, vid in enumerate(self.operands[self.carried :], self.carried):
            if vid not in grads:
                continue
            if n < end:
                self.direct[n] = grads[vid]
            elif (how := self._as_joined(values[grads[vid]])) is not None:
                self.joined[n] = how
            else:
                self.sums.append(values[grads[vid]].spec)
                self.total_seeds.append(self._placeholder(self.sums[-1]))
                self.totals[n] = self.tracer.add(values[self.total_seeds[-1]], values[grads[vid]]).vid

    def _zeros(self, spec: TensorSpec) -> int:
        return self.tracer.fill(shape=spec.shape, value=0.0, dtype=spec.dtype).vid

    def _as_joined(self, grad: Value) -> _Joined | None:
        """How the sum of a gradient over the steps is one product or one sum of their rows; None if it is not."""
        op, same = grad.producer, set(self.operands[self.carried + self.stacked :])
        if op is None or same.intersection(op.inputs):
            return None
        attrs, rows = dict(op.attrs), tuple(vid for vid in op.inputs if vid >= 0)
        if op.kind == "gemm" and len(rows) == 2 and all(self.values[vid].rank == 2 for vid in rows):
            plain = attrs["act"] == ActKind.none and not attrs["save_preact"]
            return _Joined(rows, attrs) if plain and attrs["trans_a"] and not attrs["trans_b"] else None
        return _Joined(rows, attrs) if op.kind == "reduce_sum" and not attrs["keepdims"] else None

    # --- what is kept, and the two bodies ---------------------------------------------------------------------------------------

    def _cut(self) -> None:
        wanted = [*self.next, *self.totals.values()]
        shown = list(
            dict.fromkeys([*self.direct.values(), *(vid for how in self.joined.values() for vid in how.rows)])
        )
        kept = self._kept([*wanted, *shown])
        extra: list[int] = []

        def result(vid: int) -> int:
            """Where the forward scan stacks a value of its steps."""
            have = self.results[self.carried :] + extra
            if vid not in have:
                extra.append(vid)
                have.append(vid)
            return self.carried + have.index(vid)

        places: dict[int, Place] = {vid: ("kept", result(vid)) for vid in kept}
        places.update((seed, ("dy", n)) for seed, n in self.row_seeds.items())
        for n, vid in enumerate(self.operands):
            places[vid] = ("before" if n < self.carried else "x", n)
        own = [*self.seeds, *self.total_seeds]
        stacks = {vid for vid, (what, n) in places.items() if what != "x" or n < self.carried + self.stacked}
        shown = [vid for vid in shown if vid not in stacks]
        ops = self._needed([*wanted, *shown], kept)
        made = {vid for op in ops for vid in op.outputs}
        leaves = dict.fromkeys(
            v
            for v in (*(v for op in ops for v in op.inputs), *wanted, *shown)
            if v >= 0 and (v not in made or v in kept)
        )
        read = [vid for vid in leaves if vid not in own]
        rows, same = [v for v in read if v in stacks], [v for v in read if v in places and v not in stacks]
        others = [v for v in read if v not in places]
        self.rows, self.same, self.read = (
            [places[v] for v in rows],
            [places[v] for v in same],
            [self.values[v] for v in others],
        )
        self.body = body_of([*own, *rows, *same, *others], ops, [*wanted, *shown])
        where = {vid: len(wanted) + n for n, vid in enumerate(shown)}
        self.where: Callable[[int], int | Place] = lambda vid: where[vid] if vid in where else places[vid]
        self.found.update(zip(self.floats, range(len(self.floats))))
        self.found.update(zip(self.totals, range(len(self.floats), len(wanted))))
        self.found.update((n, self.where(vid)) for n, vid in self.direct.items())
        read_before = [
            places[v]
            for v in (*rows, *self.direct.values(), *(v for how in self.joined.values() for v in how.rows))
            if v in places
        ]
        self.after = {n: result(self.results[n]) for what, n in read_before if what == "before"}
        self.forward = body_of(self.operands, self.ahead, [*self.results, *extra])

    def _needed(self, results: Iterable[int], kept: set[int]) -> list[Op]:
        """The ops, forward and backward, that make these values of what is kept."""
        needed, ops = set(results) - kept, list[Op]()
        for op in reversed([*self.ahead, *self.behind]):
            if needed.intersection(op.outputs):
                needed.update(set(op.inputs) - kept)
                ops.append(op)
        return ops[::-1]

    def _kept(self, results: Iterable[int]) -> set[int]:
        """The values of forward steps that are kept for backward ones: those of which the maps that these need are made."""
        results, maps = list(results), {id(op) for op in self.ahead if schema_of(op.kind).is_map}
        forward = {id(op) for op in self.ahead}
        costly = {vid for op in self.ahead if id(op) not in maps for vid in op.outputs}
        kept = set(costly)
        while True:
            ops = self._needed(results, kept)
            read = {vid for op in ops for vid in op.inputs} | set(results)
            used = kept & read
            for vid in sorted(
                used - set(results)
            ):  # what one map alone reads is kept in the form that it makes of it
                readers = [op for op in ops if vid in op.inputs]
                if len(readers) == 1 and id(readers[0]) in forward:
                    (made,) = (*readers[0].outputs[:1],)
                    if len(readers[0].outputs) == 1 and self.values[made].spec == self.values[vid].spec:
                        kept = (kept - {vid}) | {made}
                        break
            else:
                return used
