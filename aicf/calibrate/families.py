"""The families of ops by which regret and errors of predictions are reported."""

from __future__ import annotations

from collections.abc import Iterable

FAMILIES = {
    "gemm_codes": "products of codes",
    "gemm": "products",
    "attention": "attention",
    "convolution": "convolutions",
}  # by what the name of an op begins with
OTHERS = "rows, maps and others"


def family(kinds: Iterable[str]) -> str:
    """The first family that one of a region's ops belongs to."""
    names = list(kinds)
    for start, words in FAMILIES.items():
        if any(name.startswith(start) for name in names):
            return words
    return OTHERS
