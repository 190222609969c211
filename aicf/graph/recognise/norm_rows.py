"""Rows that a norm's statistics and gradient are computed of: ordinary ones, which find them, and hard ones, which confirm them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...ir import Op, Value
from .axes import Axis, Group, Layout, every
from .forms import COMPARISONS
from .probe import Labelled, Layouts, Probe, Unknowable

EXACT = 1e-7
MOST_NUMBERS = 12  # next to which rows are drawn
_SPREADS = (1e-4, 1e-2, 1.0, 30.0, 1e3)  # of rows that confirm
Draw = Callable[[np.random.Generator, int], Any]


def ordinary(rng: np.random.Generator, n: int | None = None) -> Any:
    """A row that is neither centred nor of unit variance."""
    return 1.5 * rng.normal(size=n) + 0.5


class RowProbe(Probe):
    """A few rows, of their own length; what else is read is drawn, and kept in `leaves`.

    draws  how rows are drawn, one after the other, and again from the first on
    """

    def __init__(
        self,
        layouts: Layouts,
        layout: Layout,
        leaves: dict[int, Labelled],
        draws: Sequence[Draw] = (ordinary,),
        seed: int = 5,
    ) -> None:
        self.features: Group = every(layout[-1:])
        self.rows: Group = every(layout[:-1])
        sizes: dict[Axis, int] = {axis: min(axis.size, 2 + n % 2) for n, axis in enumerate(self.rows)}
        if self.rows and len(draws) > 1:
            sizes[self.rows[-1]] = len(draws)
        sizes |= {axis: axis.size for axis in self.features}
        self.rng = np.random.default_rng(seed)
        order = (*self.rows, *self.features)
        shape = [sizes[axis] for axis in order]
        length = prod(axis.size for axis in self.features)
        rows = [draws[n % len(draws)](self.rng, length) for n in range(prod(shape) // length)]
        array = np.reshape(rows, shape)
        first = next(iter(layouts.layouts))
        super().__init__(layouts, sizes, {first: (array, order)})
        self.leaves = leaves

    def _read(self, value: Value) -> Labelled:
        if value.vid in self.arrays or self.flow.number(value) is not None:
            return super()._read(value)
        own = every(self.domain.of(value))
        if value.dtype.kind != "float" or any(axis not in self.sizes for axis in own):
            raise Unknowable(value.name)
        if value.vid not in self.leaves:
            self.leaves[value.vid] = self.rng.normal(size=[self.sizes[axis] for axis in own]), own
        self.arrays[value.vid] = self.leaves[value.vid]
        return self.arrays[value.vid]

    def is_row(self, value: Value) -> bool:
        return set(self.arrays[value.vid][1]) == set(self.rows)

    def is_whole(self, value: Value) -> bool:
        return set(self.arrays[value.vid][1]) == {*self.rows, *self.features}

    def rows_of(self, value: Value) -> np.ndarray:
        return self.whole(value, self.rows).reshape(-1)

    def is_decided(self, op: Op, x: np.ndarray) -> bool:
        """Whether an op compares a variance of rows x with 0, which it is never less than but by rounding."""
        if op.kind not in COMPARISONS | {"maximum", "relu"}:
            return False
        variances = [(x**2).mean(-1), x.var(-1)]
        return all(
            self.flow.number(v) == 0
            or (
                v.vid in self.arrays
                and self.is_row(v)
                and any(np.allclose(self.rows_of(v), one, rtol=EXACT) for one in variances)
            )
            for v in self.flow.operands(op)
        )

    def matrix(self, value: Value) -> np.ndarray:
        array = self.whole(value, (*self.rows, *self.features))  # a row may have several axes
        return array.reshape(prod(array.shape[: len(self.rows)]), -1)


def hard_rows(numbers: Iterable[float]) -> dict[str, Draw]:
    """How rows are drawn, by what they are: small and large, as large as each number and as its square root, equal, 0, with outliers."""
    near = {n**power for n in numbers for power in (0.5, 1.0) if 1e-12 < n < 1e6}
    scales = {*_SPREADS, *(s * by for s in sorted(near)[:MOST_NUMBERS] for by in (0.3, 3.0))}
    return {f"about {scale:.2g}": partial(_scaled, scale) for scale in sorted(scales)} | {
        "equal": lambda rng, n: np.full(n, ordinary(rng)),
        "0": lambda rng, n: np.zeros(n),
        "far from 0": lambda rng, n: ordinary(rng, n) + 100.0,
        "those with outliers": lambda rng, n: ordinary(rng, n) * 10.0 ** rng.choice([0, 0, 0, 2], size=n),
    }


def _scaled(scale: float, rng: np.random.Generator, n: int) -> np.ndarray:
    return scale * ordinary(rng, n)
