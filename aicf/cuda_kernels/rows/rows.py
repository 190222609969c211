"""Variants for regions over rows: softmax, norms and whatever else is maps and reductions along the same axes."""

from __future__ import annotations

import math
from dataclasses import replace

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import (
    Arg,
    Checks,
    In,
    Launch,
    Num,
    NumericClass,
    Out,
    Reject,
    at_least,
    at_most,
    cdiv,
    no_class,
    variant,
)
from ...rows import RegionSpec
from ...rows.program import Shape
from ...rows.row_program import Pass, read_rows
from ...types import bf16, f16, f32, i32, i64
from ..maps.elementwise import GRID, MAX_POINTERS, MAX_RANK
from .row_tiles import (
    BLOCK,
    LANES,
    MOST_BLOCKS,
    MOST_LANES,
    RESIDENT_PACE,
    STREAMED,
    Cut,
    Pace,
    RowTile,
    clustered,
    cut_of,
    is_cut_by_length,
    program_of,
    resident_tile,
    serial,
    shaped,
    shared_loads,
    streamed,
    times,
    together,
    walked,
)

KINDS, TAKES = ("map", "reduce", "rows"), ("rows",)
# Of the bandwidth with an element in a load; of the f32 rate by the ops' declared flops, with functions for f32 and for halves
SINGLE_EFFICIENCY, EFFICIENCY, FAST_EFFICIENCY = 0.7, 0.25, 0.4
MAX_PASSES = 8  # each makes anew what it reads: of sixteen ptxas has a minute's work
TREE_US = 0.15  # of a pass: shuffles, a barrier, and what every thread does again for its row
HALVES, NEEDED = (f16, bf16), "sm_90"


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
    program, steps = program_of(region), _steps(region)
    names = [f"operand {load.operand}" for load in program.loads]
    names += [f"result {store.position}" for store in program.stores]
    for what, step in zip(names, steps):
        if step is not None and step != 1:
            yield Reject("stride", f"{what} has stride {step} along the columns, needs 1")


def _steps(region: RegionSpec) -> tuple[int | None, ...]:
    """Of each load and then each store the stride along the columns, None where it does not move along them. The stride is 0 where
    an operand repeats one element; of a single column it is 1."""
    program, at = program_of(region), walked(region)
    moves = [n in program.moves for n in range(len(program.loads))]
    moves += [store.slot in program.moves for store in program.stores]
    strides = [walk[-1] if program.length > 1 else 1 for walk in (*at.loads, *at.stores)]
    return tuple(stride if moving else None for stride, moving in zip(strides, moves))


def _fast(region: RegionSpec) -> bool:
    """Whether functions need be no more exact than halves are."""
    return all(t.dtype in HALVES for t in region.results)


def _cost(region: RegionSpec, device: DeviceSpec, tile: RowTile, pace: Pace) -> Cost:
    """Memory's time, and what blocks take in turns beyond it: see row_tiles."""
    program = program_of(region)
    memory, turns, cluster_sync = times(region, tile, pace, device.sms, device.bandwidth)
    rate = device.tflops.get("f32", 0.0) * (FAST_EFFICIENCY if _fast(region) else EFFICIENCY) * 1e6
    compute = program.flops * program.count * program.length / rate if rate else math.inf
    whole = together(memory, turns, compute)
    if compute > max(memory, turns):
        terms = {"compute": compute, "turns of blocks": whole - compute}
    else:
        cluster = min(cluster_sync, whole - memory)
        terms = {"memory": memory, "turns of blocks": whole - memory - cluster, "cluster": cluster}
    terms["latency"] = (
        machine(device).trip_us - whole
    )  # nothing is done before the first trip to memory is over
    return Cost({"launch": device.launch_us, **{name: us for name, us in terms.items() if us > 0}})


def _launch(region: RegionSpec, device: DeviceSpec, tile: RowTile, resident: bool) -> list[Launch]:
    from ..tiles.index import GIVEN, walk_of
    from .rows_body import Rows, rows

    program, at, cut = program_of(region), walked(region), tile.cut
    if not program.count:
        return []
    ins = tuple(None if load.operand is None else load.dtype for load in program.loads)
    outs = tuple((s.slot, program.dtypes[s.slot], s.slot in program.moves) for s in program.stores)
    strides = _steps(region)
    steps = tuple(0 if s is None else 1 if s == 1 else GIVEN for s in strides)
    late = shared_loads(region) if resident else (False,) * len(ins)
    r = Rows(
        ins, tuple(n in program.moves for n in range(len(ins))), outs, program.before,
        tuple(map(_rounded_by_store, program.passes)), program.kept, program.dtypes, tile.lanes, tile.block, tile.cluster, cut.width,
        tile.chunks, resident, tile.whole, steps, cut.anchor, cut.loose,
        late, _fast(region),
    )  # fmt: skip
    walks = tuple((walk_of(walk[:-1]), load.offset) for walk, load in zip(at.loads, program.loads))
    places = tuple((walk_of(walk[:-1]), 0) for walk in at.stores)
    narrow = program.count < 2**31
    how = "_".join(q.how for step in program.passes for q in step.reduces)
    lanes = f"{tile.cluster}x{tile.lanes}" if tile.cluster > 1 else f"{tile.lanes}"
    name = f"rows{lanes}x{tile.chunks * cut.width}{'' if resident else '_streamed'}_{how}"
    alongs = tuple(Num(stride) for stride in strides if stride not in (None, 1))
    args: tuple[Arg, ...] = (
        tuple(In(load.operand) for load in program.loads if load.operand is not None),
        tuple(Out(s.position) for s in program.stores), tuple(Num(d, i32 if narrow else i64) for d in at.shape),
        _given(at.loads), _given(at.stores), alongs, Num(program.count), Num(program.length, i32), Num(program.length, f32),
    )  # fmt: skip
    body = rows(r, walks, places, len(at.shape), narrow, tile.bound(any(late), device.arch), name)
    return [Launch(body, (tile.blocks(program.count),), (tile.block,), args, cluster=tile.cluster)]


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


def _tiled(region: RegionSpec, tile: RowTile | None, where: str) -> Checks:
    """That a row finds room."""
    program = program_of(region)
    yield at_least("columns", program.length, 1)
    if tile is None:
        yield Reject("columns", f"a row of {program.length} is too long for the registers of {where}")
    else:
        yield at_most("blocks", tile.blocks(program.count), GRID)


# --- what decides the bits of a row -------------------------------------------------------------------------------------

BY_ADDRESS = no_class(
    "rows may begin anywhere in memory: which elements a load has depends on the row's index"
)
BY_COUNT = no_class("how many threads have a row is chosen by time, from the number of rows")
BY_CLUSTERS = no_class("how many blocks have a row is chosen by time, from the number of rows")


def _row_class(
    region: RegionSpec, cut: Cut, lanes: int, cluster: int = 1, again: bool = False
) -> NumericClass | Reject:
    """Runs of a row go to its threads in turn; each adds up its own, and a tree adds up those of the threads. `again`: a row is read for each pass."""
    if lanes > 1 and not is_cut_by_length(region):
        return BY_ADDRESS
    threads = f"{cluster} x {lanes}" if cluster > 1 else f"{lanes}"
    dealt = f"by {threads} threads, {cut.width} neighbours each" if lanes > 1 else "in order"
    return NumericClass("rows in f32", program_of(region).length, dealt + ", read again" * again)


@variant(*KINDS, id="cuda.rows_resident.v2", takes=TAKES)
class RowsHeld:
    """8 to 512 threads of a block hold a row in registers and go over it once for each reduction, and once more for the results.

    Parallel over rows and along them. Bytes: each operand once, each result once; loads of 16 bytes where what lies alike is most
    of it, wherever rows begin. Statistics in f32, reduced in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield from _neighbours(region)
        yield from _tiled(region, resident_tile(region), f"{MOST_LANES} threads")

    least = one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        cut, tile = cut_of(region), resident_tile(region)
        if region.invariant and tile is not None:
            return _row_class(region, cut, tile.lanes)
        if is_cut_by_length(region) and cdiv(program_of(region).length, cut.width) > LANES[0]:
            return BY_COUNT  # of shorter rows a thread has one run at most, and more threads would have nothing to do
        return _row_class(region, cut, LANES[0])

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        tile = resident_tile(region)
        assert tile is not None
        return _cost(region, device, tile, RESIDENT_PACE)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        tile = resident_tile(region)
        assert tile is not None
        return _launch(region, device, tile, True)


@variant(*KINDS, id="cuda.rows_cluster.v1", takes=TAKES, needs=(NEEDED,))
class RowsCluster:
    """As rows_resident, but 2 to 8 blocks of a cluster share a row, and write their totals into each other's shared memory: for few long rows, which
    would be on few multiprocessors, and for those that registers of one can't hold."""

    def accepts(region: RegionSpec) -> Checks:
        yield from _checks(region)
        yield from _neighbours(region)
        yield from _tiled(region, clustered(region), f"{MOST_BLOCKS} blocks of {MOST_LANES} threads")

    least = one_launch

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        tile = clustered(region)
        if not region.invariant or tile is None:
            return BY_CLUSTERS
        return _row_class(region, tile.cut, tile.lanes, tile.cluster)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        tile = clustered(region)
        assert tile is not None
        return _cost(region, device, tile, RESIDENT_PACE)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        tile = clustered(region)
        assert tile is not None
        return _launch(region, device, tile, True)


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

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        one_block = region.invariant or device.missing(NEEDED)
        return _row_class(region, cut_of(region), MOST_LANES, again=True) if one_block else BY_CLUSTERS

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _cost(region, device, _streamed(region, device), STREAMED)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _launch(region, device, _streamed(region, device), False)


def _streamed(region: RegionSpec, device: DeviceSpec) -> RowTile:
    return streamed(region, device.missing(NEEDED) is None and not region.invariant)


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

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        return _row_class(region, serial(region).cut, 1)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        program = program_of(region)
        again = _read_again(region, device, 1024)
        return roofline(
            device, bytes=region.nbytes + again, flops=program.flops * program.count * program.length, efficiency=EFFICIENCY,
            memory_efficiency=SINGLE_EFFICIENCY, blocks=cdiv(program.count, BLOCK), blocks_per_sm=1024 // BLOCK,
            chain=(TREE_US + machine(device).trip_us * program.length) * len(program.passes),
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return _launch(region, device, serial(region), False)
