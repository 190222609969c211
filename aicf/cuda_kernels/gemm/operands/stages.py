"""K-tiles of operands in shared memory, for mma.sync: how they lie there, how they are loaded, and where a warp's fragments are.

Operands lie as they do in memory, K-major or MN-major, in rows without padding. The 16-byte chunks of a row are swizzled:
which one lies where depends on the row, so that neither the eight rows of an ldmatrix nor what a warp reads of rows of
numbers fall on the same banks. A place is then another one with some bits flipped and some bytes added (`ptx.Place`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...dsl import device
from ...ptx import Place, Places, copy_async, load_unit_words, store_unit_words
from ...tiles.layout import Layout

CHUNK = 16  # bytes, that rows are swizzled by
STEP = 32  # bytes of k, that a product takes: 16 halves, or 8 of f32
NARROWEST = 4  # bytes, that cp.async copies; a word


@dataclass(frozen=True)
class Stored:
    """A K-tile of an operand in shared memory: mn x k, of `itemsize` bytes each; MN-major or K-major.

    Extents are powers of two, rows 32 bytes or more; numbers of 32 bits that are MN-major have rows of 128 or more.
    """

    mn: int
    k: int
    itemsize: int
    mn_major: bool

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return (self.mn if self.mn_major else self.k) * self.itemsize

    @property
    def rows(self) -> int:
        return self.k if self.mn_major else self.mn

    @property
    def nbytes(self) -> int:
        return self.rows * self.row

    @property
    def by_numbers(self) -> bool:
        """Whether fragments are read a number at a time: ldmatrix transposes halves only."""
        return self.mn_major and self.itemsize == 4

    def swizzle(self) -> Any:
        """`of(row)`: which bits of the places of a row's chunks are flipped."""
        if self.by_numbers:  # four rows are read together, two chunks of each
            return device(lambda row: row % 4 * (2 * CHUNK))
        together, chunks = max(1, 128 // self.row), min(8, self.row // CHUNK)
        return device(lambda row: row // together % chunks * CHUNK)

    def offset(self) -> Any:
        """`of(mn, k)`: bytes from the K-tile's start to an element. Starts are multiples of 128."""
        swizzle, mn_major, length, size = self.swizzle(), self.mn_major, self.row, self.itemsize

        def of(mn, k):
            row, along = (k, mn) if mn_major else (mn, k)
            return row * length + (along * size ^ swizzle(row))

        return device(of)

    def place(self, mn: int, k: int) -> Place:
        """From an element to the one so much of m or n and so much of k further, where no bits carry: distances are multiples of
        all that the first one's coordinates may be."""
        row, along = (k, mn) if self.mn_major else (mn, k)
        high = along * self.itemsize // 128 * 128
        swizzled = along * self.itemsize - high ^ self.swizzle().args[0](row)
        return swizzled, row * self.row + high


@dataclass(frozen=True)
class Fragments:
    """A warp's part of an operand: `count` fragments of 16 rows x 32 bytes of k each.

    The four 8 x 4 matrices of words of a fragment are those of an mma's operand: for a, rows 0-7 and 8-15 at the first
    half of k, then at the second; for b (two column tiles), the halves of k for columns 0-7, then for columns 8-15.
    """

    stored: Stored
    count: int
    first: bool  # whether it is a

    @property
    def places(self) -> Places:
        stored, half = self.stored, CHUNK // self.stored.itemsize
        words = [(8, 0), (0, half)] if self.first else [(0, half), (8, 0)]
        matrices = [(0, 0), words[0], words[1], (8, half)] if stored.by_numbers else [(0, 0)]
        return tuple(
            tuple(tuple(stored.place(16 * i + mn, k + dk) for mn, dk in matrices) for i in range(self.count))
            for k in range(0, stored.k, 2 * half)
        )

    def lane(self) -> Any:
        """`of(lane)`: m or n, and k, of what a thread reads: the row of a matrix that it gives ldmatrix the address of, or the first
        of its numbers."""
        run = NARROWEST // self.stored.itemsize
        layout = Layout(16, 8 * run, height=16 if self.first else 8, run=run)
        word, matrix, mn_major = layout.place(), layout.matrix(), self.stored.mn_major
        if self.stored.by_numbers:
            return device(lambda lane: word(0, 0, lane))

        def of(lane):
            mn, k = matrix(lane)
            return (mn, k + lane % 8) if mn_major else (mn + lane % 8, k)

        return device(of)


@dataclass(frozen=True)
class StageLoad:
    """How the threads of a block load a K-tile: `width` bytes at a time by cp.async; a number at a time, through registers,
    where they are narrower than it takes. Each thread walks down the rows, along one column of such units.

    registers  units of any width pass through registers, as they must before sm_80
    partial    the last unit of a row may exist in part
    """

    stored: Stored
    width: int
    threads: int
    registers: bool = False
    partial: bool = True

    @property
    def elements(self) -> int:
        """In a unit."""
        return self.width // self.stored.itemsize

    @property
    def staged(self) -> bool:
        """Whether units pass through registers."""
        return self.registers or self.width < NARROWEST

    @property
    def apart(self) -> int:
        """Rows from one unit of a thread to its next."""
        return self.threads * self.width // self.stored.row

    @property
    def count(self) -> int:
        """Of a thread's units."""
        return self.stored.nbytes // (self.width * self.threads)

    @property
    def to(self) -> tuple[Place, ...]:
        fast = self.stored.mn_major
        rows = range(0, self.count * self.apart, self.apart)
        return tuple(self.stored.place(0, row) if fast else self.stored.place(row, 0) for row in rows)

    def first(self) -> Any:
        """`of(thread)`: m or n, and k, of its first unit."""
        mn_major, across, elements = self.stored.mn_major, self.stored.row // self.width, self.elements

        def of(thread):
            along, row = thread % across * elements, thread // across
            return (along, row) if mn_major else (row, along)

        return device(of)

    def fetch(self) -> Any:
        """`fetch(pointer, to, (at, mn_left, k_left, mn_step, k_step))`: a thread's units of a K-tile, the first to shared address
        `to`; what it has to hold meanwhile.

        at            element where its first unit begins
        mn_left, k_left  how many there are from there on
        """
        mn_major, elements, size = self.stored.mn_major, self.elements, self.stored.itemsize

        def span(env):
            at, mn_left, k_left, mn_step, k_step = env
            along, rows, step = (mn_left, k_left, k_step) if mn_major else (k_left, mn_left, mn_step)
            return at, step, min(max(along, 0), elements) * size, rows

        if self.staged:
            return load_unit_words(self.count, self.apart, span, self.width, size, self.partial)
        return copy_async(self.to, self.apart, span, self.width, size)

    def store(self) -> Any:
        """`store(to, staged)`: what `fetch` loaded, to its places."""
        return store_unit_words(self.to, self.width) if self.staged else device(lambda to, staged: None)
