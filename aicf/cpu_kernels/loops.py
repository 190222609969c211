"""Loops over a Map on the host: where each run of a domain begins, and the composed run over it (see compose.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..registry.program import Expression, Load, Map, collapse
from ..types import TensorDesc, row_major
from .compose import APART, NEXT, REPEATED, helper, jit, run_of

Arrays = Sequence[np.ndarray]
CARRIED = -1  # in place of an operand's position: what a core hands over


@helper
def _seek(plan, position, at):
    """Which element each argument has at a position of the domain. plan: see MapLoop."""
    last = plan.shape[1] - 1
    for k in range(at.size):
        at[k] = plan[k + 1, last]
    for axis in range(last - 1, -1, -1):
        size = plan[0, axis]
        coordinate = position % size if axis else position
        position //= size
        for k in range(at.size):
            at[k] += coordinate * plan[k + 1, axis]


@lru_cache(maxsize=1024)
def _walk(
    expression: Expression, sources: tuple[int | None, ...], walks: tuple[int, ...]
) -> Callable[..., None]:
    """walk(arrays, targets, fed, plan, first, count): the expression at `count` positions of the domain from `first` on.

    Position p is stored at p in the targets, and at p - first in `fed`.
    """
    run = run_of(expression, sources, walks)

    @jit
    def walk(arrays, targets, fed, plan, first, count):
        last = plan.shape[1] - 1
        size, strides = plan[0, last - 1], np.empty(plan.shape[0] - 1, np.int64)
        for k in range(strides.size):
            strides[k] = plan[k + 1, last - 1]
        at = np.empty(strides.size, np.int64)
        position, end = first, first + count
        while position < end:
            _seek(plan, position, at)
            n = min(size - position % size, end - position)
            run(arrays, at, strides, targets, fed, position, position - first, n)
            position += n

    return walk


class MapLoop:
    """A Map as a loop. Building it compiles nothing; the first call compiles what no other Map had before.

    walk   the compiled loop: walk(arrays, targets, fed, plan, first, count)
    plan   int64; row 0: sizes of the collapsed axes; row k + 1: strides of argument k, and behind them its first element

    Operands may have any strides, results are dense. What a core hands over comes dense over the domain.
    """

    def __init__(self, map: Map, operands: Sequence[TensorDesc]) -> None:
        carried = [Load(CARRIED, map.dtypes[0], row_major(map.shape))] * map.carried
        loads = [*carried, *map.loads]
        sizes, steps = collapse(map.shape, [load.strides for load in loads])
        rows = [(*sizes, 0), *((*walk, load.offset) for walk, load in zip(steps, loads))]
        self.plan = np.array(rows, np.int64)
        read = sorted({load.operand for load in loads if load.operand is not None})
        sources = tuple(None if load.operand is None else read.index(load.operand) for load in loads)
        walks = tuple({0: REPEATED, 1: NEXT}.get(walk[-1], APART) for walk in steps)
        self.walk = _walk(map.expression, sources, walks)
        self.numel = map.numel
        self._reads = [(p, p == CARRIED or operands[p].contiguous) for p in read]
        self._writes = [p for _, p in map.stores]

    def arrays(self, operands: Arrays, carried: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        return tuple(flat(carried if p == CARRIED else operands[p], dense) for p, dense in self._reads)

    def targets(self, results: Arrays) -> tuple[np.ndarray, ...]:
        return tuple(flat(results[p]) for p in self._writes)

    def __call__(self, operands: Arrays, results: Arrays, carried: np.ndarray | None = None) -> None:
        """The whole domain; nothing is fed."""
        self.walk(self.arrays(operands, carried), self.targets(results), (), self.plan, 0, self.numel)


def flat(array: Any, dense: bool = True) -> np.ndarray:
    """What loops read: all elements in one axis, or, of an array with gaps, the first, from which they count on.

    Halves and fp8 come as their bits.
    """
    line = (array if dense else array[(slice(1),) * array.ndim]).reshape(-1)
    if line.itemsize > 2 or line.dtype.char == "?":
        return line
    return line.view(np.uint16 if line.itemsize == 2 else np.uint8)
