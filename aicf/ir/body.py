"""Subgraph: the body of an op, such as what a scan does in each step: a piece of graph as an attribute.

It has no types: those of its values follow from the types of what it is given, by its ops' rules. So one body serves all sizes and
element types. Values are numbers: operands first, from 0 on, then what its ops make.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import AttrError
from ..lazy import lazy
from ..types import AttrPack

MOST_OPS = 2**16 - 1  # what a tuple of an AttrPack can have


@dataclass(frozen=True)
class BodyOp:
    """One op of a body. An operand that is left out is -1."""

    kind: str
    attrs: AttrPack
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __repr__(self) -> str:
        outs, ins = (", ".join(f"%{v}" for v in vids) for vids in (self.outputs, self.inputs))
        attrs = "".join(f" {k}={v}" for k, v in self.attrs.items())
        return f"{outs} = {self.kind}({ins}){attrs}"


@dataclass(frozen=True, eq=False, repr=False)
class Subgraph:
    """takes  how many operands; `results`: which values it returns, operands among them, maybe one twice"""

    takes: int
    ops: tuple[BodyOp, ...]
    results: tuple[int, ...]

    @lazy
    def packed(self) -> tuple[Any, ...]:
        """The form that an AttrPack has of it."""
        if len(self.ops) > MOST_OPS:
            raise AttrError(f"a body of {len(self.ops)} ops", expected=f"at most {MOST_OPS}")
        ops = tuple((op.kind, tuple(op.attrs.items()), op.inputs, op.outputs) for op in self.ops)
        return self.takes, ops, self.results

    @classmethod
    def of(cls, packed: Any) -> Subgraph:
        """The body of a packed form; AttrError if it is none."""
        try:
            takes, ops, results = packed
            made = tuple(
                BodyOp(_text(kind), AttrPack(dict(attrs)), _numbers(inputs, -1), _numbers(outputs, 0))
                for kind, attrs, inputs, outputs in ops
            )
            body = cls(_numbers((takes,), 0)[0], made, _numbers(results, 0))
        except (TypeError, ValueError) as error:
            raise AttrError(f"this is no body of an op: {error}", got=repr(packed)[:200]) from None
        body._check()
        return body

    def _check(self) -> None:
        known = set(range(self.takes))
        for op in self.ops:
            for value in op.inputs:
                if value >= 0 and value not in known:
                    raise AttrError(f"a body reads %{value} before it is made", got=repr(op))
            for value in op.outputs:
                if value in known:
                    raise AttrError(f"a body makes %{value} twice", got=repr(op))
                known.add(value)
        if missing := [value for value in self.results if value not in known]:
            raise AttrError(f"a body returns %{missing[0]}, which it does not make", got=repr(self))

    @lazy
    def digest(self) -> str:
        """Of all that it says; equal bodies have equal ones in every process."""
        return hashlib.blake2s(AttrPack(body=self.packed).blob, digest_size=16).hexdigest()

    def placed(self, places: Sequence[int], takes: int) -> Subgraph:
        """The same for an op of `takes` operands, of which its own are those at `places`."""

        def number(v: int) -> int:
            return v if v < 0 else places[v] if v < self.takes else v - self.takes + takes

        ops = tuple(
            BodyOp(op.kind, op.attrs, tuple(map(number, op.inputs)), tuple(map(number, op.outputs)))
            for op in self.ops
        )
        return Subgraph(takes, ops, tuple(map(number, self.results)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subgraph) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"body of {len(self.ops)} ops, {self.digest[:8]}"

    def lines(self) -> Iterator[str]:
        """Its ops, one a line, between what it takes and what it returns."""
        yield f"takes {', '.join(f'%{v}' for v in range(self.takes))}"
        yield from map(repr, self.ops)
        yield f"returns {', '.join(f'%{v}' for v in self.results)}"


def body_of(operands: Sequence[int], ops: Sequence[Any], results: Sequence[int]) -> Subgraph:
    """Those of the ops of a graph that make `results` of `operands`, as a body. Its values are counted anew."""
    given = set(operands)
    needed, kept = set(results) - given, []
    for op in reversed(ops):
        if needed.intersection(op.outputs):
            needed.update(set(op.inputs) - given)
            kept.append(op)
    number = {vid: n for n, vid in enumerate(operands)}
    number[-1], count, made = -1, len(operands), []
    for op in reversed(kept):
        outs = tuple(range(count, count + len(op.outputs)))
        count += len(outs)
        made.append(
            BodyOp(op.kind, AttrPack.from_blob(op.attr_blob), tuple(number[vid] for vid in op.inputs), outs)
        )
        number.update((vid, n) for vid, n in zip(op.outputs, outs) if vid not in given)
    return Subgraph(len(operands), tuple(made), tuple(number[vid] for vid in results))


def sketch(
    takes: int, function: Callable[..., Sequence[Any]], pack: Callable[[str, dict[str, Any]], AttrPack]
) -> Subgraph:
    """A body written by hand, without types: `function(emit, *operands)` returns its results. For samples and tests: attributes are
    taken as they are, and each op has one result."""

    class Emit:
        def __init__(self) -> None:
            self.ops: list[BodyOp] = []

        def __getattr__(self, kind: str) -> Callable[..., int]:
            def emit(*operands: int, **attrs: Any) -> int:
                made = takes + len(self.ops)
                self.ops.append(BodyOp(kind, pack(kind, attrs), operands, (made,)))
                return made

            return emit

    emit = Emit()
    results = tuple(function(emit, *range(takes)))
    return Subgraph(takes, tuple(emit.ops), results)


def _text(kind: Any) -> str:
    if not isinstance(kind, str):
        raise TypeError(f"an op's name is {kind!r}")
    return kind


def _numbers(values: Any, least: int) -> tuple[int, ...]:
    made = tuple(values)
    if not all(type(v) is int and v >= least for v in made):
        raise TypeError(f"values are {made!r}")
    return made
