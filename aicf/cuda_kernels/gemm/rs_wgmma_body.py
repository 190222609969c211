"""Consumers of a Hopper product of tf32 of which one operand is MN-major.

wgmma takes words from shared memory K-major only. But 64 rows of its first operand may come from registers, and threads load these
from wherever they lie (ptx/register_operand.py). So the operand whose k is not contiguous is the one in registers, whichever it is: if it is b, the
product is that of the transposed ones, b' a', and rows of accumulators are columns of results.

Products read registers while their threads go on. So there are two sets of words, and a set is loaded when the products that read
it before are done: those of a K-tile are under way while words of the next one are loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import cuda, device, int32, uint32
from ..hopper.ring import advancer, skipper
from ..hopper.roles import ordered_barrier
from ..hopper.scheduler import grouped_raster, lengths, tiles_in_turn
from ..hopper.units import WARPGROUP
from ..ptx import (
    arrive,
    commit_products,
    describe,
    finish_products,
    load_register_operand,
    multiply_k_tiles,
    opaque,
    wait_phase,
    wait_products,
)
from ..ptx.register_operand import register_operand_mn, register_operand_place
from ..ptx.wgmma import WORDS
from ..tiles.tile import each, permute, zeros
from .epilogue import Epilogue, finisher
from .wgmma_scheduler import coords_of
from .wgmma_tiling import WgmmaTiling

NO_WORDS = (np.uint32(0),) * WORDS


def rs_consumer(tiling: WgmmaTiling, epilogue: Epilogue, swap_ab: bool) -> Any:
    """`consume(group, base, full, maps, walk, sizes, scales, operands)`: as wgmma_body.py's. swap_ab: b is the operand in registers."""
    assert tiling.row_blocks == tiling.together == 1, f"{tiling}: a thread has two rows"
    turn_groups, cooperative, stages = tiling.turn_groups, tiling.cooperative, tiling.stages(0)
    stage_bytes, a_bytes, own_bytes, empty = tiling.stage_bytes, tiling.a_bytes, tiling.own_bytes, 8 * stages
    commit, wait_but_one = commit_products(), wait_products(1)
    ask, finish = (
        multiply_k_tiles(("tf32", "tf32"), tiling.n, 1, None, True),
        finish_products(tiling.accumulators),
    )
    load, own_place, b_of = load_register_operand(), register_operand_place(), describe(True)
    wait, tell, advance, skip = wait_phase(), arrive(), advancer(stages), skipper(stages)
    place = grouped_raster(tiling.group_m, epilogue.batch > 0)
    wait_turn, pass_turn = ordered_barrier(tiling.consumers, tiling.ping_pong)
    _, number, k_tiles, _, batch_origin_of = coords_of(epilogue)
    length, start, write = (
        lengths(tiles_in_turn(coords_of(epilogue))),
        zeros(tiling.accumulators),
        rs_results(tiling, epilogue, swap_ab),
    )
    tile_m, tile_n = tiling.m, tiling.n

    def fetch(words, stage, phase, places):
        """Words of a K-tile, when it has arrived."""
        wait(uint32(places[0] + uint32(8) * stage), phase)
        return load(words, uint32(places[1] + stage * uint32(stage_bytes)))

    def release_before(stage, places, member):
        """Each warp has read its rows of it by itself."""
        before = uint32(stage - uint32(1)) if stage > 0 else uint32(stages - 1)
        if member % 32 == 0:
            tell(uint32(places[0] + uint32(empty) + uint32(8) * before))

    release = device(release_before)

    def multiply(acc, words, stage, phase, step, places, member):
        """Issues the wgmmas of a K-tile; those of the one before are done then. The next one's stage and phase."""
        acc = ask(acc, words, uint32(places[2] + stage * uint32(stage_bytes // 16)), step)
        commit()
        wait_but_one()
        if step > 0:
            release(stage, places, member)
        following, phase = advance(stage, phase)
        return acc, following, phase

    fetch_words, ask_for = device(fetch), device(multiply)

    def consume(group, base, full, maps, walk, sizes, scales, operands):
        first, apart, rows, columns, steps, each, _, _ = walk
        member = int32(int32(cuda.threadIdx.x) % WARPGROUP)
        turn_group, part = int32(group // cooperative), int32(group % cooperative)
        own = uint32(base + uint32(part * own_bytes) + own_place(member >> 5, member & 31))
        places = full, own, b_of(uint32(base + uint32(a_bytes)))
        acc, words, others = start, NO_WORDS, NO_WORDS
        tile = uint32(first + uint32(turn_group) * apart)
        tiles = uint32(rows * columns * number(sizes, steps, each))
        stage, phase = uint32(0), uint32(0)
        if turn_group != 0:
            stage, phase = skip(stage, phase, length(first, walk, ()))
        while tile < tiles:
            row, column, batch_coord = place(tile, rows, columns)
            _, count = k_tiles(batch_coord, steps, each)
            if tile != first:
                wait_turn(turn_group)
            words = fetch_words(words, stage, phase, places)
            step = uint32(0)
            while step + uint32(2) < count:
                acc, stage, phase = ask_for(acc, words, stage, phase, step, places, member)
                step = uint32(step + uint32(1))
                others = fetch_words(others, stage, phase, places)
                acc, stage, phase = ask_for(acc, others, stage, phase, step, places, member)
                step = uint32(step + uint32(1))
                words = fetch_words(words, stage, phase, places)
            acc, stage, phase = ask_for(acc, words, stage, phase, step, places, member)
            step = uint32(step + uint32(1))
            if step < count:
                others = fetch_words(others, stage, phase, places)
                acc, stage, phase = ask_for(acc, others, stage, phase, step, places, member)
            following = uint32(tile + apart)
            if following < tiles:
                pass_turn(turn_group)
            acc = finish(acc)
            release(stage, places, member)
            first_row, across = int32(row * tile_m + part * 64), int32(column * tile_n)
            write(
                acc,
                member,
                first_row,
                across,
                sizes,
                scales,
                (*operands, batch_origin_of(batch_coord, sizes)),
            )
            if turn_groups > 1 and following < tiles:
                stage, phase = skip(stage, phase, length(following, walk, ()))
            tile = uint32(tile + uint32(turn_groups) * apart)

    return device(consume)


def rs_results(tiling: WgmmaTiling, epilogue: Epilogue, swap_ab: bool) -> Any:
    """`write(acc, member, mn, across, sizes, scales, operands)`: each thread stores two neighbouring columns, or one; of a tile whose
    rows of accumulators begin at this one, and columns at `across`."""
    finish, apart, mn_of = finisher(epilogue), opaque(), register_operand_mn()
    # of accumulators 4 i to 4 i + 3 the upper two are of one row and the lower two of the next
    order = tuple(
        4 * i + e for i in range(tiling.accumulators // 4) for e in ((0, 2, 1, 3) if swap_ab else range(4))
    )
    sort = permute(order)

    def write_run(i, products, given):
        mn, across, m, n, scales, operands = given
        upper, lower = i // 2 % 2, i % 2
        if swap_ab:
            r, q = apart(across) + i // 4 * 8 + upper, apart(mn) + lower
        else:
            r, q = apart(mn) + upper, apart(across) + i // 4 * 8 + lower
        if r < m and q < n:
            finish(r, q, products, n, scales, operands)

    write_each = each(tiling.accumulators, epilogue.width, write_run)

    def write(acc, member, mn, across, sizes, scales, operands):
        lane = member & 31
        own = int32(mn + mn_of(member >> 5, lane))
        env = own, int32(across + (lane & 3) * 2), sizes[0], sizes[1], scales, operands
        write_each(sort(acc), env)

    return device(write)
