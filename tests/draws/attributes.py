"""Drawn attributes: another value of the declared type, near the sample's or none of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aicf.ir import Subgraph
from aicf.ops.attributes import AttrDecl
from aicf.ops.schema import OpSchema
from aicf.types import DType, Shape

FLOATS = 0.0, 1.0, -1.0, 0.5, -0.25, 2.5, 1e-3, 1e-5
INTS = -2, -1, 0, 1, 2, 3


def changed_attributes(
    schema: OpSchema, attrs: Mapping[str, Any], shapes: Any, rng: np.random.Generator
) -> dict[str, Any]:
    """With some attributes changed; the op's rule decides whether they fit."""
    made = dict(attrs)
    ranks = [len(s) for s in shapes if s is not None]
    for decl in schema.attrs:
        if rng.random() < 0.4 and decl.type not in (str, Subgraph):
            known = attrs.get(decl.name, None if decl.required else decl.default)
            made[decl.name] = other(decl, known, max(ranks, default=1), rng)
    return made


def other(decl: AttrDecl, known: Any, rank: int, rng: np.random.Generator) -> Any:
    """Another value for an attribute."""
    if decl.is_enum:
        return list(decl.type)[rng.integers(len(list(decl.type)))]
    if decl.type is DType:
        return list(DType)[rng.integers(len(DType))]
    if decl.type is bool:
        return bool(rng.random() < 0.5)
    if decl.type is float:
        return float(rng.choice(FLOATS))
    if decl.type is int:
        near = known + int(rng.choice([-1, 1])) if type(known) is int and rng.random() < 0.5 else None
        return int(rng.choice(INTS)) if near is None else near
    if decl.type in (tuple, Shape):
        return other_tuple(known if isinstance(known, tuple) else (), rank, rng)
    return known


def other_tuple(known: tuple[Any, ...], rank: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Its entries in another order, one entry changed by one or two, some axes of so many, or small numbers, one for each axis."""
    how = rng.integers(4)
    if how == 0 and known:
        return tuple(known[i] for i in rng.permutation(len(known)))
    if how == 1 and known and all(type(v) is int for v in known):
        n = int(rng.integers(len(known)))
        return (*known[:n], known[n] + int(rng.choice([-2, -1, 1, 2])), *known[n + 1 :])
    if how == 2:
        axes = [a for a in range(rank) if rng.random() < 0.5]
        return tuple(a - rank * int(rng.random() < 0.2) for a in axes)
    return tuple(int(n) for n in rng.integers(0, 4, len(known) or rank))
