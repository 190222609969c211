"""Rows: any number of maps and reductions over the columns of a matrix, such as a softmax or a norm (rows/row_program.py).

`lanes` threads have a row, and so have those of the other blocks of their cluster. Each holds `chunks` runs of `width` neighbours of every operand, as they
lie in memory, and goes over them once for each pass; what a pass reduces goes through warp, block and cluster (row_totals.py). A row that
is too long for registers is read again for each pass (`resident` is false): the second time it is likely to come from a cache.

Where rows begin anywhere, as those of odd length do, each row's runs begin at its first multiple of the width in memory, and what
is left before and behind them goes element by element, an element for each of the first threads.

Limit: memory bandwidth. Reductions have a fixed shape, so results repeat bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dsl import cuda, device, int32, types
from ..tiles.index import Walk, coordinates, offsets
from .row_elements import Rows, beginner, bringer, combine, folder, functions, leaver, row_leaver, settler
from .row_totals import gather, joiner, words

__all__ = ["Rows", "rows"]


def _passes(r: Rows, p: int, fast: Any) -> Any:
    """`run(ins, outs, offsets, places, known, mine, ends, count, shared, thread, rank, lead)`: pass p and those after it.

    mine, ends  (the thread's first column, env, what registers have of it): of its runs, and of what is left at the ends of a row
    rank        of the block in its cluster; `lead`: this thread stores row values
    """
    row_leave, own = row_leaver(r, p), any(after == p - 1 for _, after in r.kept)
    if p == len(r.passes):

        def end(ins, outs, offsets, places, known, mine, ends, count, shared, thread, rank, lead):
            if own and lead:
                row_leave(outs, places, known)

        return device(end)
    begin = tuple(np.float32(combine(q.how)[1]) for q in r.passes[p].reduces)
    finish_pass, join, once, rest = (
        settler(r, p, fast),
        joiner(r, p),
        _over_row(r, p, fast),
        _passes(r, p + 1, fast),
    )

    def run(ins, outs, offsets, places, known, mine, ends, count, shared, thread, rank, lead):
        if own and lead:
            row_leave(outs, places, known)
        totals = once(begin, ins, outs, offsets, places, known, mine, ends)
        after = finish_pass(known, join(totals, shared, thread, rank), count)
        rest(ins, outs, offsets, places, after, mine, ends, count, shared, thread, rank, lead)

    return device(run)


def _over_row(r: Rows, p: int, fast: Any) -> Any:
    """`once(totals, ins, outs, offsets, places, known, mine, ends)`: the thread's part of pass p."""
    part = _over_runs(r, p, fast)
    if r.anchor < 0:
        return device(
            lambda totals, ins, outs, offsets, places, known, mine, ends: part(
                totals, ins, outs, offsets, places, known, mine
            )
        )
    at_ends = _over_runs(r.ends, p, fast)

    def both(totals, ins, outs, offsets, places, known, mine, ends):
        totals = part(totals, ins, outs, offsets, places, known, mine)
        return at_ends(totals, ins, outs, offsets, places, known, ends)

    return device(both)


def _over_runs(r: Rows, p: int, fast: Any) -> Any:
    step = r.passes[p]
    fold, leave = folder(r, p, fast), leaver(r, p, fast)

    def folds(totals, ins, outs, offsets, places, known, resident, first, env):
        return fold(totals, known, resident, ins, offsets, first, env)

    def leaves(totals, ins, outs, offsets, places, known, resident, first, env):
        leave(outs, places, known, resident, ins, offsets, first, env)
        return totals

    def both(totals, ins, outs, offsets, places, known, resident, first, env):
        leave(outs, places, known, resident, ins, offsets, first, env)
        return fold(totals, known, resident, ins, offsets, first, env)

    part = device(both if step.stores and step.reduces else folds if step.reduces else leaves)
    if r.resident:
        return device(
            lambda totals, ins, outs, offsets, places, known, mine: part(
                totals, ins, outs, offsets, places, known, mine[2], mine[0], mine[1]
            )
        )
    bring, stride = bringer(r), r.spread * r.width * r.chunks

    def again(totals, ins, outs, offsets, places, known, mine):
        at, env = mine[0], mine[1]
        while at < env[0]:
            totals = part(totals, ins, outs, offsets, places, known, bring(ins, offsets, at, env), at, env)
            at = int32(at + stride)
        return totals

    return device(again)


def _placer(r: Rows) -> Any:
    """`place(offsets, places, index, columns)`: of the thread with this number in its row (its first column, where runs end and begin),
    and the same of what is left at the row's ends."""
    width = r.width
    if r.anchor < 0:
        return device(
            lambda offsets, places, index, columns: (
                int32(index * width),
                columns,
                int32(0),
                columns,
                columns,
            )
        )
    stores, at = r.anchor >= len(r.ins), r.anchor - len(r.ins) * (r.anchor >= len(r.ins))

    def place(offsets, places, index, columns):
        lies = places[at] if stores else offsets[at]
        head = int32(-lies & np.int64(width - 1))
        end = int32(head + (columns - head) // width * width)
        left = index if index < head else int32(end + (index - head))
        return int32(head + index * width), end, head, int32(left), columns

    return device(place)


@functools.cache
def rows(
    r: Rows,
    walks: tuple[Walk, ...],
    places: tuple[Walk, ...],
    rank: int,
    narrow: bool,
    blocks_per_sm: int,
    name: str,
) -> Callable[..., None]:
    """The kernel. `walks` and `places`: of loads and of stores, over `rank` axes of the rows, and of the columns, which stand at 0.
    `blocks_per_sm`: blocks that a multiprocessor has registers for."""
    at, of, to = coordinates(rank, narrow), offsets(walks), offsets(places)
    fast = functions(r)
    begin, bring, bring_ends, run = beginner(r, fast), bringer(r), bringer(r.ends), _passes(r, 0, fast)
    lanes, per_block, cluster, resident, cut = (
        r.lanes,
        r.block // r.lanes,
        r.cluster,
        r.resident,
        r.anchor >= 0,
    )
    many, cluster_sync, place = words(r), gather(r), _placer(r)

    def kernel(ins, outs, shape, strides, out_strides, alongs, total, columns, count):
        shared = cuda.shared.array(many, types.float32)
        thread = int32(cuda.threadIdx.x)
        block = int32(cuda.blockIdx.x)
        cluster_sync()
        row = np.int64(block // cluster) * per_block + thread // lanes
        part = int32(block % cluster)
        index = int32(part * lanes + thread % lanes)
        none = row >= total  # its threads go through the motions, as others of the block wait for them
        if none:
            row = np.int64(0)
        here = at(row, shape)
        offs, goes = of(here, strides), to(here, out_strides)
        first, end, start, left, last = place(offs, goes, index, int32(columns))
        lead = index == 0 and not none
        if none:
            first = int32(end)
            left = int32(last)
        env, left_env = (end, start, alongs), (last, int32(0), alongs)
        known = begin(ins, offs)
        have = bring(ins, offs, first, env) if resident else ()
        more = bring_ends(ins, offs, left, left_env) if cut else ()
        mine, ends = (first, env, have), (left, left_env, more)
        run(ins, outs, offs, goes, known, mine, ends, count, shared, thread, part, lead)

    kernel.__name__ = name
    kernel.blocks_per_sm = blocks_per_sm
    return kernel
