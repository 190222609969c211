"""Drawn extents: empty, unit, odd, around powers of two; broadcast operands; smaller ones for shrinking."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aicf.ops.schema import OpSchema

Shape = tuple[int, ...]
Shapes = tuple[Shape | None, ...]

EXTENTS = 0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 257
CHANCES = np.array([2, 7, 4, 3, 2, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], float)


def extent(rng: np.random.Generator) -> int:
    """An extent; 1 is drawn most often."""
    return int(rng.choice(EXTENTS, p=CHANCES / CHANCES.sum()))


def broadcast_shapes(schema: OpSchema, shapes: Shapes, rng: np.random.Generator) -> Shapes:
    """For an elementwise op: a drawn shape, and operands that broadcast to it. What is written in place has that shape, and scalars
    of the sample stay scalars."""
    whole = tuple(extent(rng) for _ in range(rng.integers(0, 5)))
    fixed = {operand for operand, how in schema.alias.values() if how == "must"}
    made: list[Shape | None] = []
    for n, shape in enumerate(shapes):
        if shape is None or (shape == () and any(s for s in shapes if s)):
            made.append(shape)
        elif n in fixed or rng.random() < 0.5:
            made.append(whole)
        else:
            own = tuple(1 if rng.random() < 0.3 else d for d in whole)
            made.append(own[int(rng.integers(0, len(own) + 1)) :] if rng.random() < 0.4 else own)
    return tuple(made)


def changed_extents(
    shapes: Shapes, attrs: Mapping[str, Any], rng: np.random.Generator
) -> tuple[Shapes, dict[str, Any]]:
    """Other extents for some of those that occur, the same wherever they do: in all operands and in attributes; now and then one
    axis alone, or one axis more in front of all operands."""
    known = sorted({d for shape in shapes if shape for d in shape})
    instead = {d: extent(rng) for d in known if rng.random() < 0.6}
    made, more = renamed(shapes, attrs, instead, rng.random() < 0.7)
    if rng.random() < 0.15 and (ranked := [n for n, s in enumerate(made) if s]):
        n = int(rng.choice(ranked))
        own = list(made[n] or ())
        own[int(rng.integers(len(own)))] = extent(rng)
        made = (*made[:n], tuple(own), *made[n + 1 :])
    if rng.random() < 0.1:
        front = extent(rng)
        made = tuple(None if s is None else (front, *s) for s in made)
    return made, more


def renamed(
    shapes: Shapes, attrs: Mapping[str, Any], instead: Mapping[int, int], within: bool
) -> tuple[Shapes, dict[str, Any]]:
    """Extents in the place of others; within attributes, too, where a number greater than one is such an extent or a product of all."""
    made = tuple(None if s is None else tuple(instead.get(d, d) for d in s) for s in shapes)
    known = dict(instead)
    known.update(
        (math.prod(a), math.prod(b)) for a, b in zip(shapes, made) if a and b and math.prod(a) not in known
    )

    def of(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(of, value))
        return known.get(value, value) if type(value) is int and value > 1 else value

    return made, {k: of(v) if within else v for k, v in attrs.items()}


def smaller_extents(shapes: Shapes, attrs: Mapping[str, Any]) -> Iterator[tuple[Shapes, dict[str, Any]]]:
    """With one extent smaller wherever it occurs, or along one axis; or without the first axis of all operands."""
    if all(s is None or s for s in shapes):
        yield tuple(None if s is None else s[1:] for s in shapes), dict(attrs)
    known = sorted({d for shape in shapes if shape for d in shape}, reverse=True)
    for d in known:
        for value in lower(d):
            for within in (True, False):
                yield renamed(shapes, attrs, {d: value}, within)
    for n, shape in enumerate(shapes):
        for axis, d in enumerate(shape or ()):
            for value in lower(d)[:1]:
                own = (*shape[:axis], value, *shape[axis + 1 :])  # type: ignore[index]
                yield (*shapes[:n], own, *shapes[n + 1 :]), dict(attrs)


def lower(extent: int) -> Sequence[int]:
    """Extents to try in the place of a larger one."""
    return sorted({v for v in (1, 2, extent // 2, extent - 1) if 0 < v < extent})
