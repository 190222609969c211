"""Layers that change nothing but the shape, or nothing at all."""

from __future__ import annotations

import math
from typing import Any

from ..errors import TypeInferenceError
from ..ir import Value
from . import checks
from .layer import Layer


class Identity(Layer):
    """What it is given: a place where nothing is done."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return x


class Flatten(Layer):
    """x with its axes from start_dim to end_dim as one: by default (N, …) as (N, elements). Negative ones count from the end."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = checks.whole("Flatten: start_dim", start_dim, -8)
        self.end_dim = checks.whole("Flatten: end_dim", end_dim, -8)

    def emit(self, ctx: Any, x: Value) -> Value:
        first, last = (n + x.rank if n < 0 else n for n in (self.start_dim, self.end_dim))
        if not 0 <= first <= last < x.rank:
            raise TypeInferenceError(
                f"Flatten: x has no axes from {self.start_dim} to {self.end_dim}", expected=f"a rank of {max(first, last) + 1} or more, and axes in order",
                got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        shape = x.shape
        return x.reshape(*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
