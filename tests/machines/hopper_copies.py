"""Copies on the model of a Hopper multiprocessor: engines that bring and store boxes, and what threads write for them.

A copy happens when its event is drawn; what a thread wrote is seen by it only after a fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from machines.hopper_bodies import Tensor
from machines.wgmma_model import swizzled

START = 0x410  # of dynamic shared memory: as unaligned as it may be
RANK_AT = 24  # the bit of an address from which on it is a block's rank in its cluster


def offset(address: Any) -> Any:
    """Of an address within its block."""
    return address & ((1 << RANK_AT) - 1)


def moved(address: int, place: tuple[int, int]) -> int:
    return (int(address) ^ place[0]) + place[1]


class Copies:
    """What a Machine (hopper_model.py) has of it; methods named as the factories of aicf/cuda_kernels/ptx make what those make."""

    def shared_address(self) -> Any:
        return lambda array: START | self.current.block.rank << RANK_AT

    def prefetch_map(self) -> Any:
        return lambda tensor_map: None

    def prefetch_box(self, rank: int = 2) -> Any:
        return lambda tensor, *corner: tensor.check(corner)

    def load_box(self, rank: int = 2) -> Any:
        return lambda *args: self._load([self.current.block], *args)

    def multicast_box(self, blocks: int, rank: int = 2) -> Any:
        return lambda *args: self._load(self.blocks[:blocks], *args)

    def _load(self, blocks: list[Any], to: int, tensor: Tensor, barrier: int, *corner: int) -> None:
        self._bring(blocks, swizzled(to, tensor.map), tensor.box(corner), tensor.map.nbytes, barrier)

    def load_windows(self, axes: int) -> Any:
        """PTX ISA, "im2col mode"."""

        def load(to: int, tensor: Any, barrier: int, *given: int) -> None:
            corner, further = given[: axes + 2], given[axes + 2 :]
            values = tensor.windows(corner, further)
            self._bring([self.current.block], swizzled(to, tensor.map), values, tensor.map.nbytes, barrier)

        return load

    def load_bytes(self) -> Any:
        def load(to: int, source: np.ndarray, nbytes: int, barrier: int) -> None:
            assert to % 16 == 0 and nbytes % 16 == 0
            values, size = source[: nbytes // source.itemsize].astype(np.float64), source.itemsize
            self._bring([self.current.block], to + size * np.arange(len(values)), values, nbytes, barrier)

        return load

    def _bring(
        self, blocks: list[Any], at: np.ndarray, values: np.ndarray, nbytes: int, barrier: int
    ) -> None:
        def arrives(block: Any) -> None:
            assert block.running, "the block has left"
            block.shared[block.at(offset(at))] = values
            block.barrier(offset(barrier)).nbytes -= nbytes
            block.barrier(offset(barrier)).settle()

        self.events += [lambda block=block: arrives(block) for block in blocks]

    def send_remote(self) -> Any:
        def send(there: int, *given: Any) -> None:
            *values, barrier = given
            assert there % 16 == 0
            at = there + 4 * np.arange(len(values))
            block = self.blocks[there >> RANK_AT]
            assert block is self.blocks[barrier >> RANK_AT] and offset(barrier) in block.barriers
            self._bring([block], at, np.array(values), 4 * len(values), barrier)

        return send

    def load_shared(self) -> Any:
        def load(address: int) -> tuple:
            assert address % 16 == 0
            block = self.current.block
            return tuple(np.float32(block.shared[block.at([int(address) + 4 * i for i in range(4)])]))

        return load

    def store_shared(self) -> Any:
        """Seen by threads at once."""

        def store(address: int, *values: Any) -> None:
            assert address % 16 == 0
            block = self.current.block
            block.shared[block.at([int(address) + 4 * i for i in range(4)])] = values

        return store

    def load_shared_pair(self) -> Any:
        def load(low: int, high: int) -> tuple:
            assert low % 2 == high % 2 == 0
            block = self.current.block
            return tuple(block.shared[block.at([int(low), int(high)])])

        return load

    def store_pair_below(self) -> Any:
        """Of halves, which a word of shared memory is here."""

        def store(address: np.ndarray, word: tuple, place: int, limit: int) -> None:
            if 0 <= place < limit:
                assert address.ctypes.data % 4 == 0, "an illegal instruction: a word at an odd half"
                assert len(address) >= 2, "written behind the results"
                address[:2] = word

        return store

    def copy_run_below(self) -> Any:
        """Of halves."""

        def copy(address: np.ndarray, source: int, place: int, limit: int) -> None:
            assert source % 16 == 0
            block = self.current.block
            if 0 <= place < limit:
                assert address.ctypes.data % 16 == 0, f"an illegal instruction: {address.ctypes.data}"
                assert len(address) >= 8, f"written behind the results: {len(address)} {place} {limit}"
                address[:8] = block.shared[block.at(source + 2 * np.arange(8))]

        return copy

    def store_half_below(self) -> Any:
        def store(address: np.ndarray, word: tuple, place: int, limit: int) -> None:
            if 0 <= place < limit:
                address[0] = word[0]

        return store

    def transpose_runs(self, sources: tuple, targets: tuple) -> Any:
        """As `load_matrices`, of words."""
        store = self.store_shared()

        def transpose(source: int, target: int) -> None:
            thread, lane = self.current, self.current.index % 32
            for i, place in enumerate(sources):
                rows = self._warp("ldmatrix", moved(source, place))
                at = [rows[8 * j + lane // 4] + lane % 4 * 4 for j in range(4)]
                store(moved(target, targets[i]), *thread.block.shared[thread.block.at(at)])

        return transpose

    def load_front(self, quad: Any) -> Any:
        load = self.load_shared()

        def load_all(a: int, b: int) -> tuple:
            at = [moved(b, place) for place in quad.columns]
            at += [moved(a, place) for place in quad.rows[: quad.front // 4 - len(quad.columns)]]
            return tuple(x for address in at for x in load(address))

        return load_all

    def multiply_quad(self, quad: Any) -> Any:
        load, front_of = self.load_shared(), self.load_front(quad)
        columns, ahead = 4 * len(quad.columns), quad.front // 4 - len(quad.columns)
        into, row, column = (np.array(x) for x in zip(*(
            (i, 4 * run + e, h) for run, products in enumerate(quad.products) for i, e, h in products)))  # fmt: skip
        # of a sum, products come one after the other
        rounds = np.array([np.flatnonzero(into == i) for i in range(quad.accumulators)]).T

        def multiply(acc: tuple, front: tuple, a: int, next_a: int, next_b: int) -> tuple:
            rows = [*front[columns:], *(x for place in quad.rows[ahead:] for x in load(moved(a, place)))]
            x, y = np.array(rows, np.float64), np.array(front[:columns], np.float64)
            sums = np.array(acc, np.float32)
            for at in rounds:
                sums[into[at]] = x[row[at]] * y[column[at]] + sums[into[at]]
            return tuple(sums), front_of(next_a, next_b)

        return multiply

    def store_box(self, rank: int = 2) -> Any:
        return lambda tensor, source, *corner: self._send(
            swizzled(source, tensor.map), lambda values: tensor.put(corner, values)
        )

    def add_box(self, rank: int = 2) -> Any:
        return lambda tensor, source, *corner: self._send(
            swizzled(source, tensor.map), lambda values: tensor.add(corner, values)
        )

    def store_bytes(self) -> Any:
        def store(target: np.ndarray, source: int, nbytes: int) -> None:
            assert source % 16 == 0 and nbytes % 16 == 0
            count = nbytes // target.itemsize
            self._send(
                source + target.itemsize * np.arange(count), lambda x: target.__setitem__(slice(count), x)
            )

        return store

    def _send(self, addresses: np.ndarray, put: Callable[[np.ndarray], None]) -> None:
        block, entry = self.current.block, {"read": False}
        at = block.at(addresses)

        def leaves() -> None:
            put(block.shared[at])
            entry["read"] = True

        self.current.stores[-1].append(entry)
        self.leaving.append(leaves)

    def commit_stores(self) -> Any:
        return lambda: self.current.stores.append([])

    def wait_stores_read(self, pending: int) -> Any:
        def wait() -> None:
            *committed, _ = self.current.stores
            older = [e for group in committed[: len(committed) - pending] for e in group]
            self.current.wait(lambda: all(e["read"] for e in older))

        return wait

    def wait_stores(self) -> Any:
        return self.wait_stores_read(0)

    def fence_async(self) -> Any:
        def fence() -> None:
            thread = self.current
            for at, value in thread.written:
                thread.block.shared[at] = value
            thread.written.clear()

        return fence

    fence_async_all = fence_async

    def opaque(self) -> Any:
        return lambda x: x

    optimization_barrier = opaque

    def pack_halves(self, dtype: Any) -> Any:
        return lambda low, high: tuple(np.array([low, high], np.float32).astype(dtype.numpy))

    def load_matrices(self, transposed: bool = False) -> Any:
        """As below, the other way."""

        def load(address: int) -> tuple:
            rows = self._warp("ldmatrix", int(address))
            self._check_banks(rows)
            at = [place for j in range(4) for place in self._pair(rows, j, transposed)]
            block = self.current.block
            return tuple(map(tuple, block.shared[block.at(at)].astype(np.float32).reshape(4, 2)))

        return load

    def store_matrices(self, transposed: bool = False) -> Any:
        """A lane has words of the rows whose addresses other lanes give: a warp acts as one."""

        def store(address: int, *words: Any) -> None:
            thread = self.current
            rows = self._warp("stmatrix", int(address))
            self._check_banks(rows)
            for j, pair in enumerate(words):
                thread.written.append((thread.block.at(self._pair(rows, j, transposed)), pair))

        return store

    def _pair(self, rows: list[int], j: int, transposed: bool) -> list[int]:
        """Where this lane's two halves of matrix j lie."""
        line, first = divmod(self.current.index % 32, 4)
        if transposed:
            return [rows[8 * j + 2 * first + e] + 2 * line for e in (0, 1)]
        return [rows[8 * j + line] + 4 * first + 2 * e for e in (0, 1)]

    def _check_banks(self, addresses: list[int]) -> None:
        for j in range(4):
            rows = addresses[8 * j : 8 * j + 8]
            assert len({a % 128 // 16 for a in rows}) == 8 and not any(a % 16 for a in rows)
