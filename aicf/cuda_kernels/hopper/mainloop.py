"""The main loops of a consumer: K-tile after K-tile of one tile, as they arrive in a ring whose stages are a's part and b's behind it.

A main loop goes through the stages, waits for each and releases it; what becomes of a K-tile is the accumulators' (accumulators.py).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..dsl import device, uint32
from ..ptx import (
    arrive,
    commit_products,
    describe,
    finish_products,
    load_register_operand,
    multiply_k_tiles,
    wait_phase,
    wait_products,
)
from ..ptx.register_operand import flat_operand_place, load_flat_operand, register_operand_place
from ..ptx.wgmma import WORDS
from ..tiles.tile import add_tiles, zeros
from .accumulators import Accumulators
from .cluster import divider
from .ring import advancer, places_of_stages, releaser

HALF = 2  # bytes
NO_WORDS = (np.uint32(0),) * WORDS


class Stages(NamedTuple):
    """A ring of K-tiles: how many, bytes of each, where b begins in it, and from one consumer's part of a to the next one's. Their barriers are
    full ones and then empty ones."""

    number: int
    nbytes: int
    b_at: int
    own_bytes: int


class Mainloop(NamedTuple):
    """start     what is in registers before the first tile
    places    `places(base, full, part, member)`: where the operands of this consumer begin, for all tiles
    run       `run(state, stage, phase, count, narrow_tile, places, member)`: the products of so many K-tiles are issued:
              (state, stage, phase, what is to be released)
    finish    `finish(state, last, count, places, member)`: they are done, and all stages released: (state for the next tile, accumulators of
              this one, as `multiply_k_tiles` says)
    """

    start: tuple[Any, ...]
    places: Any
    run: Any
    finish: Any


def from_shared(
    stages: Stages,
    accumulators: Accumulators,
    a_k_major: bool,
    b_k_major: bool,
    cluster: int = 1,
    splits: int = 1,
) -> Mainloop:
    """Both operands are read from shared memory, of blocks of a cluster that load b together, or divide k.

    After issuing K-tile s it waits until only that group is in flight, then releases stage s - 1 (promoted: waits for s itself, and
    releases s); `late` is how many stages behind it is.
    """
    start, begin, multiply, done, late = accumulators
    a_of, b_of, wait, release = describe(a_k_major), describe(b_k_major), wait_phase(), releaser(cluster)
    here, go_on = places_of_stages(stages.number, stages.nbytes)
    own_bytes, b_at, empty = stages.own_bytes, stages.b_at, 8 * stages.number

    def places(base, full, part, member):
        return full, a_of(uint32(base + uint32(part * own_bytes))), b_of(uint32(base + uint32(b_at)))

    def run(acc, stage, phase, count, narrow_tile, places, member):
        before, acc = uint32(0), begin(acc)
        ready, a, b = here(stage, places)
        step = uint32(0)
        while step < count:
            wait(ready, phase)
            acc = multiply(acc, a, b, step, narrow_tile)
            read = uint32(ready + uint32(empty))
            if step >= late:
                release(before if late else read, member)
            before = read
            stage, phase, ready, a, b = go_on(stage, phase, ready, a, b)
            step = uint32(step + uint32(1))
        return acc, stage, phase, before

    def finish(acc, before, count, places, member):
        acc, accumulators = done(acc)
        if late and (splits == 1 or count > 0):
            release(before, member)
        return acc, accumulators

    return Mainloop(start, device(places), device(run), device(finish))


def halved(loop: Mainloop, count: int) -> Mainloop:
    """Each half of a tile's K-tiles with a sum of its own, of `count` accumulators: the halves that two blocks of a cluster would have. Products of the first half
    are done before those of the second begin. There are two K-tiles at least."""
    run_half, finish_half, add, divide = loop.run, loop.finish, add_tiles(count), divider(2)

    def run(state, stage, phase, count, narrow_tile, places, member):
        _, first = divide((uint32(0), count), uint32(0))
        acc, stage, phase, last = run_half(state[0], stage, phase, first, narrow_tile, places, member)
        acc, total = finish_half(acc, last, first, places, member)
        rest = uint32(count - first)
        acc, stage, phase, last = run_half(acc, stage, phase, rest, narrow_tile, places, member)
        return (acc, total), stage, phase, last

    def finish(state, last, count, places, member):
        acc, more = finish_half(state[0], last, count, places, member)
        return (acc, state[1]), add(state[1], more)

    return Mainloop((loop.start, zeros(count)), loop.places, device(run), device(finish))


class RegisterOperand(NamedTuple):
    """The first operand, which threads load from shared memory to registers: 64 rows of it.

    kinds  of both operands' elements
    place  `place(warp, lane)`: from where on in a K-tile a thread loads
    load   `load(words, address)`: a thread's words of a K-tile, into the registers that `words` have; of a flat one
           `load(words, address, pitch, left)`: bytes from k to k, and rows from the thread's first one on
    flat   `flat(rows, warp, lane)`: of a flat one, `place` for so many rows
    """

    kinds: tuple[str, str]
    place: Any
    load: Any
    flat: Any = None


def rows_of_tf32() -> RegisterOperand:
    """MN-major boxes: wgmma takes words from shared memory K-major only."""
    return RegisterOperand(("tf32", "tf32"), register_operand_place(), load_register_operand())


def flat_rows(kind: str, eights: bool) -> RegisterOperand:
    """Halves of few rows, in a stage as in memory: all rows of a k, and then those of the next k. `eights`: whole eights of rows."""
    nowhere = device(lambda warp, lane: uint32(0))
    return RegisterOperand((kind, kind), nowhere, load_flat_operand(eights), flat_operand_place(eights))


def from_registers(stages: Stages, n: int, operand: RegisterOperand, b_k_major: bool = True) -> Mainloop:
    """64 rows of the first operand, whose words each thread loads from shared memory itself. How many rows a flat one has is the work tile's
    number that narrow ones have elsewhere.

    Products read registers while their threads go on. So there are two sets of words, and a set is loaded when the products that read
    it before are done: those of a K-tile are under way while words of the next one are loaded. There is a K-tile at least.
    """
    count, stage_bytes, empty = stages.number, stages.nbytes, 8 * stages.number
    own_bytes, b_at = stages.own_bytes, stages.b_at
    commit, wait_but_one, done = commit_products(), wait_products(1), finish_products(n // 2)
    ask = multiply_k_tiles(operand.kinds, n, 1, None, b_k_major)
    load, own_place, b_of = operand.load, operand.place, describe(b_k_major)
    wait, tell, advance = wait_phase(), arrive(), advancer(count)

    def places(base, full, part, member):
        own = uint32(base + uint32(part * own_bytes) + own_place(member >> 5, member & 31))
        return full, own, b_of(uint32(base + uint32(b_at)))

    def fetch(words, stage, phase, places):
        """Words of a K-tile, when it has arrived."""
        wait(uint32(places[0] + uint32(8) * stage), phase)
        return load(words, uint32(places[1] + stage * uint32(stage_bytes)))

    def fetch_flat(words, stage, phase, places):
        """The same of a flat operand."""
        wait(uint32(places[0] + uint32(8) * stage), phase)
        return load(words, uint32(places[1] + stage * uint32(stage_bytes)), places[3], places[4])

    def release_before(stage, places, member):
        """Each warp has read its rows of it by itself."""
        before = uint32(stage - uint32(1)) if stage > 0 else uint32(count - 1)
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

    fetch_words, ask_for = device(fetch_flat if operand.flat else fetch), device(multiply)

    def run(state, stage, phase, count, narrow_tile, places, member):
        acc, words, others = state
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
        return (acc, words, others), stage, phase, stage

    run_all, flat_place = device(run), operand.flat

    def run_flat(state, stage, phase, count, rows, places, member):
        warp, lane = member >> 5, member & 31
        own = uint32(places[1] + flat_place(rows, warp, lane))
        left = np.int32(rows - warp * 16 - (lane >> 2))
        flat = places[0], own, places[2], uint32(rows * HALF), left
        return run_all(state, stage, phase, count, rows, flat, member)

    def finish(state, stage, count, places, member):
        acc, words, others = state
        acc = done(acc)
        release(stage, places, member)
        return (acc, words, others), acc

    start, runs = (zeros(n // 2), NO_WORDS, NO_WORDS), device(run_flat) if operand.flat else run_all
    return Mainloop(start, device(places), runs, device(finish))
