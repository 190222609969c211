"""The variant of scatter_add that sorts the indices first, for many of them and large results."""

from __future__ import annotations

from typing import NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, early_us, machine, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, Work, at_least, at_most, cdiv, variant
from ...rows import RegionSpec
from ...types import DType, bool_, i32
from ..maps.elementwise import THREADS, VECTOR
from .indexing import ScatterProblem, checked, problem_of
from .labels import op_operands

BITS, DIGITS = 8, 256  # of a pass of the sort
TILE, MOST_TILES = 1024, 128  # keys of a block, at least; each block reads the counts of all tiles
CLEARED = 16 * THREADS  # flags of a block
MOST_CHUNKS, LEAST_CHUNK, WALKERS = 2048, 8, 2**16  # of the sorted order; threads that add it up
FILLED = 2**17  # bytes of the result that a block fills with zeros
FILLED_FLOPS = 13  # whose time a result takes: 131 million of bf16 in 116 us, on an H200 and an H100
COLUMNS = 128  # of a block that joins partial sums
NEAR = 4  # loads under way at once
STEP_US = (
    0.25  # of a block, to find the places of 256 keys among them: two barriers, 32 loads from shared memory
)


class _Sort(NamedTuple):
    tile: int
    tiles: int
    passes: int


class _Sums(NamedTuple):
    """`width` columns of a thread; chunks of the sorted order; blocks that add, and that fill, so many rows each."""

    width: int
    chunk: int
    chunks: int
    summing: int
    filled: int
    filling: int


def _sort(p: ScatterProblem) -> _Sort:
    tile = TILE * cdiv(p.many, TILE * MOST_TILES)
    return _Sort(tile, cdiv(p.many, tile), cdiv(p.size.bit_length(), BITS))


def _width(region: RegionSpec, p: ScatterProblem) -> int:
    """Neighbours in a load or a store: up to 16 bytes of floats."""
    tensors = op_operands(region)[0], region.results[0]
    size = tensors[0].dtype.itemsize
    width = VECTOR // size if tensors[0].dtype.kind == "float" else 1
    while width > 1 and (p.inner % width or any(t.alignment < width * size for t in tensors)):
        width //= 2
    return width


def _sums(region: RegionSpec, p: ScatterProblem) -> _Sums:
    width = _width(region, p)
    vectors, rows = p.inner // width, p.outer * p.size
    wanted = max(LEAST_CHUNK, cdiv(p.many * vectors * p.outer, WALKERS), cdiv(p.many, MOST_CHUNKS))
    chunk = NEAR * cdiv(wanted, NEAR)
    chunks = cdiv(p.many, chunk)
    filled = max(1, FILLED // (p.inner * op_operands(region)[0].dtype.itemsize))
    return _Sums(width, chunk, chunks, cdiv(p.outer * chunks * vectors, THREADS), filled, cdiv(rows, filled))


class _SortScratch(NamedTuple):
    """The workspace: keys and positions, twice, counts, flags, partial sums."""

    keys: tuple[Work, Work]
    positions: tuple[Work, Work]
    counts: Work
    flags: Work
    partial: Work
    nbytes: int


def _scratch(region: RegionSpec, p: ScatterProblem) -> _SortScratch:
    made, at = [], 0
    compute = op_operands(region)[0].dtype.compute
    sizes: list[tuple[int, DType]] = [(p.many, i32)] * 4
    sizes += [
        (_sort(p).tiles * DIGITS, i32),
        (p.size, bool_),
        (2 * p.outer * _sums(region, p).chunks * p.inner, compute),
    ]
    for count, dtype in sizes:
        made.append(Work(at, dtype))
        at += 256 * cdiv(count * dtype.itemsize, 256)
    a, b, c, d, counts, flags, partial = made
    return _SortScratch((a, b), (c, d), counts, flags, partial, at)


@variant("scatter_add", id="cuda.scatter_add_sorted.v1")
class ScatterAddSorted:
    """Indices are sorted with their positions, by a stable radix sort; then equal chunks of the sorted order are added up, whatever rows
    they are for, and of rows that several chunks have, partial sums in order. No atomics but of counts, so equal calls give equal
    bits. Any number type; halves in f32.

    Parallel over indices and columns. Bytes: updates and result once; the indices some 6 times a pass, from L2. Limit: launches, two
    for each 8 bits of the result's size and two more; so it is for large results, and for many indices.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checked(region, False)
        p = problem_of(region)
        yield at_least("updates", op_operands(region)[0].numel, 1)
        yield at_least("rows", p.size, 1)
        yield at_most("indices", p.many, 2**30)
        yield at_most("rows", p.size, 2**30)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = problem_of(region)
        sort, sums = _sort(p), _sums(region, p)
        launches = 2 * sort.passes + 2
        keys = p.many * i32.itemsize
        total = roofline(
            device, bytes=region.nbytes, cached=sort.passes * (6 * keys + sort.tiles**2 * DIGITS * i32.itemsize),
            memory_efficiency=0.8, launches=launches, blocks=sums.summing,
            blocks_per_sm=2, chain=sums.chunk / NEAR * machine(device).trip_us,
        )  # fmt: skip
        filled = FILLED_FLOPS * p.outer * p.size * p.inner / (0.25e6 * device.tflops["f32"])
        total = total.plus(compute=max(0.0, filled - total.terms.get("memory", 0.0)))
        steps = sort.tile / THREADS
        count = (steps / NEAR - 1) * machine(device).trip_us
        move = steps * STEP_US + (steps + sort.tiles) / NEAR * machine(device).cache_trip_us + 1.0
        latency = 2 * machine(device).cache_trip_us - (launches - 1) * early_us(device)
        return total.plus(latency=latency).plus(**{"dependent steps": sort.passes * (count + move)})

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return _scratch(region, problem_of(region)).nbytes

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .sort_body import count_digits, move_by_digit
        from .sorted_sums_body import chunk_sums, join_sums

        p, work = problem_of(region), _scratch(region, problem_of(region))
        sort, sums = _sort(p), _sums(region, p)
        updates, indices = op_operands(region)
        source, given = (In(region.inputs.index(i)) for i in region.anchor.inputs)
        launches, many, size = list[Launch](), Num(p.many), Num(p.size)
        for number in range(sort.passes):
            kind, keys = (None, work.keys[number % 2]) if number else (indices.dtype, given)
            numbers = many, size, Num(BITS * number, i32), Num(sort.tile), Num(sort.tiles)
            blocks = sort.tiles if number else max(sort.tiles, min(cdiv(p.size, CLEARED), 2**16))
            counting = keys, work.counts, work.flags, *numbers
            moving = (
                keys,
                work.positions[number % 2],
                work.counts,
                work.keys[1 - number % 2],
                work.positions[1 - number % 2],
            )
            launches += [
                Launch(count_digits(kind), (blocks,), (THREADS,), counting),
                Launch(move_by_digit(kind), (sort.tiles,), (THREADS,), (*moving, work.flags, *numbers)),
            ]
        keys, positions = work.keys[sort.passes % 2], work.positions[sort.passes % 2]
        sizes, chunks = (many, size, Num(p.inner)), (Num(sums.chunk), Num(sums.chunks))
        blocks, across = sums.summing + sums.filling, cdiv(p.inner, COLUMNS)
        tensors = source, keys, positions, work.flags, Out(0), work.partial
        parts = *chunks, Num(sums.summing), Num(sums.filled)
        joined = keys, work.partial, Out(0), *sizes, *chunks, Num(across)
        return [
            *launches,
            Launch(
                chunk_sums(updates.dtype, sums.width),
                (blocks,),
                (THREADS,),
                (*tensors, Num(p.outer), *sizes, *parts),
            ),
            Launch(join_sums(updates.dtype), (p.outer * sums.chunks * across,), (THREADS,), joined),
        ]
