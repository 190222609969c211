"""Ops with bodies, as layers write them: a function of a step, which is emitted once and cut out of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...errors import VerifyError
from ...ir import Op, Role, Subgraph, Value, body_of
from ...ir.tree import leaves, tree_map
from ...ops.schema import schema_of
from ...types import TensorSpec
from .scan_gradient import Pull, scan_gradient


@dataclass(frozen=True)
class Traced:
    """A body, what its function returned, and values of the graph around it that it reads: its last operands."""

    body: Subgraph
    returned: Any
    read: tuple[Value, ...]


class Loops:
    """The part of an emitter that emits ops with bodies."""

    builder: Any
    device: str
    in_body = False  # whether what is emitted is the body of an op: nothing guards its indices

    def scan(
        self, step: Callable[..., Any], carry: Any, xs: Any = None, *, length: int | None = None, reverse: bool = False
    ) -> tuple[Any, Any]:  # fmt: skip
        """`carry, y = step(carry, x)` for each row x of xs, one after the other: what the last step has made to carry on, and the y of
        all steps, stacked along a new first axis.

            (h, c), hs = ctx.scan(lambda hc, x: cell(ctx, hc, x), (h0, c0), xs)

        carry    a Value, or a tuple, list or dict of them; () if nothing is carried. A step keeps their types
        xs       the same, of Values whose first axis is that of the steps; None if a step takes none
        length   of the steps, where xs does not say it
        reverse  from the last row to the first

        The step is emitted once: kernels and the plan know it as a body. What else it reads of the graph is the same in every step, random
        numbers too. It may make no output, no update and no check; indices that are none are not told of, and read nothing.
        """
        given, rows = _values(carry), _values(xs)
        for n, value in enumerate((*given, *rows)):
            self._check_owned(value, f"ctx.scan: {'carry' if n < len(given) else 'xs'}")
        for x in rows:
            if x.rank == 0:
                raise VerifyError(
                    "ctx.scan: xs has no steps",
                    expected="a first axis",
                    got=repr(x),
                    where=self.builder.here(),
                )
        length = self._length(length, rows)
        specs = [*(v.spec for v in given), *(replace(x.spec, shape=x.shape[1:]) for x in rows)]

        def body(*operands: Value) -> Any:
            inside = iter(operands)
            carried = _refilled(carry, inside)
            return _pair(step(carried, _refilled(xs, inside)), self.builder.here())

        traced = self.traced("ctx.scan", body, specs)
        after, y = traced.returned
        if [path for path, _ in leaves(after)] != [path for path, _ in leaves(carry)]:
            raise VerifyError(
                "ctx.scan: the step returns something else than it is given to carry on", expected=_told(carry), got=_told(after),
                where=self.builder.here(), hint="return (carry, y), with the carry shaped as the first one",
            )  # fmt: skip
        attrs = {
            "body": traced.body,
            "carried": len(given),
            "stacked": len(rows),
            "length": length,
            "reverse": reverse,
        }
        made = iter(self.op("scan", *given, *rows, *traced.read, **attrs))
        return _refilled(carry, made), _refilled(y, made)

    def map(self, function: Callable[[Any], Any], xs: Any) -> Any:
        """`function` of each row of xs, one after the other, stacked along a new first axis: a scan that carries nothing. xs is a Value, or
        a tuple, list or dict of them. What computes all rows at once is faster where there is memory for it."""
        return self.scan(lambda carry, x: ((), function(x)), (), xs)[1]

    def while_loop(self, condition: Callable[[Any], Any], step: Callable[[Any], Any], carry: Any) -> Any:
        """`carry = step(carry)` for as long as `condition(carry)`, a bool without axes, holds: what the last iteration has made. As JAX's.

            n, x = ctx.while_loop(lambda s: ctx.less(s[0], limit), lambda s: (s[0] + 1, s[1] * 0.5), (n0, x0))

        carry  a Value, or a tuple, list or dict of them. An iteration keeps their types

        How many iterations there are is known when it has run: it has no gradient, and runs on the CPU only. `ctx.scan` has a gradient, and runs
        everywhere. Both functions are emitted once, as those of a scan.
        """
        given = _values(carry)
        for value in given:
            self._check_owned(value, "ctx.while_loop: carry")
        specs, here = [v.spec for v in given], self.builder.here()
        inside = [
            self.traced("ctx.while_loop", lambda *state, f=f: f(_refilled(carry, iter(state))), specs)
            for f in (condition, step)
        ]
        after = inside[1].returned
        if [path for path, _ in leaves(after)] != [path for path, _ in leaves(carry)]:
            raise VerifyError(
                "ctx.while_loop: the step returns something else than it is given", expected=_told(carry), got=_told(after),
                where=here, hint="return what the next iteration begins with, shaped as the first one's",
            )  # fmt: skip
        read = list({v.vid: v for t in inside for v in t.read}.values())
        takes, at = len(given) + len(read), {v.vid: len(given) + n for n, v in enumerate(read)}
        asked, body = (
            t.body.placed([*range(len(given)), *(at[v.vid] for v in t.read)], takes) for t in inside
        )
        made = self.op("while_loop", *given, *read, condition=asked, body=body, carried=len(given))
        return _refilled(carry, iter(made if isinstance(made, tuple) else (made,)))

    def _length(self, length: int | None, rows: Sequence[Value]) -> int:
        sizes = {x.shape[0] for x in rows} | ({length} if length is not None else set())
        if len(sizes) != 1:
            raise VerifyError(
                "ctx.scan: how many steps are there?", expected="one length: that of the first axis of xs, or length=",
                got=", ".join(map(str, sorted(sizes))) or "neither xs nor length", where=self.builder.here(),
            )  # fmt: skip
        (size,) = sizes
        return int(size)

    # --- bodies -------------------------------------------------------------------------------------------------------

    def traced(
        self, what: str, function: Callable[..., Any], specs: Sequence[TensorSpec], more: Sequence[Value] = ()
    ) -> Traced:  # fmt: skip
        """The body of a function of Values of these types. What it returns is a Value, or a tuple, list or dict of them.

        more  operands that the function makes and puts in here, behind the others
        """
        with self._inside(what, self.builder.here()) as ops:
            operands = [self.builder.value(f"{what}.{n}", spec, Role.tmp) for n, spec in enumerate(specs)]
            returned = function(*operands)
            operands += more
            results = _values(returned)
            for value in results:
                self._check_owned(value, f"{what}: what the body returns")
        needed, live = {v.vid for v in results}, list[Op]()
        for op in reversed(ops):
            if needed.intersection(op.outputs):
                needed.update(vid for vid in op.inputs if vid >= 0)
                live.append(op)
        known = {v.vid for v in operands} | {vid for op in live for vid in op.outputs}
        read = sorted(needed - known)
        body = body_of([*(v.vid for v in operands), *read], ops, [v.vid for v in results])
        return Traced(body, returned, tuple(self.builder.graph.values[vid] for vid in read))

    @contextmanager
    def _inside(self, what: str, where: str) -> Iterator[list[Op]]:
        """What is emitted inside is no part of the graph, but in the list afterwards."""
        builder, graph, ops = self.builder, self.builder.graph, list[Op]()
        first, values = len(graph.ops), len(graph.values)
        updates, returned, valid, fence = (
            dict(graph.updates),
            list(graph.returned),
            builder.valid,
            builder.fence,
        )
        known = {name: dict(getattr(self, name)) for name in ("_made", "_narrowed", "_exact")}
        builder.fence, within, self.in_body = False, self.in_body, True
        try:
            yield ops
        finally:
            self.in_body = within
            ops += graph.ops[first:]
            del graph.ops[first:]
            gone = set(map(id, ops))
            for vid in {vid for op in ops for vid in op.inputs if 0 <= vid < values}:
                graph.values[vid].users = [op for op in graph.values[vid].users if id(op) not in gone]
            changed = graph.updates != updates or graph.returned != returned or builder.valid is not valid
            graph.updates, graph.returned, builder.valid, builder.fence = updates, returned, valid, fence
            for name, before in known.items():  # what was made once is made inside
                setattr(self, name, before)
        if changed:
            raise VerifyError(
                f"{what}: the body updates a state, checks its data or returns an output", where=where,
                expected="a function of what it is given", hint="do so before or after, with what the op takes or returns",
            )  # fmt: skip

    def more_results(
        self, made: Sequence[Value], operands: Sequence[Value], **attrs: Any
    ) -> tuple[Value, ...]:
        """The results of an op that is there, and more of them: those that it has with these attributes. The others stay what they are."""
        op = made[0].producer
        assert op is not None, made[0]
        schema = schema_of(op.kind)
        pack = schema.pack(attrs)
        results: tuple[Value, ...] = self.builder.extended(
            op, schema.infer(operands, pack, self.device), pack
        )
        return results

    def scan_gradient(
        self, pull: Pull, xs: Sequence[Value], ys: Sequence[Value], dys: Sequence[Value | None], **attrs: Any
    ) -> tuple[Value | None, ...]:  # fmt: skip
        """The gradients of a scan's operands. `pull` differentiates: see `from_seeds`."""
        return scan_gradient(self, self, pull, xs, ys, dys, **attrs)

    if TYPE_CHECKING:

        def op(self, kind: str, *operands: Value | float | None, **named: Any) -> Any: ...

        def _check_owned(self, value: Any, what: str) -> None: ...


def _pair(returned: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise VerifyError(
            "ctx.scan: the step does not return two things", expected="(carry, y)", got=_told(returned), where=where,
            hint="y is what each step shows, and may be ()",
        )  # fmt: skip
    return returned


def _absent(leaf: Any) -> bool:
    return leaf is None or (isinstance(leaf, (tuple, list, dict)) and not leaf)


def _values(tree: Any) -> list[Any]:
    """The leaves, without None and what is empty."""
    return [leaf for _, leaf in leaves(tree) if not _absent(leaf)]


def _refilled(tree: Any, values: Iterator[Any]) -> Any:
    return tree_map(lambda leaf: leaf if _absent(leaf) else next(values), tree)


def _told(tree: Any) -> str:
    return str(tree_map(lambda leaf: getattr(leaf, "spec", leaf), tree))[:400]
