"""Loops of the host: the numbers and pointers that a compiled loop is called with.

A loop reads its frame: neighbouring int64 numbers, first pointers, then sizes, then a plan of how memory is walked. Sizes and
strides are in frames alone, so other shapes need no other code. Nothing here imports numba; code.py finds or compiles what is
described.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...lazy import lazy
from ...rows.program import Load, Map, collapse
from ...types import DType, TensorDesc, row_major
from .code import Code, Numbers, code_of, pointer
from .spec import APART, HEAD, NEXT, OUT, REPEATED, WALK, FoldSpec, MapSpec

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
        self.numel = map.numel
        self.frame = array("q", [*[0] * self.pointers, *self.plan])

    @lazy
    def code(self) -> Code:
        return code_of(self.spec)

    def fill(self, frame: Numbers, operands: Arrays, results: Arrays, at: int = 0) -> None:
        """The pointers of what is read and of what is written; the core result comes first, and later. at: where they begin."""
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
        return self.code.bound(frame, (operands, results), self.core_result, 0, self.numel)

    def bind_span(self, operands: Arrays, results: Arrays) -> Span:
        """A part of the domain: `call(first, count)` of positions in row-major order."""
        frame = self.frame[:]
        self.fill(frame, operands, results)
        return self.code.bound_span(frame, (operands, results))


class FoldLoop:
    """A reduction as a loop, which calls that of the Map before it for each block of values.

    feed   the Map, with what is reduced as its core input, unless it is kept in a result
    plain  whether the Map is nothing: its one operand is reduced as it lies
    kept   which of the Map's results has the values; None where they go into the scratch memory
    sizes  outer, reduced, inner
    """

    def __init__(
        self, how: str, dtype: DType, feed: MapLoop, plain: bool, kept: int | None, sizes: tuple[int, int, int],
        columns: bool,
    ) -> None:  # fmt: skip
        self.feed, self.plain, self.outer = feed, plain, sizes[0]
        self.spec = FoldSpec(how, dtype.compute, columns)
        values = HEAD if plain else 0 if kept is None else HEAD + len(feed.reads) + kept
        self.frame = array("q", [0, 0, values, *sizes[1:], *feed.frame])

    @property
    def specs(self) -> list[MapSpec | FoldSpec]:
        """All that is compiled for it."""
        return [self.spec] if self.plain else [self.spec, self.feed.spec]

    @lazy
    def code(self) -> Code:
        return code_of(self.spec)

    def _filled(self, operands: Arrays, results: Arrays, out: np.ndarray) -> tuple[Numbers, tuple[Any, ...]]:
        """A frame, and what its pointers point at."""
        frame, walk = self.frame[:], None if self.plain else self.feed.code
        frame[WALK], frame[OUT] = 0 if walk is None else walk.address, pointer(out)
        self.feed.fill(frame, operands, results, HEAD)
        return frame, (operands, results, out, walk)

    def bind(self, operands: Arrays, results: Arrays, out: np.ndarray) -> Callable[..., None]:
        """The outer * inner sums into `out`, dense and of the compute type: `call()`, or `call(core_result)` after a core."""
        frame, keeps = self._filled(operands, results, out)
        core_result = None if self.feed.core_result is None else HEAD + self.feed.core_result
        return self.code.bound(frame, keeps, core_result, 0, self.outer)

    def bind_span(self, operands: Arrays, results: Arrays, out: np.ndarray) -> Span:
        """A part of the sums: `call(first, count)` of the outer axis."""
        return self.code.bound_span(*self._filled(operands, results, out))
