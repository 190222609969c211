"""Attention of few queries by mma.sync, in the order of operations of wgmma_body.py: a row has the same bits in both.

    S           16 rows x 128 keys: each of four warps computes those of 32 keys
    most        each warp's greatest scores go to the others by way of shared memory
    P           weights go to the others as halves: the first operand of the next product as it is in registers
    O += P V    each warp computes a quarter of the columns, of all 128 keys in order; S of the next tile comes meanwhile

Tiles of keys begin at multiples of 128, and the last one comes first. What a row has of a tile that is hidden from it is 0, and changes neither its
maximum nor its sums: so they are those of its own tiles alone. A thread's part of a row's sum is that of four n8 tiles; parts of four warps are added as the
tree of `fold_rows` adds those of a warp that has all 128 columns.

Keys and values come by cp.async: keys of `stages` tiles further on and values of one tile less are asked for when all warps have read those of this tile
and of the one before it: two barriers a tile. A copy of 16 bytes takes a warp 12 instructions, of 460 a tile of d = 64 with two thirds in
exchanges and products: four warps of their own copy where a block is alone on its multiprocessor, after the second barrier of a tile, so that none waits for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device, int32, uint32
from ..gemm.operands.stages import Fragments
from ..ptx import (
    approximate,
    commit_copies,
    larger,
    load_shared,
    load_shared_words,
    multiply_words_steps,
    store_shared_number,
    store_shared_words,
    wait_copies,
)
from ..tiles.element import putter, word_putter
from ..tiles.layout import Layout
from ..tiles.register_tile import fold_rows, join_rows, map_tile, pack, reduce_rows, zip_rows
from ..tiles.tile import each, raw_runs, zeros
from .few_tiles import KEYS, OWN, ROWS, FewForm, FewPlan
from .masks import hide_columns, sizes_here
from .mma_tiles import CHUNK, ROW_BYTES, THREADS, WARPS, StoredRows, shared_base, start_of
from .wgmma_body import LEAST, LN2, ONE, ZERO, _cap, _within

SCORES = Layout(ROWS, OWN)
VECTOR = 16 * 32  # bytes of a vector of each lane
LAST = max(column for _, column in SCORES.offsets)  # from a thread's first column


@functools.cache
def forward(form: FewForm) -> Callable[..., None]:
    """`kernel(q, k, v, lengths, out, lse, sizes, tiles, limits, scales, of_q, of_k, of_v, of_out)`.

    lengths  a pointer, or ()
    tiles    of rows, of a head of keys
    scales   see wgmma_body.py
    of_q …   elements from one row, head and batch entry to the next
    """
    dtype, stages, columns, copiers = form.dtype, form.stages, form.columns, form.copiers
    plan, kind, queries_tile, result = (
        FewPlan(form.d, form.dv, stages), dtype.name, Layout(ROWS, form.d), Layout(ROWS, columns)
    )  # fmt: skip
    product = multiply_words_steps(kind, plan.k.along(OWN // 16, form.d // 16), False)
    add = multiply_words_steps(kind, plan.v.down(columns // 16), True)
    copy_k, copy_v = rows_copier(plan.k, form), rows_copier(plan.v, form)
    k_lane, v_lane = plan.k.lane(False), columns_lane(plan.v, columns)
    load_q = row_loader(queries_tile, dtype)
    base_of, of_head, start, row_of = shared_base(), sizes_here(form.ragged), start_of(), place_of_row()
    tiles_of, limits_of = key_tiles(), row_limits()
    late = copiers and stages > 1
    commit, wait, wait_all = commit_copies(), wait_copies(stages - 1), wait_copies(0)
    ask, wait_next = asker(copy_k, copy_v, plan, stages), wait_copies(stages - 2 if late else stages - 1)
    exp2, log2, most_of = approximate("exp2"), approximate("log2"), larger()
    cap = map_tile(SCORES.count, _cap()) if form.capped else device(lambda s, env: s)
    hidden = hide_columns(SCORES, _within)
    peak, fold, join = (
        reduce_rows(SCORES, lambda x, y: most_of(x, y)), fold_rows(SCORES, lambda x, y: x + y), join_rows(SCORES, lambda x, y: x + y)
    )  # fmt: skip
    greatest = device(lambda x: most_of(most_of(x[0], x[1]), most_of(x[2], x[3])))
    tree = device(lambda x: (x[0] + x[1]) + (x[2] + x[3]))
    weigh = zip_rows(SCORES, lambda x, shift, env: exp2(x * env[0] + shift))
    scale, words_of = zip_rows(result, lambda x, factor, env: x * factor), pack(SCORES.count, dtype)
    store_words, store_number, read_four = store_shared_words(), store_shared_number(), load_shared()
    read_words, halves_of = weights_reader(2 * WARPS), pack(result.count, dtype)
    put_out, put = row_storer(result), putter(f32)
    no_scores, no_sums, no_words = (
        zeros(SCORES.count),
        zeros(result.count),
        (np.uint32(0),) * (queries_tile.count // 2),
    )
    peaks_at, parts_at, k_at, v_at = plan.peaks, plan.parts, plan.k_at, plan.v_at
    k_bytes, v_bytes, own_bytes = plan.k.nbytes, plan.v.nbytes, OWN * ROW_BYTES

    def kernel(q, k, v, lengths, out, lse, sizes, tiles, limits, scales, of_q, of_k, of_v, of_out):
        base, thread = base_of(), int32(cuda.threadIdx.x)
        computes = thread < THREADS if copiers else True
        copies = thread >= THREADS if copiers else True
        thread = int32(thread & (THREADS - 1))
        lane, warp = int32(thread & 31), int32(thread >> 5)
        head = int32(uint32(cuda.blockIdx.x) // uint32(tiles))
        first = int32((tiles - 1 - (int32(cuda.blockIdx.x) - head * tiles)) * ROWS)
        batch = int32(uint32(head) // uint32(sizes[2]))
        key_head = int32(head - batch * sizes[2])
        here, rows = of_head(sizes, lengths, head), int32(sizes[0] * sizes[3])
        low, count = tiles_of(first, rows, here, limits)
        top = int32((low + count - 1) * KEYS)
        from_k = start(batch, key_head, 0, of_k), here[7], sizes[5], of_k[0]
        from_v = start(batch, key_head, 0, of_v), here[7], sizes[6], of_v[0]
        to_k, to_v = uint32(base + uint32(k_at)), uint32(base + uint32(v_at))
        row = int32(first + (lane >> 2))
        member, query = row_of(row, rows, sizes)
        next_member, next_query = row_of(int32(row + 8), rows, sizes)
        heads = int32(key_head * sizes[3])
        head_of_row, next_head = int32(heads + member), int32(heads + next_member)
        column = int32((lane & 3) * 2)
        starts = start(batch, head_of_row, query, of_q), start(batch, next_head, next_query, of_q)
        words_of_row = no_words
        if computes:
            words_of_row = load_q(q, (starts[0] + column, starts[1] + column, int32(sizes[5] - column)))
        if copies:  # tile t of keys, and t - 1 of values, as a group
            for t in range(stages):
                key = int32(top - t * KEYS)
                if t < count:
                    copy_k(k, uint32(to_k + uint32(t * k_bytes)), thread, key, from_k)
                if t > 0 and t <= count:
                    copy_v(v, uint32(to_v + uint32((t - 1) * v_bytes)), thread, int32(key + KEYS), from_v)
                commit()
        own = int32(warp * OWN + column)
        low_key, end_key = limits_of(query, here, limits)
        next_low, next_end = limits_of(next_query, here, limits)
        k_get = uint32(to_k + uint32(warp * own_bytes) + k_lane(lane))
        v_get = uint32(to_v + v_lane(lane, warp))
        mine = uint32(base + uint32(lane) * uint32(16))
        put_words = uint32(mine + uint32(warp) * uint32(2 * VECTOR))
        of_row = uint32(base + uint32(peaks_at) + uint32(lane >> 2) * uint32(16))
        parts = uint32(mine + uint32(parts_at))
        of_warp, c = uint32(warp * 4), scales[0]
        scores, sums, most, total = no_scores, no_sums, (LEAST, LEAST), (ZERO, ZERO)
        stage = int32(0)
        if copies:
            wait()
        cuda.syncthreads()
        if computes and count > 0:
            scores = product(no_scores, words_of_row, k_get)
        for t in range(count):
            key, found = int32(top - t * KEYS), (ZERO, ZERO)
            following = int32(stage + 1 if stage + 1 < stages else 0)
            if computes:
                scores = cap(scores, scales)
                from_ = int32(key + own)
                lows = int32(low_key - from_), int32(next_low - from_)
                highs = int32(end_key - from_), int32(next_end - from_)
                if max(lows[0], lows[1]) > 0 or min(highs[0], highs[1]) <= LAST:
                    scores = hidden(scores, lows, highs)
                found = peak(scores)
                if lane & 3 == 0:
                    store_number(uint32(of_row + of_warp), found[0])
                    store_number(uint32(of_row + uint32(128) + of_warp), found[1])
            cuda.syncthreads()
            if copies and not late:
                ask((k, v), (to_k, to_v), thread, (t, count, stage, key), (from_k, from_v))
            shrink = found
            if computes:
                a, b = read_four(of_row), read_four(uint32(of_row + uint32(128)))
                found = most_of(greatest(a), most[0]), most_of(greatest(b), most[1])
                shrink = exp2((most[0] - found[0]) * c), exp2((most[1] - found[1]) * c)
                most = found
                scores = weigh(scores, (-(most[0] * c), -(most[1] * c)), (c,))
                part, words = fold(scores), words_of(scores)
                store_number(uint32(parts + of_warp), part[0])
                store_number(uint32(parts + uint32(VECTOR) + of_warp), part[1])
                store_words(put_words, words[0], words[1], words[2], words[3])
                store_words(uint32(put_words + uint32(VECTOR)), words[4], words[5], words[6], words[7])
            if copies:
                wait_next()
            cuda.syncthreads()
            if copies and late:
                ask((k, v), (to_k, to_v), thread, (t, count, stage, key), (from_k, from_v))
            if computes:
                a, b = read_four(parts), read_four(uint32(parts + uint32(VECTOR)))
                total = total[0] * shrink[0] + tree(a), total[1] * shrink[1] + tree(b)
                at = uint32(v_get + uint32(stage * v_bytes))
                sums = add(scale(sums, shrink, ()), read_words(mine), at)
                # after the last tile the product is of one that is there, for nothing
                stage_of_next = following if t + 1 < count else stage
                at = uint32(k_get + uint32(stage_of_next * k_bytes))
                scores = product(no_scores, words_of_row, at)
            stage = following
        if copies:
            wait_all()
        if computes:
            total = join(total)
            if warp == 0 and lane & 3 == 0:
                at_row = np.int64(head) * rows + row
                if row < rows:
                    put(lse, at_row, (most[0] * c + log2(total[0])) * LN2)
                if row + 8 < rows:
                    put(lse, at_row + 8, (most[1] * c + log2(total[1])) * LN2)
            over = ZERO if total[0] == ZERO else ONE / total[0], ZERO if total[1] == ZERO else ONE / total[1]
            column = int32(column + warp * columns)
            starts = start(batch, head_of_row, query, of_out), start(batch, next_head, next_query, of_out)
            exist = row < rows, row + 8 < rows
            put_out(halves_of(scale(sums, over, ())), (out, starts, exist, column, sizes[6]))

    kernel.__name__ = f"attention_few{form}"
    kernel.blocks_per_sm = form.blocks_per_sm
    return kernel


# --- rows ---------------------------------------------------------------------------------------------------------------


def place_of_row() -> Any:
    """`of(row, rows, sizes)`: a row's query head, of those that share the keys, and query; of one behind the last row the last one's."""

    def of(row, rows, sizes):
        one = uint32(min(row, int32(rows - 1)))
        member = uint32(one // uint32(sizes[0]))
        return int32(member), int32(one - member * uint32(sizes[0]))

    return device(of)


def row_limits() -> Any:
    """`of(query, here, limits)`: the first key that a query may attend to, and the one behind the last."""

    def of(query, here, limits):
        at = int32(query + here[1] - here[0])
        return int32(at - limits[1]), int32(min(int32(at + limits[0] + 1), here[7]))

    return device(of)


def key_tiles() -> Any:
    """`of(first, rows, here, limits)`: the first tile of keys that some of a block's rows attend to, and how many there are from there on, or none."""

    def of(first, rows, here, limits):
        last, queries = int32(min(first + ROWS, rows) - 1), uint32(here[0])
        member = uint32(uint32(first) // queries)
        low, high = int32(0), int32(queries - uint32(1))
        if member == uint32(last) // queries:
            low, high = int32(uint32(first) - member * queries), int32(uint32(last) - member * queries)
        offset = int32(here[1] - here[0])
        low = max(int32(low + offset - limits[1]), 0)
        high = min(int32(high + offset + limits[0]), int32(here[7] - 1))
        begin = int32(uint32(low) // uint32(KEYS))
        return begin, int32(int32(uint32(high) // uint32(KEYS)) - begin + 1 if high >= low else 0)

    return device(of)


def row_loader(layout: Layout, dtype: DType) -> Any:
    """`load(q, (start, start of the other, elements that are left))`: a thread's words of two rows, for products; 0 beyond. Nothing waits for them before
    they are multiplied."""
    place = layout.place()

    def begin(i, env):
        row, column = place(i * 2, 0, 0)
        return (env[1] if row > 0 else env[0]) + np.int64(column) if column < env[2] else np.int64(-1)

    return raw_runs(dtype, layout.count // 2, 2, begin)


def row_storer(layout: Layout) -> Any:
    """`put(words, (out, starts, whether there are such rows, column, dv))`: halves of a thread's two rows to memory."""
    place, put = layout.place(), word_putter()

    def put_one(i, word, env):
        row, column = place(i * 2, 0, 0)
        at, exists = (env[1][1], env[2][1]) if row > 0 else (env[1][0], env[2][0])
        if exists and column + env[3] < env[4]:
            put(env[0], (at + np.int64(column + env[3])) >> 1, word[0])

    return each(layout.count // 2, 1, put_one)


def rows_copier(tile: StoredRows, form: FewForm) -> Any:
    """`copy(pointer, to, thread, key, (start, keys that exist, columns, pitch))`: a tile's rows, from this key on, to shared address `to`."""
    load = tile.loader(form)

    def copy(pointer, to, thread, key, env):
        at = env[0] + np.int64(key) * env[3]
        load(pointer, to, thread, (at, int32(env[1] - key), env[2], env[3]))

    return device(copy)


def asker(copy_k: Any, copy_v: Any, plan: FewPlan, stages: int) -> Any:
    """`ask(pointers, rings, thread, (t, tiles, stage, key), from)`: in tile t, whose first key this is, for the keys and values to come, as one group."""
    k_bytes, v_bytes, commit = plan.k.nbytes, plan.v.nbytes, commit_copies()

    def ask(pointers, rings, thread, place, from_):
        t, count, stage, key = place
        if t + stages < count:
            to = uint32(rings[0] + uint32(stage * k_bytes))
            copy_k(pointers[0], to, thread, int32(key - stages * KEYS), from_[0])
        if t + stages - 1 < count:
            before = int32(stage - 1 if stage > 0 else stages - 1)
            to = uint32(rings[1] + uint32(before * v_bytes))
            copy_v(pointers[1], to, thread, int32(key - (stages - 1) * KEYS), from_[1])
        commit()

    return device(ask)


# --- weights and values -------------------------------------------------------------------------------------------------


def weights_reader(count: int, i: int = 0) -> Any:
    """`read(at)`: so many vectors of four words, one of each lane apart: a warp's 16 rows of weights."""
    load, apart = load_shared_words(), i * VECTOR

    def one(at):
        return load(uint32(at + uint32(apart)))

    if i + 1 == count:
        return device(one)
    first, others = device(one), weights_reader(count, i + 1)
    return device(lambda at: first(at) + others(at))


def columns_lane(tile: StoredRows, columns: int) -> Any:
    """`of(lane, warp)`: bytes to what a lane gives ldmatrix the address of, of the first 16 of a warp's columns of values."""
    stored, per, chunk_bytes = tile.by_rows, CHUNK // columns, tile.chunk_bytes
    place, offset = Fragments(stored, 1, False).lane(), stored.offset()

    def of(lane, warp):
        mn, k = place(lane)
        chunk = int32(uint32(warp) // uint32(per))
        return uint32(chunk * chunk_bytes + offset(int32(mn + (warp - chunk * per) * columns), k))

    return device(of)
