"""How rows are cut: threads, blocks of a cluster, neighbours in a load, and what of a row stays in registers (see rows.py)."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from ...registry.variant import Reject, cdiv
from ...rows import RegionSpec
from ...rows.program import Shape, collapse
from ...rows.row_program import RowProgram, read_rows
from ...types import TensorDesc
from ..maps.elementwise import VECTOR

MOST_WORDS = 48  # of a row, in registers of a thread: more would spill
BLOCK, LANES = (
    128,
    (8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512),
)  # of a row: larger blocks end later than they load earlier
CLUSTERS, MOST_LANES, MOST_BLOCKS = (2, 4, 8), 512, 8  # blocks of a cluster, as many as may be everywhere
STREAMED_WORDS = 16  # of a row that registers can't hold: what each of its threads reads at once
MANY_BYTES = 2**23
INVARIANT_ROWS = 1, 16, 256, 4096  # numbers of rows for which threads of invariant rows are compared
MOST_CROWDED = 1024  # threads of a multiprocessor that the compiler need find registers for
SMS, BANDWIDTH = 132, 4800  # of an H200, for which rows are cut
LAUNCH_US, TRIP_US = (
    1.0,
    0.65,
)  # there: of a launch, and of a trip to memory, within which few rows are done whoever has them


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
    """Neighbours in a load or a store; `anchor` and `loose`: see rows/row_elements.py."""

    width: int
    anchor: int
    loose: tuple[bool, ...]


class _MovingRows(NamedTuple):
    """A tensor that moves along the columns, and where its rows begin: strides of the rows, and the offset of the first."""

    tensor: TensorDesc
    starts: Shape

    def aligned(self, width: int) -> bool:
        return self.tensor.alignment >= min(VECTOR, width * self.tensor.dtype.itemsize)

    def fits(self, width: int) -> bool:
        """Whether all of its rows begin at multiples of so many elements."""
        return self.aligned(width) and not any(s % width for s in self.starts)


def _moving_rows(region: RegionSpec) -> dict[int, _MovingRows]:
    """Of each load and then each store, by number, those that move along the columns."""
    program, at = program_of(region), walked(region)
    found: dict[int, _MovingRows] = {}
    for n, (load, steps) in enumerate(zip(program.loads, at.loads)):
        if n in program.moves and load.operand is not None:
            found[n] = _MovingRows(region.operands[load.operand], (*steps[:-1], load.offset))
    for n, (store, steps) in enumerate(zip(program.stores, at.stores), len(program.loads)):
        if store.slot in program.moves:
            found[n] = _MovingRows(region.results[store.position], (*steps[:-1], 0))
    return found


def _widest(moving: dict[int, _MovingRows]) -> int:
    return max([each.tensor.dtype.itemsize for each in moving.values()], default=4)


def cut_by_length(region: RegionSpec) -> Cut:
    """Neighbours by the length of a row and the element types alone: 16 bytes of the widest type, or fewer where the length is no multiple of
    these. A tensor whose rows begin elsewhere is loaded and stored element by element, in the same order."""
    program, moving = program_of(region), _moving_rows(region)
    width = VECTOR // _widest(moving)
    while width > 1 and program.length % width:
        width //= 2
    count = len(program.loads) + len(program.stores)
    return Cut(width, -1, tuple(n in moving and not moving[n].fits(width) for n in range(count)))


def is_cut_by_length(region: RegionSpec) -> bool:
    """Whether cut_of is cut_by_length for every number of rows: all tensors have vectors, of 8 bytes at least, or the rows are invariant."""
    cut = cut_by_length(region)
    vectors = cut.width * _widest(_moving_rows(region)) >= VECTOR // 2
    return region.invariant or (vectors and not any(cut.loose))


@functools.lru_cache(maxsize=1024)
def cut_of(region: RegionSpec) -> Cut:
    """16 bytes of the widest type where all rows begin at multiples of them, or fewer where they do so at fewer; if most of what is moved
    lies alike, its rows are cut where such multiples begin. What lies otherwise then, such as a vector along all rows, is loaded element by
    element: so that these are neighbours for neighbouring threads, a run is 4 bytes. Invariant rows are cut by their length."""
    if region.invariant:
        return cut_by_length(region)
    program, moving = program_of(region), _moving_rows(region)
    count, size = len(program.loads) + len(program.stores), _widest(moving)
    width = VECTOR // size
    while width > 1 and (program.length % width or not all(each.fits(width) for each in moving.values())):
        width //= 2
    even = Cut(width, -1, (False,) * count)
    if width * size >= VECTOR // 2 or not moving:
        return even
    return max(even, _uneven(moving, size, count, program.length), key=lambda c: c.width)


def _uneven(moving: dict[int, _MovingRows], size: int, count: int, length: int) -> Cut:
    """With runs that begin where what is most lies at multiples of the width."""
    width = VECTOR // size
    while width > 1:
        alike: dict[Shape, list[int]] = {}
        for n, each in moving.items():
            if each.aligned(width):
                alike.setdefault(tuple(s % width for s in each.starts), []).append(n)
        if not alike or length < 2 * width:
            width //= 2
            continue
        main = max(alike.values(), key=lambda some: sum(moving[n].tensor.nbytes for n in some))
        if len(main) < len(moving) and width * moving[main[0]].tensor.dtype.itemsize > 4:
            width //= 2
            continue
        return Cut(width, main[0], tuple(n in moving and n not in main for n in range(count)))
    return Cut(1, -1, (False,) * count)


class RowTile(NamedTuple):
    """Threads of a row in a block and of the block, blocks that share a row, runs of neighbours that each thread has at once, and the first of
    these that are inside of every row; and words of registers that all of them take."""

    lanes: int
    block: int
    cluster: int
    cut: Cut
    chunks: int
    whole: int
    words: int

    def bound(self, late: bool, arch: tuple[int, int]) -> int:
        """Blocks for which the compiler has to find registers on a multiprocessor: a thread takes up to 48 besides its words, more for what is
        loaded late, and where halves are rounded by many instructions."""
        registers = self.words + 48 + 8 * (self.cluster > 1) + 12 * late + 16 * (arch < (8, 0))
        return max(1, min(2048, 65536 // registers, MOST_CROWDED) // self.block)

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that find room on a multiprocessor, as a thread mostly takes 44 registers besides."""
        return max(1, min(2048, 65536 // (-(-(self.words + 44) // 8) * 8)) // self.block)

    def blocks(self, rows: int) -> int:
        return cdiv(rows * self.lanes, self.block) * self.cluster


class Pace(NamedTuple):
    """What a block takes, fitted to suite `rows` on an H200: times of 106 tiles of resident rows to 14 %, of 77 of streamed ones to 19 %.

    begin     microseconds of each, beside all else
    tree      and for each pass; cluster_sync: if blocks of a cluster synchronize
    threads   for each thread; word: for each of the words that a thread has
    share     of the bandwidth, if nothing else takes time
    element   instructions of a thread for each element and pass
    brings    GB/s of a multiprocessor
    """

    begin: float
    tree: float
    cluster_sync: float
    threads: float
    word: float
    share: float
    element: float
    brings: float


RESIDENT_PACE = Pace(0.0, 0.05, 0.44, 0.002, 0.019, 0.732, 3.8, 139.0)
STREAMED = Pace(1.6, 0.2, 0.54, 0.0, 0.015, 0.62, 2.9, 52.0)
SINGLE = 2.0  # times as many for an element that is loaded alone
LANES_RATE = 128 * 1.7e3  # elements' instructions of a multiprocessor in a microsecond


def times(
    region: RegionSpec,
    tile: RowTile,
    pace: Pace,
    sms: int = SMS,
    bandwidth: float = BANDWIDTH,
    rows: int | None = None,
) -> tuple[float, float, float]:
    """(of memory alone, of all blocks in turns, and of that, of meeting in clusters), in microseconds; of so many rows, if they are not the
    region's."""
    program = program_of(region)
    count, nbytes = (program.count, region.nbytes) if rows is None else (rows, rows * _row_bytes(region))
    blocks, passes = max(1, tile.blocks(count)), len(program.passes)
    waves = blocks / (sms * tile.blocks_per_sm)
    turns = math.ceil(waves) if waves < 3 else waves + 0.3
    beside = min(tile.blocks_per_sm, max(1.0, blocks / sms))
    work = (
        count
        * program.length
        / blocks
        * passes
        * pace.element
        * (SINGLE if tile.cut.width == 1 or (tile.cut.anchor < 0 and any(tile.cut.loose)) else 1.0)
        / LANES_RATE
    )
    loaded = nbytes / blocks / pace.brings * 1e-3
    cluster_sync = pace.cluster_sync * passes if tile.cluster > 1 else 0.0
    each = (
        pace.begin
        + pace.word * tile.words
        + pace.tree * passes
        + cluster_sync
        + pace.threads * tile.block * math.sqrt(beside)
        + beside * (work + loaded)
    )
    return nbytes / (bandwidth * pace.share) * 1e-3, turns * each, turns * cluster_sync


def _row_bytes(region: RegionSpec) -> int:
    """Of a row in what moves along the columns and is not shared."""
    program, loads = program_of(region), _shared_by_rows(region)
    own = [each.tensor for n, each in _moving_rows(region).items() if n >= len(loads) or not loads[n]]
    return program.length * sum(t.dtype.itemsize for t in own)


def _shared_by_rows(region: RegionSpec) -> tuple[bool, ...]:
    """Of each load, whether rows share it, such as a norm's weight: an operand behind the first with fewer axes, or with one. The strides of one
    row don't say it, and a vector is a row as well."""
    axes = max(2, len(region.operands[0].shape))
    operands = [0 if load.operand is None else load.operand for load in program_of(region).loads]
    return tuple([n > 0 and len(region.operands[n].shape) < axes for n in operands])


def together(*us: float) -> float:
    """Of what goes on beside each other: a little more than the longest takes."""
    longest = max(1e-9, *us)
    return longest * math.fsum([(x / longest) ** 6 for x in us]) ** (1 / 6)


@functools.lru_cache(maxsize=1024)
def shared_loads(region: RegionSpec) -> tuple[bool, ...]:
    """Of each load, whether it moves and is the same for all rows, such as a norm's weight, and these are so many that it comes from a cache:
    where they are few it would be one more trip to memory."""
    program, at = program_of(region), walked(region)
    return tuple(
        [n in program.moves and load.operand is not None and region.nbytes >= MANY_BYTES and program.count > 1 and not any(steps[:-1])
         for n, (load, steps) in enumerate(zip(program.loads, at.loads))]
    )  # fmt: skip


def _run_words(region: RegionSpec, width: int, left_out: tuple[bool, ...] = ()) -> int:
    """Registers for a run of all operands that move, but those left out."""
    program = program_of(region)
    sizes = [
        load.dtype.itemsize
        for n, load in enumerate(program.loads)
        if n in program.moves and load.operand is not None and not (left_out and left_out[n])
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


def _tile(region: RegionSpec, cut: Cut, lanes: int, cluster: int) -> RowTile:
    most, least = _runs(region, cut)
    chunks = max(1, cdiv(most, lanes * cluster))
    return RowTile(
        lanes, max(lanes, BLOCK), cluster, cut, chunks, min(chunks, least // (lanes * cluster)),
        chunks * _run_words(region, cut.width, shared_loads(region)),
    )  # fmt: skip


def _best(region: RegionSpec, tiles: list[RowTile], pace: Pace) -> RowTile | None:
    return min(tiles, key=lambda tile: together(*times(region, tile, pace)[:2]), default=None)


@functools.lru_cache(maxsize=1024)
def resident_tile(region: RegionSpec, clusters: tuple[int, ...] = (1,)) -> RowTile | None:
    """The best of those that hold a row in registers of a block or of part of it, or of a cluster; None if none can."""
    cut, found = cut_of(region), []
    if region.invariant:
        return _by_length(region, cut, clusters)
    for cluster in clusters:
        for lanes in LANES:
            if (lanes < BLOCK and cluster > 1) or (cut.anchor >= 0 and lanes * cluster < 2 * cut.width):
                continue  # a row's ends need an element of each of so many threads
            tile = _tile(region, cut, lanes, cluster)
            if tile.words <= MOST_WORDS:
                found.append(tile)
                if tile.chunks == 1:  # more would have nothing to do
                    break
    return _best(region, found, RESIDENT_PACE)


def _by_length(region: RegionSpec, cut: Cut, clusters: tuple[int, ...]) -> RowTile | None:
    """The threads whose greatest ratio to the best number for each of INVARIANT_ROWS is least, with all loads as if they were vectors: neither
    the region's number of rows nor their addresses matter."""
    most, least = _run_words(region, cut.width), _run_words(region, cut.width, _shared_by_rows(region))
    tiles = [
        _tile(region, cut._replace(loose=()), n, c) for c in clusters for n in LANES if n >= BLOCK or c == 1
    ]
    found = [tile for tile in tiles if tile.chunks * most <= MOST_WORDS]
    greatest = [0.0] * len(found)
    for rows in INVARIANT_ROWS:
        words = least if rows * _row_bytes(region) >= MANY_BYTES else most
        resident = [tile._replace(words=tile.chunks * words) for tile in found]
        us = [
            LAUNCH_US + max(TRIP_US, together(*times(region, tile, RESIDENT_PACE, rows=rows)[:2]))
            for tile in resident
        ]
        greatest = [max(ratio, each / min(us)) for ratio, each in zip(greatest, us)]
    if not found:
        return None
    best = found[greatest.index(min(greatest))]
    return _tile(region, cut, best.lanes, best.cluster)


def clustered(region: RegionSpec) -> RowTile | None:
    return resident_tile(region, CLUSTERS)


@functools.lru_cache(maxsize=1024)
def streamed(region: RegionSpec, clusters: bool) -> RowTile:
    """Some words of each thread at once, one after another; several blocks have a row where rows are few."""
    cut = cut_of(region)
    words = _run_words(region, cut.width)
    chunks = max(1, STREAMED_WORDS // words)
    some = [
        RowTile(MOST_LANES, MOST_LANES, c, cut, chunks, 0, chunks * words) for c in (1, *CLUSTERS * clusters)
    ]
    best = _best(region, some, STREAMED)
    assert best is not None
    return best


def serial(region: RegionSpec) -> RowTile:
    """A thread for a row."""
    program = program_of(region)
    cut = Cut(1, -1, (False,) * (len(program.loads) + len(program.stores)))
    return RowTile(1, BLOCK, 1, cut, 1, 0, _run_words(region, 1))
