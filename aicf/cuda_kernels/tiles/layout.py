"""Which numbers of a matrix each thread holds: the fragment layouts of mma.sync and of wgmma, in one place, and that of kernels
that read whole rows. PTX ISA, sections "Matrix Fragments for mma.m16n8k16" and "Register Fragments".

Fragments are all alike. A warp has 8 rows x 16 bytes at a time, a word of 32 bits in each lane: lane 4 g + c the c-th word of row g, `run`
numbers. Words follow each other down (where `height` is 16), then to the right, then to the next rows:

                 16 bytes    the next
    rows 0 - 7   word 0      word 2
    rows 8 - 15  word 1      word 3

    sums of mma.sync m16n8      Layout(16, n)                     of wgmma m64nN   Layout(64, n, warps=4)
    its a, rows x k             Layout(16, k, run=…)              of wgmma         Layout(64, k, warps=4, run=…)
    its b, columns x k          Layout(8, k, height=8, run=…)

Sums lie as if they were halves, two to a word. So what is packed as halves in their order is the a of another product: no lane
needs another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dsl import device


class Places:
    """What all layouts have: places that are a thread's first number's and, the same for all threads, its others' from there on;
    `run` numbers that follow each other are neighbours in a row."""

    run: int

    @property
    def count(self) -> int:
        """Of a thread's numbers."""
        raise NotImplementedError

    def element(self) -> Callable[[int, int, int], tuple[int, int]]:
        """`of(i, warp, lane)`: row and column of a thread's number i. The one place that says it, in plain Python: bits of a
        lane, since compilers take a division's negative numbers to be possible."""
        raise NotImplementedError

    @property
    def same_rows(self) -> tuple[int, ...]:
        """Between lanes that have numbers of the same rows: of their numbers one of these bits differs, or some."""
        raise NotImplementedError

    @property
    def same_columns(self) -> tuple[int, ...]:
        raise NotImplementedError

    def place(self) -> Any:
        """`element`'s, as a device function."""
        return device(self.element())

    @property
    def offsets(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns from a thread's first number to each of them."""
        of = self.element()
        return tuple(of(i, 0, 0) for i in range(self.count))

    @property
    def own_rows(self) -> tuple[int, ...]:
        """Rows that a thread has numbers of, from its first one on."""
        return tuple(sorted({row for row, _ in self.offsets}))

    @property
    def own_columns(self) -> tuple[int, ...]:
        return tuple(sorted({column for _, column in self.offsets}))

    @property
    def by_row(self) -> tuple[int, ...]:
        """Of each number: which of the thread's own rows it is in."""
        own = self.own_rows
        return tuple(own.index(row) for row, _ in self.offsets)

    @property
    def by_column(self) -> tuple[int, ...]:
        own = self.own_columns
        return tuple(own.index(column) for _, column in self.offsets)


@dataclass(frozen=True)
class Layout(Places):
    """rows x columns of numbers that `warps` warps hold together, one's rows below the other's.

    height  rows that a warp has before the next one's begin: 16; 8 of the second operand of a product
    run     neighbours in a row that a thread has: what 32 bits hold of an operand, 1 of tf32, 2 of halves, 4 bytes
    """

    rows: int
    columns: int
    warps: int = 1
    height: int = 16
    run: int = 2

    def __post_init__(self) -> None:
        assert self.rows % (self.height * self.warps) == 0 and self.columns % (4 * self.run) == 0, self

    @property
    def count(self) -> int:
        return self.rows * self.columns // (32 * self.warps)

    @property
    def same_rows(self) -> tuple[int, ...]:
        return 1, 2

    @property
    def same_columns(self) -> tuple[int, ...]:
        return 16, 8, 4

    def element(self) -> Callable[[int, int, int], tuple[int, int]]:
        run, upper, apart = self.run, self.height // 8, self.height * self.warps
        height, block = self.height, self.columns // 4 * upper

        def of(i, warp, lane):
            row, column = i // run % upper * 8 + (lane >> 2), i % block // (run * upper) * (4 * run)
            return i // block * apart + warp * height + row, column + (lane & 3) * run + i % run

        return of

    def matrix(self) -> Any:
        """`of(lane)`: row and column where matrix lane // 8 begins, of the four 8 x 8 matrices of halves that ldmatrix and stmatrix
        take at a time: the first four words. Lane 8 j + i gives the address of row i of matrix j."""
        tall, run = self.height == 16, self.run

        def of(lane):
            odd, upper = lane >> 3 & 1, lane >> 4
            down, across = (odd, upper) if tall else (upper, odd)
            return down * 8, across * (4 * run)

        return device(of)


@dataclass(frozen=True)
class RowLayout(Places):
    """Rows of which each lies in `threads` threads, a power of two: part of a warp, or warps. A thread has runs of neighbours, and
    the threads' runs lie side by side, so that together they read whole lines of memory.

    columns  of a row; what there is no number for is masked
    run      neighbours that a thread has, as many as a load brings
    """

    columns: int
    threads: int
    run: int = 4

    def __post_init__(self) -> None:
        assert self.columns % (self.threads * self.run) == 0 and self.threads & self.threads - 1 == 0, self

    @property
    def count(self) -> int:
        return self.columns // self.threads

    @property
    def warps(self) -> int:
        """That hold a row."""
        return max(1, self.threads // 32)

    @property
    def same_rows(self) -> tuple[int, ...]:
        """In a warp."""
        return tuple(1 << bit for bit in range(5) if 1 << bit < self.threads)

    @property
    def same_columns(self) -> tuple[int, ...]:
        return tuple(1 << bit for bit in range(5) if 1 << bit >= self.threads)

    def element(self) -> Callable[[int, int, int], tuple[int, int]]:
        threads, bits, run = self.threads, self.threads.bit_length() - 1, self.run

        def of(i, warp, lane):
            thread = warp * 32 + lane
            return thread >> bits, (i // run * threads + (thread & threads - 1)) * run + i % run

        return of
