"""Blocks of numba's simulator whose threads take turns; its own are threads of the host, asked again and again whether they wait."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.cuda.simulator import kernel, kernelapi

from machines.fibers import Fiber, getcurrent, take_turns


class Thread(kernel.BlockThread):
    """Never started: `run` is called in a fiber."""

    def syncthreads(self) -> None:
        self._manager.meet()

    def syncthreads_or(self, value: Any) -> int:
        block = self._manager
        vote = block.turn
        block.votes[vote] = block.votes.get(vote, 0) | int(bool(value))
        block.meet()
        return block.votes[vote]


class Block(kernel.BlockManager):
    """Threads meet when all have come that have not ended."""

    def run(self, grid_point: tuple[int, ...], *args: Any) -> None:
        self.turn, self.waiting, self.alive = 0, 0, self.block_state.size
        self.votes: dict[int, int] = {}  # of each turn that asked for them
        threads = [
            Thread(functools.partial(self._f, *args), self, grid_point, place, self._debug)
            for place in np.ndindex(*self._block_dim)
        ]
        take_turns([self._fiber(thread) for thread in threads])
        for thread in threads:
            if thread.exception:
                error, trace = thread.exception
                raise error.with_traceback(trace)

    def _fiber(self, thread: Thread) -> Fiber:
        def run() -> None:
            thread.run()  # keeps what it raises
            self.alive -= 1
            self._go_on_if_all_are_here()

        fiber = Fiber(run)
        fiber.thread = thread
        return fiber

    def meet(self) -> None:
        turn = self.turn
        self.waiting += 1
        self._go_on_if_all_are_here()
        if self.turn == turn:
            getcurrent().wait(lambda: self.turn > turn)

    def _go_on_if_all_are_here(self) -> None:
        if self.waiting == self.alive:
            self.waiting, self.turn = 0, self.turn + 1


def use() -> None:
    """In this process."""
    kernel.BlockManager = Block
    # which looks up by it where it is, and makes no more locks of it
    kernelapi.threading = SimpleNamespace(current_thread=lambda: getcurrent().thread)
