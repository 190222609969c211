"""Functions of maps whose results are halves: as exact as halves need, in a few instructions of sm_70 and later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...rows.program import Expression
from ...types import bf16, f16
from ..dsl import device, materialise, with_functions
from ..ptx import approximate, erfc_for_halves, tanh_for_halves

HALVES = f16, bf16


def functions() -> tuple[tuple[str, Any], ...]:
    """(name of the function that a map calls, what is called in its place)."""
    exp2, reciprocal, log2_e = approximate("exp2"), approximate("reciprocal"), np.float32(1.4426950408889634)
    logistic = device(lambda x, one: reciprocal(one + exp2(-(x * log2_e))))
    logistic2 = device(lambda x, one: reciprocal(one + exp2(-x)))
    return (
        ("tanh", tanh_for_halves()),
        ("erfc", erfc_for_halves()),
        ("logistic", logistic),
        ("logistic2", logistic2),
    )


def may_shorten(expr: Expression, fn: Callable[..., Any], made: tuple[int, ...]) -> bool:
    """Whether a step of an expression `for_halves` may call these: it makes halves, and is one of aicf's ops, none of which takes the difference of
    a function and a number near it."""
    own = fn.__globals__.get("__name__", "").startswith("aicf.ops.")
    return own and all(expr.dtypes[slot] in HALVES for slot in made)


def called(expr: Expression, fn: Callable[..., Any], made: tuple[int, ...]) -> Callable[..., Any]:
    """What a step calls: its function, with these functions in it if the expression is `for_halves` and the step makes halves."""
    if expr.for_halves and may_shorten(expr, fn, made):
        return with_functions(fn, dict(materialise(functions())))
    return fn
