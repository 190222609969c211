"""Random instances of StableHLO's ops, seeded: valid ones, looser ones whose sizes are open or bounded, and ones with one thing changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..mlir_worker import Instance

SIGNED = ["i2", "i4", "i8", "i16", "i32", "i64"]
UNSIGNED = ["ui2", "ui4", "ui8", "ui16", "ui32", "ui64"]
FLOATS = ["f32", "f16", "bf16", "f64", "f8E4M3FN", "f8E5M2", "f4E2M1FN", "f8E8M0FNU"]
COMPLEX = ["complex<f32>", "complex<f64>"]
INTS = SIGNED + UNSIGNED
ALL = ["i1", *INTS, *FLOATS, *COMPLEX]
PRECISIONS = ["DEFAULT", "HIGH"]
OTHERS = ["si32", "index", "i7", "complex<f16>", "tf32"]  # that no op takes


@dataclass(frozen=True)
class T:
    shape: tuple[int | None, ...]
    element: str = "f32"
    bounds: tuple[int | None, ...] | None = None

    def __str__(self) -> str:
        def said(n: int | None) -> str:
            return "?" if n is None else str(n)

        bounds = (
            f", #stablehlo.bounds<{', '.join(map(said, self.bounds))}>" if self.bounds is not None else ""
        )
        return f"tensor<{''.join(f'{said(n)}x' for n in self.shape)}{self.element}{bounds}>"


def ints(values) -> str:
    values = list(values)
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def i64(value: int) -> str:
    return f"{value} : i64"


def pairs(values) -> str:
    values = [list(pair) for pair in values]
    return f"dense<{values if values else ''}> : tensor<{len(values)}x2xi64>"


class Maker:
    """Random choices from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def size(self) -> int:
        return self.rng.choice([0, 1, 2, 2, 3, 4, 5, 6])

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.rng.randint(low, high)))

    def of(self, elements) -> str:
        return self.rng.choice(list(elements))

    def chance(self, p: float = 0.5) -> bool:
        return self.rng.random() < p

    def some(self, count: int, rank: int) -> list[int]:
        return self.rng.sample(range(rank), min(count, rank))

    def loose(self, type: T) -> T:
        """With some sizes open, some of those bounded."""
        if not isinstance(type, T) or self.chance(0.55):
            return type
        shape = tuple(None if n is not None and self.chance(0.4) else n for n in type.shape)
        bounds = None
        if None in shape and self.chance(0.6):
            bounds = tuple(
                (was or 0) + self.rng.choice([0, 0, 1]) if n is None and self.chance(0.7) else None
                for n, was in zip(shape, type.shape)
            )
        return replace(type, shape=shape, bounds=bounds)


MAKERS: dict[str, Callable[[Maker, str], Instance]] = {}


def maker(*names: str):
    def declare(function):
        MAKERS.update(dict.fromkeys(names, function))
        return function

    return declare
