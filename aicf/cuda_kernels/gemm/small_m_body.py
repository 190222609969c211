"""Matrix products with few rows or few columns: every line of the wide operand times the few lines of the small one, in f32.

A line runs along k: a row of a, or a column of b. The wide operand goes from memory straight to registers, each byte of it
once; the next loads are on their way while these are multiplied. The small one is loaded through shared memory, widened, for all
threads of a block. Each thread sums along its own part of k; then the block adds up, in an order that never changes. Sums are of
explicit fused multiply-adds, and end in the epilogue that all products share.

One to four lines whose operands both are along k need no shared memory: a line's k is shared by the warps of a team, each of which has all
its loads under way before it multiplies; the small operand comes from the cache, as each warp reads it. Lanes add up by shuffles, warps
of a team through shared memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import SIMULATED, cuda, device, float32
from ..tiles.register_tile import _joined, unrolled
from ..tiles.tile import each, multiply_runs, put_runs, raw_runs, runs, zeros
from .epilogue import Epilogue, finisher
from .small_m_tiling import OWN, WARP, Share, Staging, Teams

ALIGNMENT = None if SIMULATED else 16
LANES = tuple(1 << n for n in range(5))


@functools.cache
def gemv(
    wide_dtype: DType, small_dtype: DType, share: Share, staging: Staging, rows: bool, epilogue: Epilogue
) -> Callable[..., None]:  # fmt: skip
    """A block per share of lines, and of k if that is split among blocks.

    wide, small    element (line, k) is wide[line * wide_steps[0] + k * wide_steps[1]]
    sizes         lines of the wide operand, of the small one, k, and how much of k a block has, a multiple of its depth
    rows          the small operand's lines are rows of the result, not columns
    Where k is split, `epilogue` is that of the workspace, in which each split has its own results.
    """
    threads, lanes, few = share.threads, share.lanes, share.few
    tile_k, per_block, k_major, width = share.tile_k, share.mn_extent, share.k_major, share.width
    small_size, accumulators = few * tile_k, share.accumulators
    shared_size = max(2 * small_size, accumulators * threads)
    start = zeros(accumulators)

    load_wide = raw_runs(wide_dtype, share.loads, width, place(wide_step(share)))
    small_tile = SmallTile(share, staging)
    small_first, small_to, store_small = small_tile.first(), small_tile.to(), small_tile.store()
    load_small = runs(small_dtype, small_tile.loads, staging.width, place(small_tile.step()))
    # whether steps along k are one
    wide_neighbours, small_neighbours = k_major and width > 1, staging.width > 1
    multiply = multiply_runs(wide_dtype, share.loads, width, accumulators, *products(share))
    keep = partial_keeper(share, rows)
    write = writer(per_block, few, threads, rows, partial_adder(share), epilogue)

    def kernel(wide, small, operands, sizes, wide_steps, small_steps, scales):
        mn_extent, count, k, chunk = sizes
        shared = cuda.shared.array(shared_size, float32, ALIGNMENT)
        thread = np.int32(cuda.threadIdx.x)
        lane, group = thread % lanes, thread // lanes
        tiles = np.uint32(max(1, (mn_extent + per_block - 1) // per_block))
        block = np.uint32(cuda.blockIdx.x)
        split = np.int64(block // tiles)
        mn0 = np.int64(block % tiles) * per_block
        k0 = split * chunk
        if k_major:
            mn, along, get = mn0 + group * OWN, lane * width, lane * min(width, 4)
        else:
            mn, along, get = mn0 + lane * width, group * 1, group * few
        wide_mn, small_mn = wide_steps[0], small_steps[0]
        wide_k = np.int64(1) if wide_neighbours else wide_steps[1]
        small_k = np.int64(1) if small_neighbours else small_steps[1]
        at = mn * wide_mn + (k0 + along) * wide_k
        of, small_along = small_first(thread)
        small_at = of * small_mn + (k0 + small_along) * small_k
        put, brings = small_to(of, small_along), of < few and small_along < tile_k
        mn_left, small_left = np.int32(mn_extent - mn), np.int32(count - of)
        left = np.int32(min(np.int64(k) - k0, np.int64(chunk)))

        acc = start
        wide_next = load_wide(wide, (at, mn_left, np.int32(left - along), wide_mn, wide_k))
        small_next = load_small(
            small, (small_at, small_left, np.int32(left - small_along), small_mn, small_k)
        )
        buffer = np.int32(0)
        while left > 0:
            now = wide_next
            if brings:
                store_small(small_next, (shared, np.int32(buffer * small_size + put)))
            cuda.syncthreads()  # the K-tile is here, and nobody reads the other buffer any more
            left = np.int32(left - tile_k)
            at += tile_k * wide_k
            small_at += tile_k * small_k
            wide_next = load_wide(wide, (at, mn_left, np.int32(left - along), wide_mn, wide_k))
            small_next = load_small(
                small, (small_at, small_left, np.int32(left - small_along), small_mn, small_k)
            )
            acc = multiply(acc, now, shared, np.int32(buffer * small_size + get))
            buffer = np.int32(1 - buffer)

        cuda.syncthreads()
        keep(acc, (shared, thread))
        cuda.syncthreads()
        write(shared, thread, mn0, split, mn_extent, count, operands, scales)

    kernel.__name__ = f"gemv_{share}_{staging}_{'rows' if rows else 'columns'}{epilogue}"
    kernel.blocks_per_sm = share.resident
    return kernel


def place(step: Any) -> Any:
    """`place(i, env)`: where run i of a thread begins, `step(i)` lines and elements of k from its first; -1 outside."""

    def begin(i, env):
        at, mn_left, left, mn_step, k_step = env
        mn, along = step(i)
        if mn < mn_left and along < left:
            return at + mn * mn_step + along * k_step
        return np.int64(-1)

    return begin


def wide_step(share: Share) -> Any:
    """OWN lines and then further along k, or further along k only."""
    own, deep = (OWN, WARP * share.width) if share.k_major else (1, share.groups)
    return device(lambda i: (i % own, i // own * deep))


@dataclass(frozen=True)
class SmallTile:
    """A K-tile of the small operand on its way to shared memory: neighbouring threads load neighbours.

    It lies there as it is read: where lanes walk k, line by line in quads, those of a warp side by side; else along k.
    """

    share: Share
    staging: Staging

    @property
    def loads(self) -> int:
        return self.share.small_loads(self.staging)

    def first(self) -> Any:
        """`first(thread)`: line, and place along k, of its first run."""
        width, few, per = self.staging.width, self.share.few, self.share.tile_k // self.staging.width
        if self.staging.k_major:
            return device(lambda thread: (thread // per, thread % per * width))
        return device(lambda thread: (thread % few, thread // few))

    def step(self) -> Any:
        """`step(i)`: how far run i is from the first."""
        threads, width, few = self.share.threads, self.staging.width, self.share.few
        per = self.share.tile_k // width
        if not self.staging.k_major:
            return device(lambda i: (0, i * (threads // few)))
        if per <= threads:
            return device(lambda i: (i * (threads // per), 0))
        rounds = per // threads
        return device(lambda i: (i // rounds, i % rounds * (threads * width)))

    def to(self) -> Any:
        """`to(mn, along)`: its place in shared memory."""
        few, tile_k, eights, quads = self.share.few, self.share.tile_k, self.share.width == 8, 4 * WARP

        def in_quads(mn, along):
            if eights:
                within = along % (2 * quads)
                along += within % 8 // 4 * quads + within // 8 * 4 + within % 4 - within
            return mn * tile_k + along

        return device(in_quads if self.share.k_major else lambda mn, along: along * few + mn)

    def store(self) -> Any:
        """`store(tile, (shared, base))`: a thread's runs, the first of them to base. Steps between runs are whole eights, or
        within eights as they lie, so that places add up."""
        width, step, to = self.staging.width, self.step(), self.to()
        put = put_runs(1, width, 0, 1 if self.share.k_major else self.share.few)

        def store(i, run, env):
            shared, base = env
            mn, along = step(i // width)
            put(shared, np.int32(base + to(mn, along)), run)

        return each(self.loads * width, width, store)


def products(share: Share) -> tuple[int, Any]:
    """How wide reads of the K-tile are, and what each is multiplied with (see multiply_runs)."""
    few, width = share.few, share.width
    if not share.k_major:
        quad, reads = min(few, 4), []
        for u in range(share.unroll):
            for part in range(0, few, quad):
                products = [(v * few + part + e, u * width + v, e) for e in range(quad) for v in range(width)]
                reads.append((u * share.groups * few + part, tuple(products)))
        return quad, tuple(reads)
    quad, reads = min(width, 4), []
    for u in range(share.unroll):
        for h in range(0, width, quad):
            for s in range(few):
                begin = s * share.tile_k + (u * width + h) * WARP
                products = [
                    (r * few + s, (u * OWN + r) * width + h + e, e) for e in range(quad) for r in range(OWN)
                ]
                reads.append((begin, tuple(products)))
    return quad, tuple(reads)


def writer(per_block: int, few: int, threads: int, rows: bool, add: Any, epilogue: Epilogue) -> Any:
    """`write(shared, thread, mn0, split, mn_extent, count, operands, scales)`: the block's results of `per_block` lines and `few` small
    ones, of which `mn_extent` and `count` there are. Each is `add(shared, mn, of, i)` of what the threads keep, finished."""
    where, origin, finish = output(per_block, few, rows), origin_of(epilogue.split), finisher(epilogue)

    def write(shared, thread, mn0, split, mn_extent, count, operands, scales):
        m, n = (count, mn_extent) if rows else (mn_extent, count)
        where_to = operands + (origin(split, m),)
        result = thread
        while result < per_block * few:
            mn, of = where(result)
            total = add(shared, mn, of, result)
            mn += mn0
            if mn < mn_extent and of < count:
                if rows:
                    finish(of, mn, (total,), n, scales, where_to)
                else:
                    finish(mn, of, (total,), n, scales, where_to)
            result += threads

    return device(write)


def output(mn_extent: int, few: int, rows: bool) -> Any:
    """`where(i)`: line, and line of the small operand, of a block's result i, so that neighbouring threads write neighbours."""
    return (
        device(lambda i: (i % mn_extent, i // mn_extent)) if rows else device(lambda i: (i // few, i % few))
    )


def origin_of(split: bool) -> Any:
    """`origin(k_split, m)`: where a split's results begin."""
    return device((lambda k_split, m: (k_split * m, k_split)) if split else (lambda k_split, m: ()))


def partial_keeper(share: Share, rows: bool) -> Any:
    """`keep(acc, (shared, thread))`: each accumulator of a thread to shared memory, where `partial_adder` reads it.

    The partial sums of a result are stored in a ring that begins at the result's number in the block: then neighbouring threads read
    different banks, and each adds up its partial sums from the first to the last. So a row's bits do not depend on its index in the block.
    """
    few, threads, lanes, extent = share.few, share.threads, share.lanes, share.mn_extent
    width, last, k_major = share.width, share.partials - 1, share.k_major
    mn_step, of_step = (1, extent) if rows else (few, 1)

    def put(i, run, env):
        shared, thread = env
        if k_major:
            group, first = thread // WARP * WARP, thread // WARP * OWN + i // few
            at = group + ((thread + first * mn_step + i % few * of_step) & last)
        else:
            lane = thread % lanes
            ring = thread // lanes + (lane * width + i // few) * mn_step + i % few * of_step
            at = (ring & last) * lanes + lane
        shared[np.int32(i * threads + at)] = run[0]

    return each(share.accumulators, 1, put)


def partial_adder(share: Share) -> Any:
    """`add(shared, mn, of, number)`: the partial sums of the block's result `number`, from the first to the last."""
    few, threads, partials, lanes, width = share.few, share.threads, share.partials, share.lanes, share.width
    k_major = share.k_major

    def add(shared, mn, of, number):
        if k_major:
            first, apart = (mn % OWN * few + of) * threads + mn // OWN * WARP, 1
        else:
            first, apart = (mn % width * few + of) * threads + mn // width, lanes
        total = float32(0)
        for i in range(partials):
            total += shared[first + (i + number) % partials * apart]
        return total

    return device(add)


# --- by warps -----------------------------------------------------------------------------------------------------------


def line_loader(dtype: DType, lines: int, loads: int, width: int) -> Any:
    """`load(pointer, (line, along, left, k, apart))`: of `lines` lines, `apart` elements from each other, the runs of a lane; 0 where no
    line is left, or from k on."""

    def start(i, env):
        line, along, left, k, apart = env
        number, at = i // loads, along + i % loads * (WARP * width)
        return (line + number) * apart + at if number < left and at < k else np.int64(-1)

    return runs(dtype, lines * loads, width, start)


@functools.cache
def line_products(t: Teams) -> Any:
    """`add(acc, wide, small)`: acc of each line and each small one, and the products of their runs."""
    pairs = [(line, of) for line in range(t.lines) for of in range(t.few)]
    deep = t.loads * t.width

    def chain(e: int) -> Any:
        if e == deep:
            return device(lambda acc, wide, small: acc)
        picks = (
            tuple(range(len(pairs))),
            tuple(line * deep + e for line, _ in pairs),
            tuple(of * deep + e for _, of in pairs),
        )
        add, rest = unrolled(lambda s, x, y, env: s + x * y, picks, (), "float32"), chain(e + 1)
        return device(lambda acc, wide, small: rest(add((acc, wide, small), ()), wide, small))

    return chain(0)


@functools.cache
def gemv_warps(
    wide_dtype: DType, small_dtype: DType, t: Teams, rows: bool, epilogue: Epilogue
) -> Callable[..., None]:
    """A block for `t.mn_extent` lines. Element (line, k) of an operand lies at line * apart + k.

    sizes  lines of the wide operand, of the small one, and k, whole runs of both
    rows   the small operand's lines are rows of the result, not columns
    """
    few, lines, team, step, extent = t.few, t.lines, t.team, t.step, t.mn_extent
    threads, sums, whole = t.threads, t.lines * t.few, t.team * t.step
    room = threads // WARP * sums
    load_wide = line_loader(wide_dtype, lines, t.loads, t.width)
    load_small = line_loader(small_dtype, few, t.loads, t.width)
    multiply, join = line_products(t), _joined(sums, lambda x, y: x + y, LANES)
    start, width = zeros(sums), t.width

    def put(i, run, env):
        env[0][env[1] + i] = run[0]

    def add(shared, mn, of, i):
        at = mn // lines * (team * sums) + mn % lines * few + of
        total = shared[at]
        for part in range(1, team):
            total += shared[at + part * sums]
        return total

    keep, write = each(sums, 1, put), writer(extent, few, threads, rows, device(add), epilogue)

    def kernel(wide, small, operands, sizes, apart, scales):
        mn_extent, count, k = sizes
        shared = cuda.shared.array(room, float32)
        thread = np.int32(cuda.threadIdx.x)
        lane, warp = thread % WARP, thread // WARP
        first = np.int64(cuda.blockIdx.x) * extent
        line = first + warp // team * lines
        left, along = np.int32(min(mn_extent - line, lines)), np.int32(warp % team * step + lane * width)
        acc = start
        while along < k:
            part = load_wide(wide, (line, along, left, k, apart[0]))
            acc = multiply(acc, part, load_small(small, (np.int64(0), along, count, k, apart[1])))
            along = np.int32(along + whole)
        total = join(acc)
        if lane == 0:
            keep(total, (shared, warp * sums))
        cuda.syncthreads()
        write(shared, thread, first, np.int64(0), mn_extent, count, operands, scales)

    kernel.__name__ = f"gemv_warps_{wide_dtype}_{t}_{'rows' if rows else 'columns'}{epilogue}"
    kernel.blocks_per_sm = t.resident
    return kernel
