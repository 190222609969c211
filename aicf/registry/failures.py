"""Errors of what a variant's own functions raise: its conditions, its cost, its call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import KernelError
from ..ops.whose_line import place, told
from ..rows import RegionSpec

ANSWERS = {
    "accepts": "a Reject or None, yielded for each condition",
    "viable": "a Reject or None, yielded for each condition",
    "cost": "a Cost, such as roofline(...) makes",
    "workspace": "bytes, an int",
    "least": "microseconds, a float",
    "numerics": "a NumericClass, or no_class(why)",
}


def failed(
    what: str, region: RegionSpec, error: Exception, function: Any, expected: str | None = None
) -> KernelError:
    return KernelError(
        what, where=place(error, function), expected=expected, got=told(error), details=[f"region: {region}"],
        hint="mend that line; docs/add-an-op.md shows how kernels are written",
    )  # fmt: skip


def unanswered(
    kernel_id: str, name: str, region: RegionSpec, error: Exception, function: Callable[..., Any]
) -> KernelError:
    """Of a function that selection asks. That it fails is no refusal: another kernel in its place would hide the mistake."""
    return failed(f"kernel {kernel_id}: its `{name}` failed", region, error, function, ANSWERS[name])
