"""Reductions and scans by a function of the caller's: steps of ops that the function emits, log2 of the size of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import VerifyError
from ...ir import Value
from ...ops.arranging import part

Joins = Callable[[Any, Any], Any]


class Joining:
    """The part of an emitter that joins elements by a function, which is given Values of many at once.

    The function takes two operands and returns one like each: Values where `xs` is one, tuples of them where it is a tuple. It has to be
    associative, join(join(a, b), c) = join(a, join(b, c)), and need not be commutative: `a` stands before `b`.
    """

    def reduce(
        self, join: Joins, xs: Any, axes: int | Sequence[int] | None = None, keepdims: bool = False
    ) -> Any:
        """All elements along axes joined in their order, of all axes by default: `ctx.reduce(ctx.maximum, x, axes=1)`.

        Each axis has at least one element. Neighbours are joined two by two, then these, so floats are rounded as in a balanced tree.
        """
        given, rank = self._alike("reduce", xs)
        over = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
        for axis in sorted({self._axis("reduce", a, rank) for a in over}):
            given = self._halved(join, xs, given, axis)
        gone = () if keepdims else {self._axis("reduce", a, rank) for a in over}
        shape = tuple(d for a, d in enumerate(given[0].shape) if a not in gone)
        return self._like(xs, [x if x.shape == shape else x.reshape(shape) for x in given])

    def associative_scan(self, join: Joins, xs: Any, axis: int = 0, reverse: bool = False) -> Any:
        """At each place along an axis all elements up to it joined in their order; from the last one back if reverse, as
        jax.lax.associative_scan: `ctx.associative_scan(ctx.add, x, axis=-1)` is a running sum.

        A recurrence h[t] = a[t] * h[t - 1] + b[t] is one of pairs: `lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1])` of (a, b).
        """
        given, rank = self._alike("associative_scan", xs)
        at, emit = self._axis("associative_scan", axis, rank), self._emitter
        size, apart = given[0].shape[at], 1
        if reverse:
            given = [emit.reverse(x, dims=(at,)) for x in given]
        while apart < size:
            before = [part(emit, x, at, 0, size - apart) for x in given]
            here = [part(emit, x, at, apart, size) for x in given]
            made = self._joined("associative_scan", join, xs, before, here)
            first = [part(emit, x, at, 0, apart) for x in given]
            given = [emit.concatenate(a, b, axis=at) for a, b in zip(first, made)]
            apart *= 2
        return self._like(xs, [emit.reverse(x, dims=(at,)) for x in given] if reverse else given)

    # --- steps ------------------------------------------------------------------------------------------------------

    @property
    def _emitter(self) -> Any:
        return self

    def _halved(self, join: Joins, xs: Any, given: list[Value], axis: int) -> list[Value]:
        emit = self._emitter
        if given[0].shape[axis] == 0:
            raise VerifyError(
                f"ctx.reduce: axis {axis} has no element to begin with",
                got=str(given[0].spec),
                where=emit.here(),
            )
        while (size := given[0].shape[axis]) > 1:
            whole = size - size % 2
            sides = []
            for first in (0, 1):
                cut = [
                    emit.slice(
                        x, start=tuple(first if a == axis else 0 for a in range(x.rank)),
                        limit=tuple(whole if a == axis else d for a, d in enumerate(x.shape)),
                        step=tuple(2 if a == axis else 1 for a in range(x.rank)),
                    )
                    for x in given
                ]  # fmt: skip
                sides.append(cut)
            made = self._joined("reduce", join, xs, *sides)
            if size % 2:
                made = [
                    emit.concatenate(y, part(emit, x, axis, whole, size), axis=axis)
                    for y, x in zip(made, given)
                ]
            given = made
        return given

    def _joined(self, what: str, join: Joins, xs: Any, a: list[Value], b: list[Value]) -> list[Value]:
        made = join(self._like(xs, a), self._like(xs, b))
        found = list(made) if isinstance(made, (tuple, list)) else [made]
        if isinstance(made, (tuple, list)) != isinstance(xs, (tuple, list)) or len(found) != len(a):
            raise VerifyError(
                f"ctx.{what}: the function returned {_told(made)}", expected=_told(xs), where=self._emitter.here()
            )  # fmt: skip
        for y, x in zip(found, a):
            self._emitter._check_owned(y, f"{what}: the function's result")
            if (y.shape, y.dtype) != (x.shape, x.dtype):
                raise VerifyError(
                    f"ctx.{what}: the function returned {y.spec} for operands of {x.spec}", expected="one like each of its operands",
                    where=self._emitter.here(),
                )  # fmt: skip
        return found

    def _alike(self, what: str, xs: Any) -> tuple[list[Value], int]:
        given = list(xs) if isinstance(xs, (tuple, list)) else [xs]
        for x in given or [None]:
            self._emitter._check_owned(x, f"{what}: xs")
        if len({x.shape for x in given}) > 1:
            raise VerifyError(
                f"ctx.{what}: xs have different shapes",
                got=", ".join(str(x.spec) for x in given),
                where=self._emitter.here(),
            )
        return given, given[0].rank

    def _axis(self, what: str, axis: int, rank: int) -> int:
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise VerifyError(
                f"ctx.{what}: axis {axis!r} is not in [-{rank}, {rank})", where=self._emitter.here()
            )
        return axis % rank

    def _like(self, xs: Any, made: list[Value]) -> Any:
        return tuple(made) if isinstance(xs, (tuple, list)) else made[0]


def _told(made: Any) -> str:
    return f"a tuple of {len(made)}" if isinstance(made, (tuple, list)) else "one Value"
