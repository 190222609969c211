"""What attention on Hopper asks of a multiprocessor beyond what the GEMM does: see hopper_model.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from machines.hopper_model import Machine, Sums

TURNS = frozenset((1, 2))  # whose turn it is to multiply: somebody's, in the end


class AttentionMachine(Machine):
    left = TURNS
    helpers = 2  # warps of the producer's warpgroup that do anything; of the first one, its first thread

    def awake(self, threads: int) -> Sequence[int]:
        return [0, *range(32, 32 * self.helpers), *range(128, threads)]

    def warp_uniform(self) -> Any:
        return lambda x: x if self.current.index == 0 else self._warp("first", x)[0]

    def sync_at(self, threads: int) -> Any:
        return lambda barrier: self._meet(barrier, threads, [self.current.block])

    def arrive_at(self, threads: int) -> Any:
        return lambda barrier: self._meet(barrier, threads, [self.current.block], wait=False)

    def read_thread(self) -> Any:
        return lambda: self.current.index

    def finish_products(self, count: int, pending: int = 0, words: int = 0) -> Any:
        wait = self.wait_products(pending)

        def finish(acc: Any, *operand: Any) -> tuple:
            wait()
            if not isinstance(acc, Sums):
                return acc
            return tuple(acc.registers[self.current.index % 128].astype(np.float32))

        return finish
