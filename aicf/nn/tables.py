"""Arrays that a layer or a loss is given and keeps as they are, such as weights of classes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ..errors import VerifyError
from ..ir import Value
from ..types import DType


class WeightTable:
    """An array of f64 that equals another of the same bytes: a dataclass with one can be compared, hashed and printed."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.digest = hashlib.blake2s(repr(array.shape).encode() + array.tobytes(), digest_size=8).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightTable) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return repr(self.array.tolist())

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """As the initial value of a constant."""
        return self.array


def table(name: str, value: Any, rank: int | None = None) -> WeightTable | None:
    """A table of what a constructor was given: numbers in lists, an array of any library; None stays None."""
    if value is None or isinstance(value, WeightTable):
        return value
    try:
        made = np.array(value, np.float64)
    except (TypeError, ValueError):
        raise VerifyError(f"{name} is a {type(value).__name__}", expected="an array of numbers") from None
    if rank is not None and made.ndim != rank:
        raise VerifyError(f"{name} has rank {made.ndim}", expected=f"rank {rank}: one number for each class")
    if not np.isfinite(made).all():
        raise VerifyError(f"{name} has a number that is not finite", expected="finite numbers")
    return WeightTable(made)


def read_table(ctx: Any, of: WeightTable, dtype: DType) -> Value:
    """The table as a constant of a graph, in this type."""
    made: Value = ctx.table(f"loss.{of.digest}.{dtype}", of.array.shape, of, dtype)
    return made
