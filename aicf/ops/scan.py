"""scan: a body done step after step, each going on with what the one before it made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import AttrError, RegistryError, TypeInferenceError
from ..ir import Subgraph, sketch
from ..types import AttrPack, TensorSpec
from .record import OpSchema
from .schema import AnyOwn, op, require, schema_of


@op("scan", results=("*ys",))
def scan(*xs: AnyOwn, body: Subgraph, carried: int, stacked: int, length: int, reverse: bool = False):
    """Steps of a body. The first `carried` operands are what the first step begins with; each step makes what the next one begins with.
    Of the next `stacked` operands step t has row t: their first axis is that of the steps. All others are the same in every step.

    The body takes these in this order, and returns what the next step begins with, and then rows of results. The results are what
    the last step has made for the next one, and the other results of all steps, stacked along a new first axis. With `reverse` the
    steps go from the last row to the first.

    C1  length, carried and stacked are 0 or more, and there are as many operands
    C2  the body takes as many operands as the op
    C3  each stacked operand has `length` rows along its first axis
    C4  the body's ops take what they are given
    C5  the body returns what is carried, and something at all
    C6  what is carried keeps its type from step to step   (as StableHLO while C3)
    """
    for name, value in (("length", length), ("carried", carried), ("stacked", stacked)):
        require(value >= 0, "C1", f"{name} is {value}")
    require(
        carried + stacked <= len(xs), "C1", f"{carried} carried and {stacked} stacked operands of {len(xs)}"
    )
    require(body.takes == len(xs), "C2", f"the body takes {body.takes} operands and the op has {len(xs)}")
    for n, x in enumerate(xs[carried : carried + stacked]):
        rows = x.shape[0] if x.rank else "no"
        require(
            rows == length, "C3", f"xs[{carried + n}] has {rows} rows along its first axis, of {length} steps"
        )
    made = returned_by(body, rows_of(xs, carried, stacked), "C4", "body")
    require(
        len(made) >= max(carried, 1), "C5", f"the body returns {len(made)} values, and {carried} are carried"
    )
    for n, (x, y) in enumerate(zip(xs[:carried], made)):
        require(
            (x.shape, x.dtype) == (y.shape, y.dtype), "C6", f"xs[{n}] is {x}, and the body makes {y} of it"
        )
    return (*xs[:carried], *(replace(y, shape=(length, *y.shape)) for y in made[carried:]))


def rows_of(xs: Sequence[TensorSpec], carried: int, stacked: int) -> tuple[TensorSpec, ...]:
    """The types that a step has its operands in."""
    end = carried + stacked
    return (*xs[:carried], *(replace(x, shape=x.shape[1:]) for x in xs[carried:end]), *xs[end:])


def returned_by(
    body: Subgraph, operands: tuple[TensorSpec, ...], constraint: str, name: str
) -> list[TensorSpec]:
    """The types of what a body returns. That its ops take what they are given is the op's constraint of this number."""
    types, why = None, ""
    try:
        types = types_of(body, operands)
    except (TypeInferenceError, AttrError, RegistryError) as error:
        why = "; ".join([error.what, *error.details])
    require(types is not None, constraint, f"in the {name} {why}")
    assert types is not None
    return [types[value] for value in body.results]


def types_of(body: Subgraph, operands: tuple[TensorSpec, ...]) -> dict[int, TensorSpec]:
    """The types of all values of a body that is given operands of these types; TypeInferenceError where an op refuses its own."""
    return _types_of(body, operands, tuple(schema_of(step.kind) for step in body.ops))


@lru_cache(maxsize=1024)
def _types_of(
    body: Subgraph, operands: tuple[TensorSpec, ...], schemas: tuple[OpSchema, ...]
) -> dict[int, TensorSpec]:
    # The schemas are in the key: a notebook's cell that runs again defines its op anew.
    known = dict(enumerate(operands))
    device = operands[0].device if operands else "cpu"
    for step, schema in zip(body.ops, schemas):
        given = [known[value] if value >= 0 else None for value in step.inputs]
        made = schema.infer(given, step.attrs, device)
        if len(made) != len(step.outputs):
            raise AttrError(f"{step.kind} has {len(made)} results", got=repr(step))
        known.update(zip(step.outputs, made))
    return known


def results_of(body: Subgraph, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a body returns, by its ops' references."""
    known = dict(enumerate(operands))
    for step in body.ops:
        given = [known[value] if value >= 0 else None for value in step.inputs]
        known.update(zip(step.outputs, schema_of(step.kind).call_reference(given, step.attrs)))
    return [known[value] for value in body.results]


def count_of(body: Subgraph, operands: tuple[TensorSpec, ...]) -> int:
    """Its flops."""
    types, total = types_of(body, operands), 0
    for step in body.ops:
        schema, given = schema_of(step.kind), [types[v] if v >= 0 else None for v in step.inputs]
        counted = schema.count_fn and schema.count_fn(*given, **schema.values(step.attrs))
        total += counted or schema.flops * max(types[v].numel for v in step.outputs)
    return total


@scan.reference
def _(*xs, body, carried, stacked, length, reverse):
    carry, rows, same = list(xs[:carried]), xs[carried : carried + stacked], xs[carried + stacked :]
    rows_made: list[Any] = [None] * length
    for t in reversed(range(length)) if reverse else range(length):
        results = results_of(body, [*carry, *(x[t] for x in rows), *same])
        carry, rows_made[t] = results[:carried], results[carried:]
    if length:
        return (*carry, *map(np.stack, zip(*rows_made)))
    exact = any(x.dtype == np.float64 for x in xs)
    specs = rows_of(
        [TensorSpec(x.shape, "f32" if x.dtype == np.float64 else x.dtype) for x in xs], carried, stacked
    )
    made = returned_by(body, specs, "C4", "body")[carried:]
    kinds = [np.dtype("f8") if exact and y.dtype.kind == "float" else y.dtype.numpy for y in made]
    return (*carry, *(np.empty((0, *y.shape), kind) for y, kind in zip(made, kinds)))


@scan.counts
def _(*xs, body, carried, stacked, length, reverse):
    return count_of(body, rows_of(xs, carried, stacked)) * length


@scan.gradient
def _(emit, pull, xs, ys, dys, body, carried, stacked, length, reverse):
    """A scan backward, over what each step began with: see graph/emit/scan_gradient.py."""
    return emit.scan_gradient(
        pull, xs, ys, dys, body=body, carried=carried, stacked=stacked, length=length, reverse=reverse
    )


def _pack(kind: str, attrs: dict[str, Any]) -> AttrPack:
    return schema_of(kind).pack(attrs)


def drawn(takes: int, function: Any) -> Subgraph:
    """A body by hand, for samples and tests: `function(emit, *operands)` returns a list of its results."""
    return sketch(takes, function, _pack)


# what any element type has: a step hands on what it was given, unless that is what it began with
_SHIFT = drawn(
    3,
    lambda emit, before, x, same: [
        emit.select(emit.equal(x, before), same, x),
        before,
        emit.select(emit.equal(x, same), x, before),
    ],
)
scan.samples((2, 3), (4, 2, 3), (2, 3), body=_SHIFT, carried=1, stacked=1, length=4)
scan.samples((3,), (5, 3), (3,), body=_SHIFT, carried=1, stacked=1, length=5, reverse=True)
scan.samples((2,), (0, 2), (2,), body=_SHIFT, carried=1, stacked=1, length=0)
