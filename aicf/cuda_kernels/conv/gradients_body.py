"""Gradients of convolutions by f32 arithmetic, as tiled products whose elements are found by their windows: no im2col in memory.

Channels last, up to three spatial axes; with fewer the first ones have one element. A product for each group, of which rows, columns and k are

    weight   channels of y; places of the kernel and channels of x; windows. dy and what the windows have of x
    data     elements of x; channels of x; places of the kernel and channels of y. dy of the window that has the element there, and w

The loop and its tiles are those of gemm/simt_body.py. `geometry` is of i32:

    0 c, 1 o, 2 groups   channels of x and of y in a group
    3 to 9               along three axes: windows, places of the kernel, strides, low, dilation, spread of x, sizes of x
    10                   elements of x, without channels
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType, f32
from ..dsl import cuda, device, float32, int32, uint32
from ..gemm.simt_body import ALIGNMENT
from ..tiles.element import putter
from ..tiles.fragment import Fragment, fragment, outer
from ..tiles.tile import add_tiles, each, put_run, put_runs, runs, zeros

TILE, STEP, THREADS, SIDE = 64, 16, 256, 16
OWN = TILE // SIDE  # rows and columns of a thread
PITCH = TILE + 4  # neighbouring k lie four banks apart
TOGETHER = 8  # loads of a thread that sums splits
ELEMENTS = TILE * STEP // THREADS  # of an operand's K-tile, that a thread loads


@device
def apart3(index, b, c, d):
    """An index as (…, b, c, d), of such extents, as u32."""
    above = uint32(uint32(index) // uint32(d))
    further = uint32(above // uint32(c))
    first = uint32(further // uint32(b))
    return first, uint32(further - first * uint32(b)), uint32(above - further * uint32(c)), uint32(index - above * uint32(d))  # fmt: skip


def nearer(divided: bool) -> Any:
    """`find(at, step, count)`: which element lies at a position, where they lie a step apart; -1 if none does."""
    if not divided:
        return device(lambda at, step, count: int32(at) if at >= 0 and at < count else int32(-1))

    def find(at, step, count):
        if at < 0:
            return int32(-1)
        which = uint32(uint32(at) // uint32(step))
        if uint32(which * uint32(step)) != uint32(at) or which >= uint32(count):
            return int32(-1)
        return int32(which)

    return device(find)


@device
def element(image, at, extents, channels):
    """Of a tensor (N, …, channels), dense: where the channels of a position begin; -1 outside."""
    if at[0] < 0 or at[1] < 0 or at[2] < 0:
        return np.int64(-1)
    rows = np.int64(image) * extents[0] + at[0]
    return ((rows * extents[1] + at[1]) * extents[2] + at[2]) * np.int64(channels)


def weight_operands(input_dilated: bool) -> tuple[Any, ...]:
    """(`fix_a`, `a_env`, `place_a`, `fix_b`, `b_env`, `place_b`): what is known of a thread's row or column, what of its K-tile, and where its i-th
    element of that lies. Neighbouring threads have neighbouring channels, four rows of k each."""
    find = nearer(input_dilated)

    def fix_a(row, group, g):
        return int32(group * g[1] + row), int32(row < g[1])

    def place_a(i, env):
        k, end, (channel, inside), g = env
        at = int32(k + i * OWN)
        if at < end and inside != 0:
            return np.int64(at) * (g[1] * g[2]) + channel
        return np.int64(-1)

    def fix_b(column, group, g):
        channels = uint32(max(int32(g[0]), int32(1)))
        place = uint32(uint32(column) // channels)
        _, place_z, place_y, place_x = apart3(place, g[4][0], g[4][1], g[4][2])
        z = int32(int32(place_z) * g[7][0] - g[6][0])
        y = int32(int32(place_y) * g[7][1] - g[6][1])
        x = int32(int32(place_x) * g[7][2] - g[6][2])
        inside = column < g[0] * g[4][0] * g[4][1] * g[4][2]
        return int32(group * g[0] + int32(uint32(column) - place * channels)), int32(inside), z, y, x

    def place_b(i, env):
        k, end, (channel, inside, z, y, x), g = env
        window = int32(k + i * OWN)
        if window < end and inside != 0:
            image, of_z, of_y, of_x = apart3(window, g[3][0], g[3][1], g[3][2])
            sizes, steps, spread = g[9], g[5], g[8]
            at = (
                find(int32(int32(of_z) * steps[0] + z), spread[0], sizes[0]),
                find(int32(int32(of_y) * steps[1] + y), spread[1], sizes[1]),
                find(int32(int32(of_x) * steps[2] + x), spread[2], sizes[2]),
            )
            start = element(image, at, sizes, g[0] * g[2])
            if start >= 0:
                return start + channel
        return np.int64(-1)

    env = device(lambda k, end, fixed, g: (k, end, fixed, g))
    return device(fix_a), env, place_a, device(fix_b), env, place_b


def data_operands(strided: bool) -> tuple[Any, ...]:
    """The same: of dy, neighbouring threads have neighbours along k, rows SIDE apart; of w, neighbouring channels."""
    find = nearer(strided)

    def fix_a(row, group, g):
        return int32(row), int32(group)

    def a_env(k, end, fixed, g):
        channels = uint32(max(int32(g[1]), int32(1)))
        place = uint32(uint32(k) // channels)
        _, place_z, place_y, place_x = apart3(place, g[4][0], g[4][1], g[4][2])
        z = int32(g[6][0] - int32(place_z) * g[7][0])
        y = int32(g[6][1] - int32(place_y) * g[7][1])
        x = int32(g[6][2] - int32(place_x) * g[7][2])
        channel = int32(fixed[1] * g[1] + int32(uint32(k) - place * channels))
        return channel, int32(k < end), fixed[0], z, y, x, g

    def place_a(i, env):
        channel, inside, first, z, y, x, g = env
        row = int32(first + i * SIDE)
        if inside != 0 and row < g[10]:
            image, of_z, of_y, of_x = apart3(row, g[9][0], g[9][1], g[9][2])
            steps, spread, made = g[5], g[8], g[3]
            at = (
                find(int32(int32(of_z) * spread[0] + z), steps[0], made[0]),
                find(int32(int32(of_y) * spread[1] + y), steps[1], made[1]),
                find(int32(int32(of_x) * spread[2] + x), steps[2], made[2]),
            )
            start = element(image, at, made, g[1] * g[2])
            if start >= 0:
                return start + channel
        return np.int64(-1)

    def fix_b(column, group, g):
        return int32(column), int32(group)

    def place_b(i, env):
        k, end, (column, group), g = env
        at = int32(k + i * OWN)
        if at < end and column < g[0]:
            place = uint32(uint32(at) // uint32(g[1]))
            o = int32(group * g[1]) + int32(uint32(at) - place * uint32(g[1]))
            return (np.int64(o) * (g[4][0] * g[4][1] * g[4][2]) + place) * g[0] + column
        return np.int64(-1)

    b_env = device(lambda k, end, fixed, g: (k, end, fixed, g))
    return device(fix_a), device(a_env), place_a, device(fix_b), b_env, place_b


@functools.cache
def gradient(of_weight: bool, dtype: DType, divided: bool) -> Callable[..., None]:
    """`kernel(a, b, out, geometry, sizes)`: a block of 256 threads for a 64 x 64 tile of a group, and of a split of k. sizes: rows, columns
    and k of a group, k of a split.

    A weight gradient's sums go out as f32, a matrix (O, places, C / groups) for each split; a data gradient's as elements of x, and k is whole.
    divided: positions are to be divided, by the spread of x or by strides.
    """
    fix_a, a_env, place_a, fix_b, b_env, place_b = (weight_operands if of_weight else data_operands)(divided)
    load_a, load_b = (runs(dtype, ELEMENTS, 1, place) for place in (place_a, place_b))
    # a's K-tile is loaded along rows of the tile, or along k
    store_a = put_runs(ELEMENTS, 1, OWN * PITCH if of_weight else SIDE, 1)
    store_b = put_runs(ELEMENTS, 1, OWN * PITCH, 1)
    buffers = 2 * STEP * PITCH
    part = Fragment(1, OWN, OWN * SIDE)
    multiply, start = outer(part, part, 8, PITCH, PITCH), zeros(OWN * OWN)
    put = putter(f32 if of_weight else dtype)

    def write_one(i, run, env):
        out, first, row, column, m, n, pitch = env
        r, q = row + i // OWN, column + i % OWN
        if r < m and q < n:
            put(out, first + np.int64(r) * pitch + q, run[0])

    write = each(OWN * OWN, 1, write_one)

    def kernel(a, b, out, geometry, sizes):
        g, m, n, k = geometry, sizes[0], sizes[1], sizes[2]
        a_shared = cuda.shared.array(buffers, float32, ALIGNMENT)
        b_shared = cuda.shared.array(buffers, float32, ALIGNMENT)
        thread = int32(cuda.threadIdx.x)
        tx, ty = int32(thread % SIDE), int32(thread // SIDE)
        across = max(uint32((uint32(n) + uint32(TILE - 1)) // uint32(TILE)), uint32(1))
        down = max(uint32((uint32(m) + uint32(TILE - 1)) // uint32(TILE)), uint32(1))
        block = uint32(cuda.blockIdx.x)
        row_tile = uint32(block // across)
        column0 = int32(int32(block - row_tile * across) * TILE)
        layer = uint32(row_tile // down)
        row0 = int32(int32(row_tile - layer * down) * TILE)
        split = int32(layer // uint32(g[2]))
        group = int32(int32(layer) - split * g[2])
        first_k = int32(split * sizes[3])
        end = int32(min(np.int64(first_k) + sizes[3], np.int64(k)))

        fast, slow = int32(thread % TILE), int32(thread // TILE)
        a_mn, a_k = (fast, slow) if of_weight else (ty, tx)
        a_fixed, b_fixed = fix_a(int32(row0 + a_mn), group, g), fix_b(int32(column0 + fast), group, g)
        a_put, b_put = a_k * PITCH + a_mn, slow * PITCH + fast
        acc, buffer, at = start, 0, first_k
        a_next = load_a(a, a_env(int32(at + a_k), end, a_fixed, g))
        b_next = load_b(b, b_env(int32(at + slow), end, b_fixed, g))
        while at < end:
            here = buffer * (STEP * PITCH)
            store_a(a_shared, here + a_put, a_next)
            store_b(b_shared, here + b_put, b_next)
            cuda.syncthreads()
            at = int32(at + STEP)
            a_next = load_a(a, a_env(int32(at + a_k), end, a_fixed, g))
            b_next = load_b(b, b_env(int32(at + slow), end, b_fixed, g))
            for i in range(0, STEP, 8):
                acc = multiply(
                    acc, a_shared, b_shared, here + ty * OWN + i * PITCH, here + tx * OWN + i * PITCH
                )
            buffer = 1 - buffer
        if of_weight:
            pitch, first = np.int64(n), (np.int64(split) * g[2] + group) * np.int64(m) * n
        else:
            pitch, first = np.int64(n) * g[2], np.int64(group) * n
        write(acc, (out, first, int32(row0 + ty * OWN), int32(column0 + tx * OWN), m, n, pitch))

    name = "weight" if of_weight else "data"
    kernel.__name__ = f"convolution_{name}_gradient_{dtype}" + "_divided" * divided
    kernel.blocks_per_sm = 3
    return kernel


@functools.cache
def sum_parts(dtype: DType, width: int, slices: int) -> Callable[..., None]:
    """`kernel(partial, result, splits, shape, pitches)`: runs of `width` neighbours of a result (rows, places, channels), the sum of what so many
    splits have there. A block has `THREADS / slices` runs, each in so many slices of the splits, which are added up in order: always the same.

    Limit: trips to the L2 cache. `TOGETHER` loads of a thread are under way at once.

    shape    places, channels, and the runs of all
    pitches  of a split's matrix: f32 from place to place, in a row, in all
    """
    lanes, room, start = THREADS // slices, THREADS * width, zeros(width)
    load, add, store = runs(f32, TOGETHER, width, place_of_split), add_tiles(width), put_run(dtype, width)
    add_all, put, get = adder(TOGETHER, width, add), put_runs(1, width, 0, 1), fragment(1, width, width)

    def kernel(partial, result, splits, shape, pitches):
        shared = cuda.shared.array(room, float32, ALIGNMENT)
        thread = uint32(cuda.threadIdx.x)
        of = uint32(thread // uint32(lanes))
        lane = uint32(thread - of * uint32(lanes))
        run = uint32(uint32(cuda.blockIdx.x) * uint32(lanes) + lane)
        inside = run < uint32(shape[2])
        total = start
        if inside:
            across = uint32(uint32(shape[1]) // uint32(width))
            line = uint32(run // across)
            row = uint32(line // uint32(shape[0]))
            place = uint32(line - row * uint32(shape[0]))
            channel = np.int64(uint32(run - line * across)) * width
            at = np.int64(row) * pitches[1] + np.int64(place) * pitches[0] + channel
            share = int32((splits + (slices - 1)) // slices)
            first = int32(int32(of) * share)
            left = int32(min(share, int32(splits - first)))
            at += np.int64(first) * pitches[2]
            while left > 0:
                total = add_all(total, load(partial, (at, left, np.int64(pitches[2]))))
                at += np.int64(pitches[2]) * TOGETHER
                left = int32(left - TOGETHER)
        if slices > 1:
            put(shared, thread * width, total)
            cuda.syncthreads()
            if of == 0:
                for i in range(1, slices):
                    total = add(total, get(shared, (i * lanes + lane) * width))
        if inside and of == 0:
            store(result, np.int64(run) * width, total)

    kernel.__name__ = f"convolution_sum_parts_{dtype}_{width}_{slices}"
    return kernel


def place_of_split(i: Any, env: Any) -> Any:
    at, left, pitch = env
    if i < left:
        return at + i * pitch
    return np.int64(-1)


def adder(count: int, width: int, add: Any) -> Any:
    """`add_all(total, tile)`: so many runs of `width`, one after the other."""
    first, last = (count - 1) * width, count * width
    if count == 0:
        return device(lambda total, tile: total)
    before = adder(count - 1, width, add)
    return device(lambda total, tile: add(before(total, tile), tile[first:last]))
