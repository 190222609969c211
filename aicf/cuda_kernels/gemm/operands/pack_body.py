"""Tensors copied to rows that begin at multiples of 16 bytes, as the tensor memory accelerator wants them.

Rows that are contiguous where they come from lie anywhere there: a thread reads the two aligned 16-byte units that what it writes
is in, and shifts them. Any other elements come one by one, along whichever axis is the faster one where they are, and change
places in shared memory. f32 may be split as it is copied: then a row has both terms one after the other.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....types import DType
from ...dsl import cuda, deferred, device, intrinsic, ir, types, uint32
from ...llvm import const, emit_call
from ...ptx import load_units
from ...ptx.mma import split
from ...tiles.index import Walk, coordinates, offsets

THREADS = 256
UNIT = 16  # bytes, that a thread writes at once
UNITS = 4  # that a thread has on their way, of rows
ROW_WORDS = 32  # of a tile of elements: 128 bytes of each of its rows
TILE_ROWS = 64
PITCH = ROW_WORDS + 1  # words from row to row of a tile: a column of them lies in banks of its own
TILE_WORDS = TILE_ROWS * PITCH


@dataclass(frozen=True)
class Way:
    """How one tensor is copied.

    how    rows: neighbours in a row are neighbours where they come from. Else elements come one by one, of which neighbours along
           a row ("along") or from row to row ("across") lie closer together
    outer  how the axes before a row's are walked; before the last two's, if elements come one by one
    hi_lo  what a row of the target has one after the other, if it is not the row itself: of f32 what TF32 holds (0), or what
           that leaves (1), each filled up with zeros to whole units
    """

    dtype: DType
    how: str
    outer: Walk
    hi_lo: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """Of a tile."""
        return 4 * ROW_WORDS // self.dtype.itemsize

    def __str__(self) -> str:
        return f"_{self.how}{len(self.outer[0])}_{self.dtype}" + "".join(map(str, self.hi_lo))


@functools.cache
def pack(ways: tuple[Way, ...]) -> Callable[..., None]:
    """`kernel(jobs, blocks)`: a job for each of one or two ways, of which the first has so many blocks.

    A job is (source, target, shape, strides, sizes): 32-bit words of the target; extents of the outer axes, and those strides
    that the walk leaves open, in elements; of `sizes` see the copies below.
    """
    copies = tuple(_rows(way) if way.how == "rows" else _tiles(way) for way in ways)
    first, last = copies[0], copies[-1]

    def one(jobs, blocks):
        first(uint32(cuda.blockIdx.x), jobs[0])

    def two(jobs, blocks):
        block = uint32(cuda.blockIdx.x)
        if block < blocks:
            first(block, jobs[0])
        else:
            last(uint32(block - blocks), jobs[1])

    kernel = one if len(ways) == 1 else two
    kernel.__name__ = "pack" + "".join(map(str, ways))
    return kernel


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(way: Way) -> Any:
    """`copy(block, job)`: four units of 16 bytes by each thread, of rows one after the other.

    sizes   units of a row or of each of its terms, units from row to row of the target, units in all but for terms, bytes from
            the source's first to its last element, elements of a row
    """
    at, of, itemsize = coordinates(len(way.outer[0]), True), offsets((way.outer,)), way.dtype.itemsize
    elements = UNIT // itemsize

    def place(i, env):
        unit, shape, strides, units, apart, count, columns = env
        unit = np.uint32(unit + np.uint32(i * THREADS))
        if unit >= count:
            return np.int64(0), np.int64(-1), np.int64(0)
        row = np.uint32(unit // units)
        along = np.int64(unit - row * units)
        start = of(at(row, shape), strides)[0]
        to = np.int64(row) * apart + along
        return start * itemsize + along * UNIT, to, columns - along * elements

    move = copy_units(UNITS, itemsize, place, way.hi_lo)

    def copy(block, job):
        source, target, shape, strides, sizes = job
        units, apart, count, nbytes, columns = sizes
        first = uint32(block * uint32(THREADS * UNITS) + uint32(cuda.threadIdx.x))
        env = first, shape, strides, uint32(units), apart, uint32(count), np.int64(columns)
        move(source, nbytes, target, np.int64(units), env)

    return device(copy)


@deferred
def copy_units(count: int, itemsize: int, place: Callable[..., Any], hi_lo: tuple[int, ...]) -> Any:
    """`copy(source, nbytes, target, beside, env)`: `count` units of 16 bytes, all of them on their way before the first one is
    written; or `hi_lo` of them, `beside` units from each other.

    place(i, env)  (byte of the source that unit i begins at, unit of the target; -1: none; elements from there to the row's
                   end), a tuple of i64
    nbytes         from the source's first element to its last, at least 31: nothing outside is read
    """

    @intrinsic
    def copy(typing, source, nbytes, target, beside, env):
        def codegen(ctx, b, sig, args):
            wide, three = ir.IntType(64), types.UniTuple(types.int64, 3)
            begin = b.ptrtoint(args[0], wide)
            end, down = b.add(begin, args[1]), const(-UNIT, 64)
            # the first and the last aligned unit that are inside as a whole
            low = b.and_(b.add(begin, const(UNIT - 1, 64)), down)
            high = b.sub(b.and_(end, down), const(UNIT, 64))
            units = []
            for i in range(count):
                made = emit_call(ctx, b, place, three, [types.int32, env], [const(i), args[4]])
                at = b.add(begin, b.extract_value(made, 0))
                first, last = b.and_(at, down), b.and_(b.add(at, const(UNIT - 1, 64)), down)
                inside = b.and_(b.icmp_unsigned(">=", first, low), b.icmp_unsigned("<=", last, high))
                words = [w for x in (first, last) for w in _load_unit(b, b.select(inside, x, low))]
                units.append((*(b.extract_value(made, part) for part in (1, 2)), at, inside, words))
            for to, left, at, inside, words in units:
                with b.if_then(b.icmp_signed(">=", to, const(0, 64))):
                    with b.if_else(inside) as (whole, ragged):
                        with whole:
                            shifted, near = _shifted(b, at, words, itemsize), b.basic_block
                        with ragged:
                            single, far = _one_by_one(b, at, begin, end, itemsize), b.basic_block
                    merged = []
                    for x, y in zip(shifted, single):
                        merged.append(b.phi(ir.IntType(32)))
                        merged[-1].add_incoming(x, near)
                        merged[-1].add_incoming(y, far)
                    if hi_lo:  # what lies behind a row is another one's
                        ends = [b.icmp_signed("<", const(word, 64), left) for word in range(4)]
                        merged = [b.select(there, x, const(0)) for there, x in zip(ends, merged)]
                    _store_hi_lo(b, hi_lo, merged, args[2], to, args[3])
            return ctx.get_dummy_value()

        return types.void(source, types.int64, target, types.int64, env), codegen

    return copy


def _clamp(b: Any, x: Any, low: Any, high: Any) -> Any:
    x = b.select(b.icmp_unsigned("<", x, low), low, x)
    return b.select(b.icmp_unsigned(">", x, high), high, x)


def _load_unit(b: Any, address: Any) -> list[Any]:
    vector = ir.VectorType(ir.IntType(32), 4)
    raw = b.load(b.inttoptr(address, vector.as_pointer(1)), align=UNIT)
    return [b.extract_element(raw, const(i)) for i in range(4)]


def _store_hi_lo(
    b: Any, hi_lo: tuple[int, ...], words: list[Any], target: Any, unit: Any, beside: Any
) -> None:
    """The unit itself, or terms of its numbers."""
    split_words = list(zip(*(split(b, word) for word in words))) if hi_lo else [words]
    for which in hi_lo or (0,):
        _store_unit(b, split_words[which], target, unit)
        unit = b.add(unit, beside)


def _store_unit(b: Any, words: Sequence[Any], target: Any, unit: Any) -> None:
    vector = ir.VectorType(ir.IntType(32), 4)
    raw = vector(ir.Undefined)
    for i, word in enumerate(words):
        raw = b.insert_element(raw, word, const(i))
    at = b.gep(target, [b.shl(unit, const(2, 64))])
    b.store(raw, b.bitcast(at, vector.as_pointer()), align=UNIT)


def _shifted(b: Any, at: Any, words: list[Any], itemsize: int) -> list[Any]:
    """The 16 bytes from `at` on, of the two units that they are in."""
    for words_off in (2, 1):  # 8 words, of which 6 remain, then 5
        moved = b.icmp_signed("!=", b.and_(at, const(4 * words_off, 64)), const(0, 64))
        words = [b.select(moved, y, x) for x, y in zip(words, words[words_off:])]
    if itemsize == 4:
        return words[:4]
    wide = ir.IntType(64)
    bits = b.shl(b.and_(at, const(3, 64)), const(3, 64))
    pairs = [
        b.or_(b.zext(x, wide), b.shl(b.zext(y, wide), const(32, 64))) for x, y in itertools.pairwise(words)
    ]
    return [b.trunc(b.lshr(pair, bits), ir.IntType(32)) for pair in pairs]


def _one_by_one(b: Any, at: Any, begin: Any, end: Any, itemsize: int) -> list[Any]:
    """The same at an end of the source: of its own elements, and any of them where there is none."""
    kind, last, words = ir.IntType(8 * itemsize), b.sub(end, const(itemsize, 64)), []
    for word in range(4):
        total = const(0)
        for part in range(4 // itemsize):
            address = _clamp(b, b.add(at, const(4 * word + part * itemsize, 64)), begin, last)
            value = b.load(b.inttoptr(address, kind.as_pointer(1)), align=itemsize)
            value = value if itemsize == 4 else b.zext(value, ir.IntType(32))
            total = b.or_(total, b.shl(value, const(8 * itemsize * part)))
        words.append(total)
    return words


# --- elements ---------------------------------------------------------------------------------------------------------


def _tiles(way: Way) -> Any:
    """`copy(block, job)`: a tile of 64 rows and 128 bytes of each.

    sizes   rows, columns, tiles across a matrix, tiles down it, units from row to row of the target; elements from row to row and from
            column to column of the source
    """
    across, columns = way.how == "across", way.columns
    itemsize, count = way.dtype.itemsize, way.columns * TILE_ROWS // THREADS
    lanes = TILE_ROWS if across else columns
    lines = THREADS // lanes  # rows, or columns, that a block loads at once
    elements = 4 // itemsize
    at, of = coordinates(len(way.outer[0]), True), offsets((way.outer,))

    def span(env):
        start, row, column, rows, columns, row_step, column_step = env
        first = start + row * row_step + column * column_step
        if across:
            return first, column_step, np.int64(row < rows), np.int64(columns - column)
        return first, row_step, np.int64(column < columns), np.int64(rows - row)

    load = load_units(count, lines, span)
    keep = keep_elements(count, lines if across else lines * PITCH * elements)
    send = send_unit(way.hi_lo)

    def copy(block, job):
        tile = cuda.shared.array(TILE_WORDS, uint32)
        source, target, shape, strides, sizes = job
        rows, wide, tiles_across, tiles_down, apart, row_step, column_step = sizes
        thread = np.int32(cuda.threadIdx.x)
        line = uint32(block // uint32(tiles_across))
        column0 = np.int32(block - line * uint32(tiles_across)) * np.int32(columns)
        matrix = uint32(line // uint32(tiles_down))
        row0 = np.int32(line - matrix * uint32(tiles_down)) * np.int32(TILE_ROWS)
        lane, of_lines = thread % lanes, thread // lanes
        row, column = (lane, of_lines) if across else (of_lines, lane)
        start = of(at(matrix, shape), strides)[0]
        staged = load(
            source, uint32(0), (start, row0 + row, column0 + column, rows, wide, row_step, column_step)
        )
        keep(tile, np.int32(row * (PITCH * elements) + column), staged)
        cuda.syncthreads()
        for part in range(ROW_WORDS * TILE_ROWS // 4 // THREADS):
            at_unit = np.int32(thread + part * THREADS)
            row, unit = at_unit // (ROW_WORDS // 4), at_unit % (ROW_WORDS // 4)
            if row0 + row < rows and column0 + unit * (4 * elements) < wide:
                to = (np.int64(matrix) * rows + row0 + row) * apart
                to += (column0 + unit * (4 * elements)) // (4 * elements)
                beside = (wide + np.int32(4 * elements - 1)) // np.int32(4 * elements)
                send(tile, np.int32(row * PITCH + unit * 4), target, np.int64(to), np.int64(beside))

    return device(copy)


@deferred
def keep_elements(count: int, apart: int) -> Any:
    """`keep(words, at, values)`: element i of a tuple to element at + i * apart of a shared array of words."""

    @intrinsic
    def keep(typing, words, at, values):
        def codegen(ctx, b, sig, args):
            data = ctx.make_array(words)(ctx, b, args[0]).data
            kind = b.extract_value(args[2], 0).type
            first = b.gep(b.bitcast(data, kind.as_pointer(data.type.addrspace)), [args[1]])
            for i in range(count):
                b.store(b.extract_value(args[2], i), b.gep(first, [const(i * apart)]))
            return ctx.get_dummy_value()

        return types.void(words, types.int32, values), codegen

    return keep


@deferred
def send_unit(hi_lo: tuple[int, ...]) -> Any:
    """`send(words, at, target, unit, beside)`: four neighbours of a shared array of words, as one store to a unit of the target;
    or `hi_lo` of them, `beside` units from each other."""

    @intrinsic
    def send(typing, words, at, target, unit, beside):
        def codegen(ctx, b, sig, args):
            data = ctx.make_array(words)(ctx, b, args[0]).data
            values = [b.load(b.gep(data, [b.add(args[1], const(i))])) for i in range(4)]
            _store_hi_lo(b, hi_lo, values, args[2], args[3], args[4])
            return ctx.get_dummy_value()

        return types.void(words, types.int32, target, types.int64, types.int64), codegen

    return send
