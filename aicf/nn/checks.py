"""What a constructor may be given: each check returns the value, made plain, or says what was expected and what came."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import VerifyError
from ..graph.emit.builder import user_line


@dataclass(frozen=True)
class Range:
    """A finite number from `low` to `high`, when it is rounded to f32, as devices have it; `open_low` and `open_high` leave the
    end itself out."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __call__(self, name: str, value: Any) -> float:
        """The value as a float. Constructors, `program.set` and state dicts ask the same check, so they refuse alike."""
        try:
            number = math.nan if isinstance(value, (str, bool)) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not self._has(used := _as_f32(number)):
            rounded = f"{number!r}, which is {used:g} in f32" if self._has(number) else None
            raise VerifyError(f"{name}={value!r}", expected=str(self), got=rounded)
        return number

    def _has(self, number: float) -> bool:
        over_low = number > self.low if self.open_low else number >= self.low
        under_high = number < self.high if self.open_high else number <= self.high
        return math.isfinite(number) and over_low and under_high

    def __str__(self) -> str:
        low = "" if self.low == -math.inf else f" {'>' if self.open_low else '>='} {self.low:g}"
        high = "" if self.high == math.inf else f" {'<' if self.open_high else '<='} {self.high:g}"
        return f"a finite number{low}{' and' if low and high else ''}{high}"


def _as_f32(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


anything, positive, not_negative = Range(), Range(low=0, open_low=True), Range(low=0)


def whole(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """An int, or what counts as one (NumPy's); never a bool or a float."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        raise VerifyError(f"{name}={value!r}", expected=f"a whole number, {limits}")
    return number


def yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise VerifyError(f"{name}={value!r}", expected="True or False")
    return value


def initializer(name: str, value: Any) -> Any:
    if not callable(value) or isinstance(value, type):
        raise VerifyError(
            f"{name}={value!r}", expected="a function of (shape, rng)", hint=f"{name}=nn.init.normal(0.02)"
        )
    return value


WRITTEN_INSTEAD = ("forward", "call", "apply", "loss", "update")  # what other libraries call it


def lacks(owner: Any, method: str, takes: str, gives: str) -> VerifyError:
    """The error of a class of the user's that does not have a method which its base only declares."""
    kind = type(owner).__name__
    other = next((name for name in WRITTEN_INSTEAD if callable(getattr(owner, name, None))), None)
    return VerifyError(
        f"{kind} has no {method}", expected=f"def {method}(self, {takes}), which returns {gives}", where=user_line(),
        got=f"{kind}.{other}" if other else None, hint=f"write def {method}(self, {takes}){f' in place of {other}' if other else f' in {kind}'}; ctx has the ops, such as ctx.relu(x)",
    )  # fmt: skip


def layer(value: Any) -> Any:
    """A layer: an object with `emit(ctx, x)`."""
    if isinstance(value, type):
        raise VerifyError(
            f"{value.__name__} is a class", expected="a layer", hint=f"make one: {value.__name__}(...)"
        )
    if callable(getattr(value, "emit", None)):
        return value
    kind = "a function" if callable(value) else f"a {type(value).__name__}"
    raise VerifyError(
        f"{kind} is no layer: {value!r}",
        expected="an nn.Layer",
        hint="class Mine(nn.Layer):\n            def emit(self, ctx, x): return ctx.relu(x)",
    )


def layers(values: Iterable[Any]) -> list[Any]:
    values = list(values)
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        raise VerifyError("the layers came as one list", hint="Sequential(*layers)")
    return [layer(value) for value in values]
