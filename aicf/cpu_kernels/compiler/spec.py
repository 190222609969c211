"""What of a loop is compiled, by value: the key of its machine code."""

from __future__ import annotations

from dataclasses import dataclass

from ...rows.program import Bound, Expression
from ...types import DType

# How an argument walks a run: not at all, by one element, by a stride of its own.
REPEATED, NEXT, APART = 0, 1, 2

# Elements: small enough for the cache, large enough that where a row begins costs nothing.
FOLD_BLOCK = 16384
LANES = 32  # sums of a row side by side
SCRATCH = 2 * 8 * FOLD_BLOCK  # bytes that a loop may use: a block of values and one of sums


@dataclass(frozen=True)
class MapSpec:
    """An expression at neighbouring positions of a domain: all that its code depends on.

    sources  which of the arrays an argument reads; None: the index itself
    walks    how each argument goes on along the innermost axis
    arrays   NumPy's names of the types in memory of what is read
    targets  the same of what is written, for the expression's first results
    block    of the block that takes its last result, the core input; None if there is none
    bounds   of each argument, what masks it; () if nothing masks any
    """

    expression: Expression
    sources: tuple[int | None, ...]
    walks: tuple[int, ...]
    arrays: tuple[str, ...]
    targets: tuple[str, ...]
    block: str | None
    bounds: tuple[tuple[Bound, ...], ...] = ()


@dataclass(frozen=True)
class FoldSpec:
    """A reduction of values seen as (outer, reduced, inner) axes. Where they come from is in the frame: memory, or a map's loop.

    dtype    a compute type: what the values are
    columns  whether the innermost axis stays; else its size is 1
    """

    how: str
    dtype: DType
    columns: bool


# A fold's frame: the address of the map's loop, or 0; the pointer of the results; where in the frame the values' pointer is, or 0 where the map
# writes them into the scratch memory; the sizes of the reduced and the inner axis; then the map's own frame.
ENTRY = "aicf_loop"  # the symbol of every loop
WALK, OUT, VALUES, REDUCED, WIDTH, HEAD = range(6)
