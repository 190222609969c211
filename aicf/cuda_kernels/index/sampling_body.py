"""Drawing a token of a row of logits, by one block, in integers: see ops/sampling.py."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops.dropout import philox4x32
from ...ops.sampling import ONE, STREAM, multiply_high, share_of
from ...types import DType, bool_, f32, i32, i64
from ..dsl import SIMULATED, cuda, deferred, device, float32, int64, intrinsic, ir, types
from ..ptx.memory import same_place
from ..rows.reduce_body import tree
from ..tiles.element import getter, putter

BINS = 256
WIDE = np.float32(8)  # bins of a unit of logits, at first: from 0 to 32 below the greatest
LAST_BIN = np.float32(BINS - 1)
PLACE, PLACES, LEAST = (
    np.int64(31),
    np.int64(2**31 - 1),
    np.int64(-1),
)  # of a key: a rank, and where it is, from behind
MIDDLE, UPPER, SIGN = np.int64(2**31), np.int64(2**31 - 1), np.int64(-(2**31))
ZERO, NOTHING = np.int64(0), np.float32(-np.inf)
INFINITY, FLAT = np.float32(np.inf), np.float32(0)

philox, times_high, share = device(philox4x32), device(multiply_high), device(share_of)


@deferred
def bits_of() -> Any:
    """`bits(x)`: those of an f32, as i32."""
    if SIMULATED:
        return lambda x: np.float32(x).view(np.int32)

    @intrinsic
    def bits(typing, x):
        def codegen(ctx, b, sig, args):
            return b.bitcast(args[0], ir.IntType(32))

        return types.int32(types.float32), codegen

    return bits


as_bits = bits_of()


def _rank(x):
    """Of an f32 among all, from 0 to 2^32 - 1; NaN has the greatest."""
    bits = np.int64(as_bits(x)) if x != 0 else ZERO
    rank = bits if bits >= ZERO else SIGN - bits - 1
    return rank + MIDDLE if x == x else UPPER + MIDDLE


rank_of = device(_rank)


def _greater(a, b):
    return a if a > b else b


def _weight(y):
    return np.int64(float32(math.exp(y)) * ONE)


weight_of = device(_weight)


def _first_bin(y):
    """Greater logits have greater bins."""
    return np.int64(LAST_BIN) - np.int64(min(-y * WIDE, LAST_BIN))


first_bin = device(_first_bin)


@functools.cache
def logit(dtype: DType) -> Any:
    """`of(logits, seen, at, penalty)`."""
    get, was_seen = getter(dtype), getter(bool_)

    def of(logits, seen, at, penalty):
        x = float32(get(logits, at))
        if penalty != 1 and was_seen(seen, at) != 0:
            x = x / penalty if x > 0 else x * penalty
        return x

    return device(of)


@functools.cache
def scan(threads: int, forward: bool) -> Any:
    """`scan(values, thread, count)`: each of `count` values in shared memory becomes the sum of those up to it, or from it on."""

    def run(values, thread, count):
        apart = 1
        cuda.syncthreads()
        while apart < count:
            other = thread - apart if forward else thread + apart
            more = values[other] if thread < count and other >= 0 and other < count else ZERO
            cuda.syncthreads()
            if thread < count:
                values[thread] += more
            cuda.syncthreads()
            apart *= 2

    return device(run)


@functools.cache
def select(dtype: DType, threads: int) -> Any:
    """`least(bins, found, row, need, floor, thread, by_weight)`: the greatest rank r so that the weights of logits of rank r or more make
    `need`; or how many they are. Logits of a rank under `floor` count as nothing.

    row  (logits, seen, first element, words, penalty, greatest, temperature)
    One histogram by size, which spreads what lies close, then four by the bytes of the rank.
    """
    of, suffixes = logit(dtype), scan(threads, False)

    def step(bins, found, row, need, floor, thread, by_weight, level, chosen, prefix):
        logits, seen, base, words, penalty, peak, temperature = row
        shift = 32 - 8 * level
        if thread < BINS:
            bins[thread] = ZERO
        if thread < 2:
            found[thread] = ZERO
        cuda.syncthreads()
        i = np.int64(thread)
        while i < words:
            y = (of(logits, seen, base + i, penalty) - peak) / temperature
            rank, bin_ = rank_of(y), first_bin(y)
            if rank >= floor and (
                level == 0 or (bin_ == chosen and (rank >> (shift + 8)) == (prefix >> (shift + 8)))
            ):
                at = bin_ if level == 0 else (rank >> shift) & np.int64(BINS - 1)
                mass = weight_of(y) if by_weight else np.int64(1)
                if mass > ZERO:
                    cuda.atomic.add(bins, at, mass)
            i += threads
        suffixes(bins, thread, BINS)
        if thread < BINS:
            above = bins[thread + 1] if thread + 1 < BINS else ZERO
            if bins[thread] >= need and above < need:
                found[0], found[1] = np.int64(thread), above
        cuda.syncthreads()
        digit, above = found[0], found[1]
        cuda.syncthreads()
        return digit, need - above

    step = device(step)

    def least(bins, found, row, need, floor, thread, by_weight):
        prefix = ZERO
        chosen, need = step(bins, found, row, need, floor, thread, by_weight, 0, ZERO, prefix)
        for level in range(1, 5):
            digit, need = step(bins, found, row, need, floor, thread, by_weight, level, chosen, prefix)
            prefix |= digit << (32 - 8 * level)
        return prefix

    return device(least)


@functools.cache
def piece_sum(dtype: DType) -> Any:
    """`sum(row, first, last, step, floor)`: weights of every step-th logit of a rank of `floor` or more."""
    of = logit(dtype)

    def total(row, first, last, step, floor):
        logits, seen, base, _, penalty, peak, temperature = row
        made, i = ZERO, first
        while i < last:
            y = (of(logits, seen, base + i, penalty) - peak) / temperature
            if rank_of(y) >= floor:
                made += weight_of(y)
            i += step
        return made

    return device(total)


@functools.cache
def pick(dtype: DType, threads: int) -> Any:
    """`pick(sums, found, row, floor, drawn, thread)`: the token whose weight is the one that `drawn` falls in, all in a row."""
    sum_of, prefixes = piece_sum(dtype), scan(threads, True)

    def run(sums, found, row, floor, drawn, thread):
        first, size = ZERO, row[3]
        while size > 1:
            piece = (size + threads - 1) // threads
            begin = first + min(np.int64(thread) * piece, size)
            end = first + min(np.int64(thread + 1) * piece, size)
            own = sum_of(row, begin, end, 1, floor)
            cuda.syncthreads()
            sums[thread] = own
            prefixes(sums, thread, threads)
            if sums[thread] > drawn and sums[thread] - own <= drawn:
                found[0], found[1] = begin, sums[thread] - own
            cuda.syncthreads()
            size = min(piece, first + size - found[0])
            first, drawn = found[0], drawn - found[1]
        return first

    return device(run)


@functools.cache
def sample_tokens(dtype: DType, threads: int) -> Callable[..., None]:
    """A block for each row."""
    of, find, sum_of, take = logit(dtype), select(dtype, threads), piece_sum(dtype), pick(dtype, threads)
    fold_most, fold_sum = tree(device(_greater), threads, 1), tree(device(_add), threads, 1)
    number, seed_of, place_of, put = getter(f32), getter(i64), getter(i32), putter(i32)

    def kernel(logits, seen, seeds, places, temperatures, top_ks, top_ps, penalties, out, rows, words):
        sums = cuda.shared.array(threads, int64)
        bins = cuda.shared.array(BINS, int64)
        found = cuda.shared.array(2, int64)
        thread, block = cuda.threadIdx.x, np.int64(cuda.blockIdx.x)
        if block < rows:
            base = block * words
            penalty, temperature = number(penalties, 0), number(temperatures, 0)
            top_p, count = number(top_ps, 0), np.int64(number(top_ks, 0))
            best, i = LEAST, np.int64(thread)
            while i < words:
                rank = rank_of(of(logits, seen, base + i, penalty))
                best = max(best, (rank << PLACE) | (PLACES - i))
                i += threads
            sums[thread] = best
            fold_most(sums, thread, thread)
            token = PLACES - (sums[0] & PLACES)
            cuda.syncthreads()
            peak = of(logits, seen, base + token, penalty)
            if not (peak == peak and peak < INFINITY and peak > NOTHING):
                token = LEAST
            elif temperature != FLAT:
                row = logits, seen, base, words, penalty, peak, temperature
                floor = ZERO
                if count > ZERO and count < words:
                    floor = find(bins, found, row, count, floor, thread, False)
                sums[thread] = sum_of(row, np.int64(thread), words, threads, floor)
                fold_sum(sums, thread, thread)
                total = sums[0]
                cuda.syncthreads()
                if top_p < np.float32(1):
                    floor = max(floor, find(bins, found, row, share(total, top_p), floor, thread, True))
                    sums[thread] = sum_of(row, np.int64(thread), words, threads, floor)
                    fold_sum(sums, thread, thread)
                    total = sums[0]
                    cuda.syncthreads()
                key, place = np.uint64(seed_of(seeds, block)), np.uint64(place_of(places, block))
                high, low, _, _ = philox(
                    np.uint32(place), np.uint32(place >> np.uint64(32)), np.uint32(0), np.uint32(STREAM),
                    np.uint32(key), np.uint32(key >> np.uint64(32)),
                )  # fmt: skip
                random = (np.uint64(high) << np.uint64(32)) | np.uint64(low)
                drawn = np.int64(times_high(random, np.uint64(total)))
                token = take(sums, found, row, floor, drawn, thread)
            if thread == 0:
                put(out, block, np.int32(token))

    kernel.__name__ = f"sample_tokens_{dtype}_{threads}"
    return kernel


def _add(a, b):
    return a + b


was_seen, token_at, mark, same = getter(bool_), getter(i32), putter(bool_), same_place()


def mark_tokens(seen, tokens, starts, counts, out, rows, words, length):
    """A block for each row."""
    block, step = np.int64(cuda.blockIdx.x), np.int64(cuda.blockDim.x)
    if block < rows:
        base, fresh = block * words, token_at(starts, block) == 0
        i = np.int64(cuda.threadIdx.x)
        if fresh or not same(seen, out):
            while i < words:
                mark(out, base + i, was_seen(seen, base + i) != 0 and not fresh)
                i += step
        cuda.syncthreads()
        i = np.int64(cuda.threadIdx.x)
        count = min(np.int64(token_at(counts, block)), length)
        while i < count:
            token = np.int64(token_at(tokens, block * length + i))
            if token >= 0 and token < words:
                mark(out, base + token, True)
            i += step
