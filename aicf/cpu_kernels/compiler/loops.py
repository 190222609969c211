"""Loops of the host: the numbers and pointers that a compiled loop is called with.

A loop takes one argument, its frame: int64 numbers that lie together, first pointers, then sizes, then a plan of how memory
is walked. Sizes and strides are in frames alone, so other shapes need no other code. Nothing here imports numba; code.py finds
or compiles what is described.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np

from ...lazy import lazy
from ...rows.program import Load, Map, collapse
from ...types import DType, TensorDesc, row_major
from .code import Code, Numbers, code_of, pointer
from .spec import APART, NEXT, REPEATED, FoldSpec, MapSpec

Arrays = Sequence[np.ndarray]
Span = Callable[[int, int], None]
CORE_RESULT = -1  # in place of an operand's position


def memory_dtype(dtype: DType) -> np.dtype:
    """The NumPy type that loops see a tensor as: floats that they can't compute with as their bits."""
    return dtype.numpy if dtype.compute is dtype else np.dtype(f"u{dtype.itemsize}")


class MapLoop:
    """A Map as a loop. Building it compiles nothing.

    plan  columns, and a table of so many; row 0: sizes of the collapsed axes; row k + 1: strides of argument k, and behind them
          its first element

    Operands may have any strides, results are dense. The core result comes dense over the domain.
    """

    def __init__(self, map: Map, operands: Sequence[TensorDesc], results: Sequence[TensorDesc]) -> None:
        from_core = [Load(CORE_RESULT, map.dtypes[0], row_major(map.shape))] * map.core_results
        loads = [*from_core, *map.loads]
        sizes, steps = collapse(map.shape, [load.strides for load in loads])
        rows = [(*sizes, 0), *((*walk, load.offset) for walk, load in zip(steps, loads))]
        self.plan = [len(sizes) + 1, *(number for row in rows for number in row)]
        self.reads = sorted({load.operand for load in loads if load.operand is not None})
        self.writes = [p for _, p in map.stores]
        self.spec = MapSpec(
            map.expression,
            tuple(None if load.operand is None else self.reads.index(load.operand) for load in loads),
            tuple({0: REPEATED, 1: NEXT}.get(walk[-1], APART) for walk in steps),
            tuple(
                (map.dtypes[0].compute.numpy if p == CORE_RESULT else memory_dtype(operands[p].dtype)).name
                for p in self.reads
            ),
            tuple(memory_dtype(results[p].dtype).name for p in self.writes),
            None if map.core_input is None else map.dtypes[map.core_input].compute.numpy.name,
            tuple(load.bounds for load in loads) if any(load.bounds for load in loads) else (),
        )
        self.pointers = len(self.reads) + len(self.writes)
        self.core_result = 0 if CORE_RESULT in self.reads else None  # its place among the pointers
        self.frame = array("q", [*[0] * self.pointers, 0, map.numel, *self.plan])

    @lazy
    def code(self) -> Code:
        return code_of(self.spec)

    def fill(self, frame: Numbers, operands: Arrays, results: Arrays) -> None:
        """The pointers of what is read and of what is written; the core result comes first, and later."""
        at = 0
        for p in self.reads:
            if p != CORE_RESULT:
                frame[at] = pointer(operands[p])
            at += 1
        for p in self.writes:
            frame[at] = pointer(results[p])
            at += 1

    def bind(self, operands: Arrays, results: Arrays) -> Callable[..., None]:
        """The whole domain of these arrays, whose pointers the call keeps: `call()`, or `call(core_result)` after a core."""
        frame = self.frame[:]
        self.fill(frame, operands, results)
        return self.code.bound(frame, (operands, results), self.core_result)

    def bind_span(self, operands: Arrays, results: Arrays) -> Span:
        """A part of the domain: `call(first, count)` of positions in row-major order."""
        frame = self.frame[:]
        self.fill(frame, operands, results)
        return _span(frame, self.pointers, self.code.bound(frame, (operands, results), None))


class FoldLoop:
    """A reduction as a loop, with the Map before it.

    feed   the Map, with what is reduced as its core input, unless it is kept in a result
    plain  whether the Map is nothing: its one operand is reduced as it lies
    sizes  outer, reduced, inner
    """

    def __init__(
        self, how: str, dtype: DType, feed: MapLoop, plain: bool, kept: int | None, sizes: tuple[int, int, int],
        columns: bool,
    ) -> None:  # fmt: skip
        self.feed, self.spec = feed, FoldSpec(how, dtype, None if plain else feed.spec, kept, columns)
        self.frame = array("q", [*[0] * feed.pointers, 0, 0, *sizes, *feed.plan])

    @lazy
    def code(self) -> Code:
        return code_of(self.spec)

    def bind(self, operands: Arrays, results: Arrays, out: np.ndarray) -> Callable[..., None]:
        """The outer * inner sums into `out`, dense and of the compute type: `call()`, or `call(core_result)` after a core."""
        frame = self.frame[:]
        self.feed.fill(frame, operands, results)
        frame[self.feed.pointers] = pointer(out)
        return self.code.bound(frame, (operands, results, out), self.feed.core_result)

    def bind_span(self, operands: Arrays, results: Arrays, out: np.ndarray) -> Span:
        """A part of the sums: `call(first, count)` of the outer axis."""
        frame = self.frame[:]
        self.feed.fill(frame, operands, results)
        frame[self.feed.pointers] = pointer(out)
        return _span(frame, self.feed.pointers + 1, self.code.bound(frame, (operands, results, out), None))


def _span(frame: Numbers, at: int, call: Callable[..., None]) -> Span:
    """The numbers at a place of the frame, and the next, are what the call is given."""

    def span(first: int, count: int) -> None:
        frame[at], frame[at + 1] = first, count
        call()

    return span
