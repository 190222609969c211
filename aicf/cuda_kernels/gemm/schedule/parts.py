"""How k is divided into parts that are summed by themselves, and then added up from the first to the last."""

from __future__ import annotations

from typing import NamedTuple

from ....registry.variant import cdiv

FIXED_STEP = 32  # of k, of parts by k alone: a multiple of every tile's step
LEAST_FIXED, MOST_FIXED = 192, 8  # the least extent of such a part, and how many there are


class KSplit(NamedTuple):
    """k as so many splits of `k` each, the last one maybe shorter."""

    number: int
    k: int


def by_k(k: int) -> KSplit:
    """Parts that depend on k alone, about a power of two of them: those of all kernels that divide k in invariant regions."""
    wanted = min(MOST_FIXED, 1 << max(0, (k // LEAST_FIXED).bit_length() - 1))
    each = max(1, cdiv(cdiv(k, FIXED_STEP), wanted)) * FIXED_STEP
    return KSplit(max(1, cdiv(k, each)), each)
