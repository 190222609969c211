"""Variants for regions over rows: softmax, norms and whatever else is maps and reductions along the same axes."""

from __future__ import annotations

from dataclasses import replace

from ..device.spec import DeviceSpec
from ..registry.cost import L2_PER_SM, TRIP_US, Cost, one_launch, roofline
from ..registry.program import Shape
from ..registry.row_program import Pass, read_rows
from ..registry.variant import Arg, Checks, In, Launch, Num, Out, Reject, at_least, at_most, cdiv, variant
from ..rows import RegionSpec
from ..types import bf16, f16, f32, i32, i64
from .elementwise import GRID, MAX_POINTERS, MAX_RANK
from .row_tiles import (
    BLOCK,
    MOST_BLOCKS,
    MOST_LANES,
    Tile,
    clustered,
    held,
    program_of,
    serial,
    shaped,
    shared_loads,
    streamed,
    walked,
)

KINDS, TAKES = ("map", "reduce", "rows"), ("rows",)
# By suite `rows` on an H200: of the bandwidth with 16 bytes in a load, and with an element; of the f32 rate by the ops' declared flops
MEMORY_EFFICIENCY, SINGLE_EFFICIENCY, EFFICIENCY, FAST_EFFICIENCY = 0.88, 0.7, 0.25, 0.4
MAX_PASSES = 8  # each makes anew what it reads: of sixteen ptxas has a minute's work
TREE_US = 0.15  # of a pass: shuffles, a barrier, and what every thread does again for its row
HALVES, CLUSTERS = (f16, bf16), "sm_90"
CLUSTER_US = 0.35  # for blocks of a cluster to meet, in a pass
ALONE = 0.6  # of a multiprocessor's time that its only block loads or stores: with more, some do while others compute


def _checks(region: RegionSpec) -> Checks:
    program = read_rows(region)
    if isinstance(program, Reject):
        yield program
        return
    if region.strict and len(region.ops) > 1:
        yield Reject("strict", "values between the reductions are kept wider than they are stored")
    yield at_most("passes", len(program.passes), MAX_PASSES)
    yield at_most("columns", program.length, 2**31 - 1)
    for reduce in (reduce for step in program.passes for reduce in step.reduces):
        if reduce.dtype.kind != "float":
            yield Reject("dtype", f"{reduce.how} is over {reduce.dtype}, needs floats")
    yield at_most("loads and results", len(program.loads) + len(program.stores), MAX_POINTERS)
    at = shaped(region)
    if isinstance(at, Reject):
        yield at
        return
    yield at_most("rank of the rows", len(at.shape), MAX_RANK)


def _neighbours(region: RegionSpec) -> Checks:
    """What moves along the columns goes from one element to the next."""
    program, at = program_of(region), walked(region)
    named = [(f"operand {load.operand}", steps[-1]) for load, steps in zip(program.loads, at.loads)]
    named += [(f"result {store.position}", steps[-1]) for store, steps in zip(program.stores, at.stores)]
    for what, step in named:
        if step not in (0, 1):
            yield Reject("stride", f"{what} has stride {step} along the columns, needs 0 or 1")


def _fast(region: RegionSpec) -> bool:
    """Whether functions need be no more exact than halves are."""
    return all(t.dtype in HALVES for t in region.results)


def _cost(region: RegionSpec, device: DeviceSpec, tile: Tile, bytes: int, trips: int) -> Cost:
    """The roofline, beside Little's law: what is on its way to multiprocessors comes within a trip; and an L2 cache gives each so much."""
    program = program_of(region)
    blocks = cdiv(program.count * tile.lanes, tile.block) * tile.cluster
    under_way = min(blocks, device.sms * tile.resident)
    alone = ALONE if tile.resident == 1 else 1.0
    share = MEMORY_EFFICIENCY if tile.cut.width > 1 else SINGLE_EFFICIENCY
    reached = min(
        device.bandwidth * share, min(under_way, device.sms) * L2_PER_SM, under_way * tile.block * tile.words * 4 * alone / TRIP_US * 1e-3
    )  # fmt: skip
    cost = roofline(
        device, bytes=bytes, flops=program.flops * program.count * program.length,
        efficiency=FAST_EFFICIENCY if _fast(region) else EFFICIENCY, memory_efficiency=max(reached, 1.0) / device.bandwidth,
        blocks=blocks, blocks_per_sm=tile.resident, chain=TREE_US * len(program.passes) + TRIP_US * trips,
    )  # fmt: skip
    terms = dict(cost.terms)
    if "memory" in terms:
        least = bytes / (device.bandwidth * share) * 1e-3
        terms |= {"memory": least, "bytes in flight": terms["memory"] - least}
    if tile.cluster > 1:
        terms["cluster"] = CLUSTER_US * len(program.passes)
    return Cost(terms)


def _launch(region: RegionSpec, tile: Tile, held: bool) -> list[Launch]:
    from .bodies.index import walk_of
    from .bodies.rows import Rows, rows

    program, at, cut = program_of(region), walked(region), tile.cut
    if not program.count:
        return []
    ins = tuple(None if load.operand is None else load.dtype for load in program.loads)
    outs = tuple((s.slot, program.dtypes[s.slot], s.slot in program.moves) for s in program.stores)
    steps = walk_of(tuple(walk[-1] for walk in (*at.loads, *at.stores)))
    r = Rows(
        ins, tuple(n in program.moves for n in range(len(ins))), outs, program.before,
        tuple(map(_rounded_by_store, program.passes)), program.kept, program.dtypes, tile.lanes, tile.block, tile.cluster, cut.width,
        tile.chunks, held, tile.whole, steps, cut.anchor, cut.loose,
        shared_loads(region) if held else (False,) * len(ins), _fast(region),
    )  # fmt: skip
    walks = tuple((walk_of(walk[:-1]), load.offset) for walk, load in zip(at.loads, program.loads))
    places = tuple((walk_of(walk[:-1]), 0) for walk in at.stores)
    narrow = program.count < 2**31
    how = "_".join(q.how for step in program.passes for q in step.reduces)
    lanes = f"{tile.cluster}x{tile.lanes}" if tile.cluster > 1 else f"{tile.lanes}"
    name = f"rows{lanes}x{tile.chunks * cut.width}{'' if held else '_streamed'}_{how}"
    alongs = tuple(Num(walk[-1]) for walk in (*at.loads, *at.stores) if walk[-1] not in (0, 1))
    args: tuple[Arg, ...] = (
        tuple(In(load.operand) for load in program.loads if load.operand is not None),
        tuple(Out(s.position) for s in program.stores), tuple(Num(d, i32 if narrow else i64) for d in at.shape),
        _given(at.loads), _given(at.stores), alongs, Num(program.count), Num(program.length, i32), Num(program.length, f32),
    )  # fmt: skip
    body = rows(r, walks, places, len(at.shape), narrow, tile.resident, name)
    blocks = cdiv(program.count * tile.lanes, tile.block) * tile.cluster
    return [Launch(body, (blocks,), (tile.block,), args, cluster=tile.cluster)]


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


def _tiled(region: RegionSpec, tile: Tile | None, where: str) -> Checks:
    """That a row finds room."""
    program = program_of(region)
    yield at_least("columns", program.length, 1)
    if tile is None:
        yield Reject("columns", f"a row of {program.length} is too long for the registers of {where}")
    else:
        yield at_most("blocks", cdiv(program.count * tile.lanes, tile.block) * tile.cluster, GRID)


@variant(*KINDS, id="cuda.rows_held.v2", takes=TAKES)
class RowsHeld:
    """8 to 1024 threads of a block hold a row in registers and go over it once for each reduction, and once more for the results.

    Parallel over rows and along them. Bytes: each operand once, each result once; loads of 16 bytes where what lies alike is most
    of it, wherever rows begin. Statistics in f32, reduced in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield from _neighbours(region)
        yield from _tiled(region, held(region), f"{MOST_LANES} threads")

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        tile = held(region)
        assert tile is not None
        return _cost(region, device, tile, region.nbytes, 0)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        tile = held(region)
        assert tile is not None
        return _launch(region, tile, True)


@variant(*KINDS, id="cuda.rows_cluster.v1", takes=TAKES, needs=(CLUSTERS,))
class RowsCluster:
    """As rows_held, but 2 to 8 blocks of a cluster share a row, and write their totals into each other's shared memory: for few long rows, which
    would be on few multiprocessors, and for those that registers of one can't hold."""

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield from _neighbours(region)
        yield from _tiled(region, clustered(region), f"{MOST_BLOCKS} blocks of {MOST_LANES} threads")

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        tile = clustered(region)
        assert tile is not None
        return _cost(region, device, tile, region.nbytes, 0)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        tile = clustered(region)
        assert tile is not None
        return _launch(region, tile, True)


@variant(*KINDS, id="cuda.rows_streamed.v2", takes=TAKES)
class RowsStreamed:
    """A block for each row, of any length, which is read again for each pass: from the L2 cache, if all rows under way fit there. Where rows
    are few, a cluster of 2 to 8 blocks (sm_90).

    Parallel over rows and along them. Statistics in f32, reduced in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield from _neighbours(region)
        yield at_most("rows", program_of(region).count * MOST_BLOCKS, GRID)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        program, tile = program_of(region), _streamed(region, device)
        again = _read_again(region, device, max(1, 1024 // tile.block) / tile.cluster)
        steps = cdiv(program.length, tile.lanes * tile.cluster * tile.cut.width * tile.chunks) * len(
            program.passes
        )
        return _cost(region, device, tile, region.nbytes + again, steps)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _launch(region, _streamed(region, device), False)


def _streamed(region: RegionSpec, device: DeviceSpec) -> Tile:
    return streamed(region, device.missing(CLUSTERS) is None)


def _read_again(region: RegionSpec, device: DeviceSpec, per_sm: float) -> int:
    """Bytes that later passes read from memory, with so many rows under way on a multiprocessor."""
    program = program_of(region)
    moving = {
        load.operand
        for n, load in enumerate(program.loads)
        if n in program.moves and load.operand is not None
    }
    read = sum(region.operands[p].nbytes for p in moving)
    under_way = read * min(1.0, per_sm * device.sms / max(program.count, 1))
    return 0 if under_way < device.l2_bytes / 2 else read * (len(program.passes) - 1)


@variant(*KINDS, id="cuda.rows_serial.v2", takes=TAKES, priority=-1)
class RowsSerial:
    """A thread for each row, whose columns may lie anywhere: softmax over an axis that is not the last. Neighbouring threads have
    neighbouring rows, so that loads coalesce where the last axis is one of the rows'.

    Parallel over rows only. Statistics in f32, added up one after the other.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield at_most("blocks", cdiv(program_of(region).count, BLOCK), GRID)

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        program = program_of(region)
        again = _read_again(region, device, 1024)
        return _cost(
            region, device, serial(region), region.nbytes + again, program.length * len(program.passes)
        )

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _launch(region, serial(region), False)
