"""What a region must be for a kernel to take it: checks that `accepts` yields.

A check is None, or the condition that failed with the value seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from ..ops.schema import MASKED, schema_of
from ..rows import RegionSpec
from ..rows.by_form import by_form
from ..rows.reject import Reject
from ..types import DType

# The condition of a variant that takes trouble, such as copies, where there is none.
NEEDLESS = "needless"
# Conditions that sizes have no part in: what refuses a region for one of these refuses all of its form.
OF_FORM = frozenset({"dtype", "precision"})
Checks = Iterable[Reject | None]


def first_failure(checks: Checks) -> Reject | None:
    for reject in checks:
        if reject is not None:
            if not isinstance(reject, Reject):
                raise TypeError(f"it yielded {reject!r}")
            return reject
    return None


def first_refusal(checks: Callable[[RegionSpec], Checks]) -> Callable[[RegionSpec], Reject | None]:
    """Checks as the `family` of variants: the first that fails, found once for each region."""
    return lru_cache(maxsize=256)(lambda region: first_failure(checks(region)))


def one_op(region: RegionSpec) -> Reject | None:
    if len(region.ops) != 1:
        return Reject("ops", f"takes one op, got {len(region.ops)} ({region.signature})")
    return None


@by_form
def unmasked(region: RegionSpec) -> Reject | None:
    """For kernels whose loads always have an element: the first op that reads under a mask."""
    for op in region.ops:
        if MASKED in schema_of(op.kind).traits:
            return Reject(
                "mask", f"{op.kind} reads under a mask, or by index; this kernel's loads do neither"
            )
    return None


def arity(region: RegionSpec, operands: int, results: int) -> Reject | None:
    got = len(region.operands), len(region.results)
    if got != (operands, results):
        return Reject("arity", f"takes {operands} operands and {results} results, got {got[0]} and {got[1]}")
    return None


def dtype(region: RegionSpec, *types: DType) -> Reject | None:
    """Every tensor of the region has one of these element types."""
    for what, i, t in _named(region):
        if t.dtype not in types:
            return Reject("dtype", f"{what} {i} is {t.dtype}, needs {' or '.join(map(str, types))}")
    return None


def contiguous(region: RegionSpec) -> Reject | None:
    for what, i, t in _named(region):
        if not t.contiguous:
            return Reject(
                "contiguous", f"{what} {i} has strides {t.stride} for shape {t.shape}, needs row-major"
            )
    return None


def same_shape(region: RegionSpec) -> Reject | None:
    first = region.results[0].shape
    for what, i, t in _named(region):
        if t.shape != first:
            return Reject("same_shape", f"{what} {i} has shape {t.shape}, result 0 has {first}")
    return None


def aligned(region: RegionSpec, nbytes: int) -> Reject | None:
    for what, i, t in _named(region):
        if t.alignment < nbytes:
            return Reject("aligned", f"{what} {i} is aligned to {t.alignment} bytes, needs {nbytes}")
    return None


def at_most(what: str, value: int, limit: int) -> Reject | None:
    return Reject(what, f"{what} {value} is over {limit}") if value > limit else None


def at_least(what: str, value: int, limit: int) -> Reject | None:
    return Reject(what, f"{what} {value} is under {limit}") if value < limit else None


def multiple(what: str, value: int, of: int) -> Reject | None:
    return Reject(what, f"{what} {value} is not a multiple of {of}") if value % of else None


def _named(region: RegionSpec) -> Iterator[tuple[str, int, Any]]:
    yield from (("operand", i, t) for i, t in enumerate(region.operands))
    yield from (("result", i, t) for i, t in enumerate(region.results))
