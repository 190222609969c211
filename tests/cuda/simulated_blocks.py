"""Blocks of numba's simulator whose threads wait for each other; its own ask each thread again and again whether it waits."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel


class Thread(kernel.BlockThread):
    def run(self) -> None:
        super().run()  # keeps what it raises
        self._manager.end()

    def syncthreads(self) -> None:
        self._manager.meet()


class Block(kernel.BlockManager):
    """Threads meet when all have come that have not ended."""

    def run(self, grid_point: tuple[int, ...], *args: Any) -> None:
        self.met, self.turn, self.waiting, self.alive = threading.Condition(), 0, 0, self.block_state.size
        threads = [
            Thread(lambda: self._f(*args), self, grid_point, place, self._debug)
            for place in np.ndindex(*self._block_dim)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for thread in threads:
            if thread.exception:
                error, trace = thread.exception
                raise error.with_traceback(trace)

    def meet(self) -> None:
        with self.met:
            turn = self.turn
            self.waiting += 1
            self._go_on_if_all_are_here()
            while self.turn == turn:
                self.met.wait()

    def end(self) -> None:
        with self.met:
            self.alive -= 1
            self._go_on_if_all_are_here()

    def _go_on_if_all_are_here(self) -> None:
        if self.waiting == self.alive:
            self.waiting, self.turn = 0, self.turn + 1
            self.met.notify_all()


def use() -> None:
    """In this process."""
    kernel.BlockManager = Block
