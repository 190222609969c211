"""What attention on Hopper asks of a multiprocessor beyond what the GEMM does: see hopper_model.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from machines.hopper_bodies import Bits
from machines.hopper_model import Machine, Sums

ROLES = 384  # threads of a block with a producer's warpgroup; others' are all alike


class Memory(np.ndarray):
    """What lies from an address on, to which bytes are added."""

    def __add__(self, nbytes: int) -> Memory:  # type: ignore[override]
        return self[nbytes // self.itemsize :]


class AttentionMachine(Machine):
    left = frozenset(
        range(16)
    )  # whose turn it is to multiply, and what may be overwritten: that of nobody, in the end
    helpers = 2  # warps of the producer's warpgroup that do anything; of the first one, its first thread

    def awake(self, threads: int) -> Sequence[int]:
        return (
            [0, *range(32, 32 * self.helpers), *range(128, threads)] if threads == ROLES else range(threads)
        )

    def warp_uniform(self) -> Any:
        return lambda x: x if self.current.index == 0 else self._warp("first", x)[0]

    def sync_at(self, threads: int) -> Any:
        return lambda barrier: self._meet(barrier, threads, [self.current.block])

    def arrive_at(self, threads: int) -> Any:
        return lambda barrier: self._meet(barrier, threads, [self.current.block], wait=False)

    def read_thread(self) -> Any:
        return lambda: self.current.index

    def global_address(self) -> Any:
        return lambda pointer, i: pointer[i:].view(Memory)

    def finish_products(self, count: int, pending: int = 0, words: int = 0) -> Any:
        wait = self.wait_products(pending)

        def finish(acc: Any, *operand: Any) -> tuple:
            wait()
            if not isinstance(acc, Sums):
                return acc
            return tuple(acc.registers[self.current.index % 128].astype(np.float32))

        return finish

    def load_shared_word(self) -> Any:
        """By a warp's lanes together, as they do where none has parted from the others."""

        def load(address: int) -> int:
            block = self.current.block
            word = int(block.shared[block.at(np.array(address))])
            self._warp("word", word)
            return word

        return load

    def store_shared_word(self) -> Any:
        def store(address: int, x: int) -> None:
            block = self.current.block
            block.shared[block.at(np.array(address))] = x

        return store

    def add_bytes(self) -> Any:
        def add(target: np.ndarray, source: int, nbytes: int) -> None:
            assert source % 16 == 0 and nbytes % 16 == 0
            count = nbytes // target.itemsize

            def put(x: np.ndarray) -> None:
                target[:count] += x.astype(target.dtype)

            self._send(source + target.itemsize * np.arange(count), put)

        return add


class EndsMachine(AttentionMachine):
    """For kernels whose threads exchange words by shuffles."""

    def pack_halves(self, dtype: Any) -> Any:
        return lambda low, high: Bits(
            np.array([low, high], np.float32).astype(dtype.numpy).view(np.uint32)[0]
        )
