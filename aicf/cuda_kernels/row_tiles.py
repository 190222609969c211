"""How rows are cut: threads, blocks of a cluster, neighbours in a load, and what is held of a row in registers (see rows.py)."""

from __future__ import annotations

import functools
from typing import NamedTuple

from ..registry.program import Shape, collapse
from ..registry.row_program import RowProgram, read_rows
from ..registry.variant import Reject, cdiv
from ..rows import RegionSpec
from ..types import TensorDesc
from .elementwise import VECTOR

# of a row, in registers of a thread: of more words each, fewer blocks find room, and more still would spill
WORDS, MOST_WORDS = 32, 48
MANY_LANES, CROWDED_WORDS = 512, 16  # threads of a block with more of them have 64 registers at most
MOST_LANES, MOST_BLOCKS = 1024, 8  # threads of a block; blocks of a cluster, everywhere
BLOCK = 128
STREAMED_LANES, STREAMED_WORDS = 512, 16  # of a row that registers can't hold: what a thread reads at once
MANY_BYTES = 2**23
SMS, BUSY = 132, 512  # multiprocessors, and threads of each that keep its memory busy


class Shaped(NamedTuple):
    """Rows as a kernel walks them: sizes of the rows' axes, merged; strides over them, and last along the columns."""

    shape: Shape
    loads: tuple[Shape, ...]
    stores: tuple[Shape, ...]


@functools.lru_cache(maxsize=1024)
def shaped(region: RegionSpec) -> Shaped | Reject:
    program = program_of(region)
    rows, count = len(program.rows), len(program.loads)
    strides = [*(load.strides for load in program.loads), *(store.strides for store in program.stores)]
    columns, along = collapse(program.columns, [s[rows:] for s in strides])
    shape, across = collapse(program.rows, [s[:rows] for s in strides])
    if len(columns) > 1:
        return Reject("access", f"columns {program.columns} are no one axis in all tensors")
    whole = [(*steps, step) for steps, (step,) in zip(across, along)]
    return Shaped(shape, tuple(whole[:count]), tuple(whole[count:]))


def program_of(region: RegionSpec) -> RowProgram:
    """Of a region that can be read."""
    program = read_rows(region)
    assert isinstance(program, RowProgram)
    return program


def walked(region: RegionSpec) -> Shaped:
    """Of a region that can be walked."""
    found = shaped(region)
    assert isinstance(found, Shaped)
    return found


class Cut(NamedTuple):
    """Neighbours in a load or a store; `anchor` and `loose`: see bodies/row_elements.py."""

    width: int
    anchor: int
    loose: tuple[bool, ...]


@functools.lru_cache(maxsize=1024)
def cut_of(region: RegionSpec) -> Cut:
    """16 bytes of the widest type where all rows begin at multiples of them, or fewer where they do so at fewer; if most of what is moved
    lies alike, its rows are cut where such multiples begin. What lies otherwise then, such as a vector along all rows, is loaded element by
    element: so that these are neighbours for neighbouring threads, a run is 4 bytes."""
    program, at = program_of(region), walked(region)
    moving: dict[int, tuple[TensorDesc, Shape]] = {}
    for n, (load, steps) in enumerate(zip(program.loads, at.loads)):
        if n in program.moves and load.operand is not None:
            moving[n] = region.operands[load.operand], (*steps[:-1], load.offset)
    for n, (store, steps) in enumerate(zip(program.stores, at.stores), len(program.loads)):
        if store.slot in program.moves:
            moving[n] = region.results[store.position], (*steps[:-1], 0)
    count = len(program.loads) + len(program.stores)
    size = max([t.dtype.itemsize for t, _ in moving.values()], default=4)

    def fits(n: int, width: int) -> bool:
        t, places = moving[n]
        return t.alignment >= min(VECTOR, width * t.dtype.itemsize) and not any(s % width for s in places)

    width = VECTOR // size
    while width > 1 and (program.length % width or not all(fits(n, width) for n in moving)):
        width //= 2
    even = Cut(width, -1, (False,) * count)
    if width * size >= VECTOR // 2 or not moving:
        return even
    return max(even, _uneven(moving, size, count, program.length), key=lambda c: c.width)


def _uneven(moving: dict[int, tuple[TensorDesc, Shape]], size: int, count: int, length: int) -> Cut:
    """With runs that begin where what is most lies at multiples of the width."""
    width = VECTOR // size
    while width > 1:
        alike: dict[Shape, list[int]] = {}
        for n, (t, places) in moving.items():
            if t.alignment >= min(VECTOR, width * t.dtype.itemsize):
                alike.setdefault(tuple(s % width for s in places), []).append(n)
        if not alike or length < 2 * width:
            width //= 2
            continue
        main = max(alike.values(), key=lambda some: sum(moving[n][0].nbytes for n in some))
        if len(main) < len(moving) and width * moving[main[0]][0].dtype.itemsize > 4:
            width //= 2
            continue
        return Cut(width, main[0], tuple(n in moving and n not in main for n in range(count)))
    return Cut(1, -1, (False,) * count)


class Tile(NamedTuple):
    """Threads of a row in a block and of the block, blocks that share a row, runs of neighbours that each thread has at once, and the first of
    these that are inside of every row; and words of registers that all of them take."""

    lanes: int
    block: int
    cluster: int
    cut: Cut
    chunks: int
    whole: int
    words: int

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has registers for: a thread takes some 48 besides."""
        return max(1, min(2048, 65536 // (self.words + 48)) // self.block)


@functools.lru_cache(maxsize=1024)
def shared_loads(region: RegionSpec) -> tuple[bool, ...]:
    """Of each load, whether it moves and is the same for all rows, such as a norm's weight, and these are so many that it comes from a cache:
    where they are few it would be one more trip to memory."""
    program, at = program_of(region), walked(region)
    return tuple(
        [n in program.moves and load.operand is not None and region.nbytes >= MANY_BYTES and program.count > 1 and not any(steps[:-1])
         for n, (load, steps) in enumerate(zip(program.loads, at.loads))]
    )  # fmt: skip


def _run_words(region: RegionSpec, width: int, all: bool = False) -> int:
    """Registers for a run of all operands that move; held ones are those that differ from row to row."""
    program, late = program_of(region), shared_loads(region)
    sizes = [
        load.dtype.itemsize
        for n, load in enumerate(program.loads)
        if n in program.moves and load.operand is not None and (all or not late[n])
    ]
    return max(1, sum(width if size >= 4 or width % (4 // size) else width * size // 4 for size in sizes))


def _runs(region: RegionSpec, cut: Cut) -> tuple[int, int]:
    """Of a row, at most and at least."""
    length = program_of(region).length
    return (
        (cdiv(length, cut.width), length // cut.width)
        if cut.anchor < 0
        else (length // cut.width, (length - cut.width + 1) // cut.width)
    )


def _tile(region: RegionSpec, cut: Cut, lanes: int, cluster: int) -> Tile:
    most, least = _runs(region, cut)
    chunks = max(1, cdiv(most, lanes * cluster))
    return Tile(
        lanes, max(lanes, BLOCK), cluster, cut, chunks, min(chunks, least // (lanes * cluster)), chunks * _run_words(region, cut.width)
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def held(region: RegionSpec) -> Tile | None:
    """A block, or part of it, holds a row: the fewest threads with some words each, where rows are few the more; None if registers can't."""
    cut = cut_of(region)
    return _fewest(region, cut, 1, [8, 16, 32, 64, *range(128, MOST_LANES + 1, 64)])


@functools.lru_cache(maxsize=1024)
def clustered(region: RegionSpec) -> Tile | None:
    """The same of several blocks: as many as keep all multiprocessors busy, if not more are needed to hold it."""
    cut, count = cut_of(region), program_of(region).count
    for cluster in (2, 4, 8):
        tile = _fewest(region, cut, cluster, [*range(128, MOST_LANES + 1, 64)])
        if tile and (count * cluster >= SMS or cluster == MOST_BLOCKS):
            return tile
    return None


def _fewest(region: RegionSpec, cut: Cut, cluster: int, lanes: list[int]) -> Tile | None:
    if cut.anchor >= 0:  # what is left at a row's ends is an element for each of some threads
        lanes = [n for n in lanes if n * cluster >= 2 * cut.width]
    tiles = [_tile(region, cut, n, cluster) for n in lanes]
    wanted, threads = WORDS, SMS * BUSY / max(1, program_of(region).count)
    while wanted > WORDS // 4 and _run_words(region, cut.width) * _runs(region, cut)[0] / wanted < threads:
        wanted //= 2
    for most in (wanted, WORDS, MOST_WORDS):
        for tile in tiles:
            if tile.words <= (min(most, CROWDED_WORDS) if tile.lanes > MANY_LANES else most):
                return tile
    return None


def streamed(region: RegionSpec, clusters: bool) -> Tile:
    """Some words of each thread at once, one after another; several blocks have a row where rows are few."""
    cut, count = cut_of(region), program_of(region).count
    words, cluster = _run_words(region, cut.width, all=True), 1
    chunks = max(1, STREAMED_WORDS // words)
    most, _ = _runs(region, cut)
    while (
        clusters
        and cluster < MOST_BLOCKS
        and count * cluster * 2 <= 2 * SMS
        and most > STREAMED_LANES * cluster * chunks
    ):
        cluster *= 2
    return Tile(STREAMED_LANES, STREAMED_LANES, cluster, cut, chunks, 0, chunks * words)


def serial(region: RegionSpec) -> Tile:
    """A thread for a row."""
    program = program_of(region)
    cut = Cut(1, -1, (False,) * (len(program.loads) + len(program.stores)))
    return Tile(1, BLOCK, 1, cut, 1, 0, _run_words(region, 1, all=True))
