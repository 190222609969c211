"""Variants for regions over rows: softmax, norms and whatever else is maps and reductions along the same axes."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

from ..device.spec import DeviceSpec
from ..registry.cost import TRIP_US, Cost, one_launch, roofline
from ..registry.program import Shape, collapse
from ..registry.row_program import Pass, RowProgram, read_rows
from ..registry.variant import Arg, Checks, In, Launch, Num, Out, Reject, at_least, at_most, cdiv, variant
from ..rows import RegionSpec
from ..types import f32, i32, i64
from .elementwise import GRID, MAX_POINTERS, MAX_RANK, VECTOR

KINDS, TAKES = ("map", "reduce", "rows"), ("rows",)
NUMBERS, MOST_NUMBERS = (
    32,
    64,
)  # of a row that a thread has: more blocks find room for fewer, and more would spill
MOST_LANES = 512  # threads of a row: with more, registers are short
STREAMED = 2  # runs that a thread reads at once of a row that registers can't hold
BLOCK = 128
MEMORY_EFFICIENCY, SINGLE_EFFICIENCY, EFFICIENCY = 0.88, 0.7, 0.25
TREE_US = 0.15  # of a pass: shuffles, a barrier, and what every thread does again for its row


class Shaped(NamedTuple):
    """Rows as a kernel walks them: sizes of the rows' axes, merged; strides over them, and last along the columns."""

    shape: Shape
    loads: tuple[Shape, ...]
    stores: tuple[Shape, ...]


@functools.lru_cache(maxsize=1024)
def _shaped(region: RegionSpec) -> Shaped | Reject:
    program = _program(region)
    rows, count = len(program.rows), len(program.loads)
    strides = [*(load.strides for load in program.loads), *(store.strides for store in program.stores)]
    columns, along = collapse(program.columns, [s[rows:] for s in strides])
    shape, across = collapse(program.rows, [s[:rows] for s in strides])
    if len(columns) > 1:
        return Reject("access", f"columns {program.columns} are no one axis in all tensors")
    whole = [(*steps, step) for steps, (step,) in zip(across, along)]
    return Shaped(shape, tuple(whole[:count]), tuple(whole[count:]))


def _program(region: RegionSpec) -> RowProgram:
    """Of a region that can be read."""
    program = read_rows(region)
    assert isinstance(program, RowProgram)
    return program


def _walked(region: RegionSpec) -> Shaped:
    shaped = _shaped(region)
    assert isinstance(shaped, Shaped)
    return shaped


def _checks(region: RegionSpec) -> Checks:
    program = read_rows(region)
    if isinstance(program, Reject):
        yield program
        return
    if region.strict and len(region.ops) > 1:
        yield Reject("strict", "values between the reductions are kept wider than they are stored")
    yield at_most("columns", program.length, 2**31 - 1)
    for reduce in (reduce for step in program.passes for reduce in step.reduces):
        if reduce.dtype.kind != "float":
            yield Reject("dtype", f"{reduce.how} is over {reduce.dtype}, needs floats")
    yield at_most("loads and results", len(program.loads) + len(program.stores), MAX_POINTERS)
    shaped = _shaped(region)
    if isinstance(shaped, Reject):
        yield shaped
        return
    yield at_most("rank of the rows", len(shaped.shape), MAX_RANK)


def _neighbours(region: RegionSpec) -> Checks:
    """What moves along the columns goes from one element to the next."""
    program, shaped = _program(region), _walked(region)
    named = [(f"operand {load.operand}", steps[-1]) for load, steps in zip(program.loads, shaped.loads)]
    named += [(f"result {store.position}", steps[-1]) for store, steps in zip(program.stores, shaped.stores)]
    for what, step in named:
        if step not in (0, 1):
            yield Reject("stride", f"{what} has stride {step} along the columns, needs 0 or 1")


def _wide(region: RegionSpec) -> int:
    """Neighbours in a load: 16 bytes of the widest type, or 1 where something lies otherwise."""
    program, shaped = _program(region), _walked(region)
    moving = [
        (region.operands[load.operand], (*steps[:-1], load.offset))
        for n, (load, steps) in enumerate(zip(program.loads, shaped.loads))
        if n in program.moves and load.operand is not None
    ]
    moving += [
        (region.results[store.position], steps[:-1])
        for store, steps in zip(program.stores, shaped.stores)
        if store.slot in program.moves
    ]
    width = VECTOR // max([t.dtype.itemsize for t, _ in moving], default=4)
    if program.length % width or any(s % width for _, steps in moving for s in steps):
        return 1
    return width if all(t.alignment >= min(VECTOR, width * t.dtype.itemsize) for t, _ in moving) else 1


class Tile(NamedTuple):
    """Threads of a row and of a block, neighbours in a load, and runs of them that each thread has at once."""

    lanes: int
    block: int
    width: int
    chunks: int


def _held(region: RegionSpec) -> Tile | None:
    """The fewest threads that hold a row; None if registers can't."""
    program, width = _program(region), _wide(region)
    runs, loads = (
        cdiv(program.length, width),
        max(1, len({n for n in range(len(program.loads)) if n in program.moves})),
    )
    lanes = 8
    while lanes < min(MOST_LANES, runs) and cdiv(runs, lanes) * width * loads > NUMBERS:
        lanes *= 2
    chunks = cdiv(runs, lanes)
    return Tile(lanes, max(lanes, BLOCK), width, chunks) if chunks * width * loads <= MOST_NUMBERS else None


def _cost(region: RegionSpec, device: DeviceSpec, tile: Tile, bytes: int, trips: int) -> Cost:
    program = _program(region)
    return roofline(
        device, bytes=bytes, flops=program.flops * program.count * program.length, efficiency=EFFICIENCY,
        memory_efficiency=MEMORY_EFFICIENCY if tile.width > 1 else SINGLE_EFFICIENCY,
        blocks=cdiv(program.count * tile.lanes, tile.block), blocks_per_sm=max(1, 1024 // tile.block),
        chain=TREE_US * len(program.passes) + TRIP_US * trips,
    )  # fmt: skip


def _launch(region: RegionSpec, tile: Tile, held: bool) -> list[Launch]:
    from .bodies.index import walk_of
    from .bodies.rows import Rows, rows

    program, shaped = _program(region), _walked(region)
    if not program.count:
        return []
    ins = tuple(None if load.operand is None else load.dtype for load in program.loads)
    outs = tuple((s.slot, program.dtypes[s.slot], s.slot in program.moves) for s in program.stores)
    steps = walk_of(tuple(walk[-1] for walk in (*shaped.loads, *shaped.stores)))
    whole = tile.lanes * tile.width * tile.chunks
    r = Rows(
        ins, tuple(n in program.moves for n in range(len(ins))), outs, program.before,
        tuple(map(_rounded_by_store, program.passes)), program.kept, program.dtypes, tile.lanes, tile.block, tile.width,
        tile.chunks, held, not held or program.length % whole != 0, steps,
    )  # fmt: skip
    walks = tuple((walk_of(walk[:-1]), load.offset) for walk, load in zip(shaped.loads, program.loads))
    places = tuple((walk_of(walk[:-1]), 0) for walk in shaped.stores)
    narrow = program.count < 2**31
    how = "_".join(q.how for step in program.passes for q in step.reduces)
    name = f"rows{tile.lanes}x{tile.chunks * tile.width}{'' if held else '_streamed'}_{how}"
    alongs = tuple(Num(walk[-1]) for walk in (*shaped.loads, *shaped.stores) if walk[-1] not in (0, 1))
    args: tuple[Arg, ...] = (
        tuple(In(load.operand) for load in program.loads if load.operand is not None),
        tuple(Out(s.position) for s in program.stores), tuple(Num(d, i32 if narrow else i64) for d in shaped.shape),
        _given(shaped.loads), _given(shaped.stores), alongs, Num(program.count), Num(program.length, i32), Num(program.length, f32),
    )  # fmt: skip
    body = rows(r, walks, places, len(shaped.shape), narrow, name)
    return [Launch(body, (cdiv(program.count * tile.lanes, tile.block),), (tile.block,), args)]


def _rounded_by_store(step: Pass) -> Pass:
    """Without the rounding of what is stored and nothing else is done with: the store rounds it."""
    expression = step.each.expression
    read = {slot for _, arguments, _ in expression.steps for slot in arguments}
    read.update(expression.results[: len(step.reduces)])
    return replace(
        step, each=replace(step.each, expression=replace(expression, rounded=expression.rounded & read))
    )


def _given(strides: tuple[Shape, ...]) -> tuple[Num, ...]:
    return tuple(Num(s) for steps in strides for s in steps[:-1] if s not in (0, 1))


@variant(*KINDS, id="cuda.rows_held.v1", takes=TAKES)
class RowsHeld:
    """8 to 512 threads hold a row in registers and go over it once for each reduction, and once more for the results.

    Parallel over rows and along them. Bytes: each operand once, each result once; loads of 16 bytes where columns and places
    allow. Statistics in f32, reduced in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield from _neighbours(region)
        program, tile = _program(region), _held(region)
        yield at_least("columns", program.length, 1)
        if tile is None:
            yield Reject(
                "columns", f"a row of {program.length} is too long for the registers of {MOST_LANES} threads"
            )
        else:
            yield at_most("blocks", cdiv(program.count * tile.lanes, tile.block), GRID)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        tile = _held(region)
        assert tile is not None
        return _cost(region, device, tile, region.nbytes, 0)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        tile = _held(region)
        assert tile is not None
        return _launch(region, tile, True)


@variant(*KINDS, id="cuda.rows_streamed.v1", takes=TAKES)
class RowsStreamed:
    """A block for each row, of any length, which is read again for each pass: from the L2 cache, if all rows under way fit there.

    Parallel over rows and along them. Statistics in f32, reduced in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield from _neighbours(region)
        yield at_most("rows", _program(region).count, GRID)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        program, tile = _program(region), Tile(MOST_LANES, MOST_LANES, _wide(region), STREAMED)
        again = _read_again(region, device, 2)
        steps = cdiv(program.length, tile.lanes * tile.width * tile.chunks) * len(program.passes)
        return _cost(region, device, tile, region.nbytes + again, steps)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _launch(region, Tile(MOST_LANES, MOST_LANES, _wide(region), STREAMED), False)


def _read_again(region: RegionSpec, device: DeviceSpec, per_sm: int) -> int:
    """Bytes that later passes read from memory, with so many rows under way on a multiprocessor."""
    program = _program(region)
    moving = {
        load.operand
        for n, load in enumerate(program.loads)
        if n in program.moves and load.operand is not None
    }
    read = sum(region.operands[p].nbytes for p in moving)
    under_way = read * min(1.0, per_sm * device.sms / max(program.count, 1))
    return 0 if under_way < device.l2_bytes / 2 else read * (len(program.passes) - 1)


@variant(*KINDS, id="cuda.rows_serial.v1", takes=TAKES, priority=-1)
class RowsSerial:
    """A thread for each row, whose columns may lie anywhere: softmax over an axis that is not the last. Neighbouring threads have
    neighbouring rows, so that loads coalesce where the last axis is one of the rows'.

    Parallel over rows only. Statistics in f32, added up one after the other.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield at_most("blocks", cdiv(_program(region).count, BLOCK), GRID)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        program, tile = _program(region), Tile(1, BLOCK, 1, 1)
        return _cost(
            region, device, tile, region.nbytes + _read_again(region, device, 1024), program.length * len(program.passes)
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _launch(region, Tile(1, BLOCK, 1, 1), False)
