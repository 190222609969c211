"""Convolution of channels last on CUDA cores: groups of any size, depthwise ones among them, with any windows.

A block has a tile of windows x channels of results, and the weights of its channels in shared memory, some places or channels at a time. A
thread sums up runs of neighbouring channels of four windows, in f32, by fused multiply-adds in the order of places and channels. What
follows is a product's epilogue.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from ..dsl import cuda, device, float32, int32, int64
from ..gemm.epilogue import Epilogue, finisher
from ..tiles.element import getter
from ..tiles.tile import each, multiply_runs, raw_runs, zeros
from .positions_body import element_of, place_of, window_of
from .tiling import BLOCKS, ROWS, THREADS, WEIGHTS, DirectTiling


@functools.cache
def direct(tiling: DirectTiling, epilogue: Epilogue, spread: bool) -> Callable[..., None]:
    """`kernel(x, w, operands, sizes, scales, made, steps, first, window, apart, extents, between)`: see `WindowGeometry`.

    sizes  windows, channels of results, tiles of these, channels of x, those of a group, channels of results of a group, and of weights in
           shared memory at once: places, channels of each
    """
    run, depth, lanes, across = tiling.run, tiling.depth, tiling.lanes, tiling.across
    channels_of_block, windows_of_block, pitch = tiling.channels, tiling.windows, tiling.pitch
    depthwise, weights, count = tiling.depthwise, WEIGHTS, ROWS * tiling.run
    finish, start = finisher(epilogue), zeros(ROWS * tiling.run)
    get_w, dtype = getter(epilogue.b_dtype), epilogue.dtype
    locate, window_at, place_at = element_of(spread), window_of(), place_of()
    width = epilogue.width
    wide = run if depthwise else depth

    def place(i, env):
        at = env[0][i]
        if at >= 0:
            at = at + env[1]
        return at

    load = raw_runs(dtype, ROWS, wide, place)
    reads = tuple(
        (d * pitch, tuple((r * run + v, r * wide + (v if depthwise else d), v) for r in range(ROWS) for v in range(run)))
        for d in range(1 if depthwise else depth)
    )  # fmt: skip
    multiply = multiply_runs(dtype, ROWS, wide, count, run, reads)

    def element(r, env):
        """Where a window's channels begin at a place, or -1."""
        z_of, y_of, x_of, base_of, shift, left, extents, between, channels, along = env
        at = int64(-1)
        if r < left:
            z, y, x = int32(z_of[r] + shift[0]), int32(y_of[r] + shift[1]), int32(x_of[r] + shift[2])
            found = locate(z, y, x, extents, between)
            if found >= 0:
                at = base_of[r] + int64(found) * channels + along
        return at

    find = device(element)

    def write_run(i, products, env):
        first_row, row, column, m, n, scales, operands = env
        r, q = first_row + row + (i // run) * across, column + i % run
        if r < m and q < n:
            finish(r, q, products, n, scales, operands)

    write = each(count, width, write_run)

    def kernel(x, w, operands, sizes, scales, made, steps, first, window, apart, extents, between):
        z_of = cuda.shared.array(windows_of_block, int32)
        y_of = cuda.shared.array(windows_of_block, int32)
        x_of = cuda.shared.array(windows_of_block, int32)
        base_of = cuda.shared.array(windows_of_block, int64)
        kernel_of = cuda.shared.array(weights, float32, 16)
        m, n, tiles, channels, depth_of_group, of_group = (
            sizes[0],
            sizes[1],
            sizes[2],
            sizes[3],
            sizes[4],
            sizes[5],
        )
        places_at_once, channels_at_once = sizes[6], sizes[7]
        places = int32(window[0] * int32(window[1] * window[2]))
        thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
        tile_row = int32(np.uint32(block) // np.uint32(tiles))
        first_row = int64(tile_row) * windows_of_block
        first_channel = int32(int32(block - int32(tile_row * tiles)) * channels_of_block)
        left = int32(min(int64(windows_of_block), m - first_row))
        image_elements = int64(int32(extents[0] * int32(extents[1] * extents[2]))) * channels
        row = thread
        while row < left:
            image, z, y, along = window_at(int32(first_row + row), made)
            z_of[row] = int32(z * steps[0] + first[0])
            y_of[row] = int32(y * steps[1] + first[1])
            x_of[row] = int32(along * steps[2] + first[2])
            base_of[row] = int64(image) * image_elements
            row = int32(row + THREADS)

        lane, line = thread % lanes, thread // lanes
        own = int32(lane * run)
        column = int32(first_channel + own)
        # lanes beyond the last channel read what the last ones read, and write nothing
        known = int32(min(column, int32(n - run)))
        begin = int32(np.uint32(known) // np.uint32(of_group)) * depth_of_group
        acc = start
        for first_place in range(0, places, places_at_once):
            for first_depth in range(0, depth_of_group, channels_at_once):
                there = int32(min(places_at_once, int32(places - first_place)))
                deep = int32(min(channels_at_once, int32(depth_of_group - first_depth)))
                cuda.syncthreads()
                each_channel = int32(there * deep)
                total, e = int32(each_channel * channels_of_block), thread
                while e < total:
                    o = int32(np.uint32(e) // np.uint32(each_channel))
                    k = int32(e - int32(o * each_channel))
                    p = int32(np.uint32(k) // np.uint32(deep))
                    c = int32(k - int32(p * deep))
                    value = float32(0)
                    if first_channel + o < n:
                        from_ = int64(int64(first_channel + o) * places + (first_place + p)) * depth_of_group
                        value = get_w(w, from_ + (first_depth + c))
                    kernel_of[k * pitch + o] = value
                    e = int32(e + THREADS)
                cuda.syncthreads()
                for p in range(there):
                    shift = place_at(int32(first_place + p), window, apart)
                    env = (
                        z_of, y_of, x_of, base_of, shift, left, extents, between, int64(channels),
                        int64(begin + first_depth),
                    )  # fmt: skip
                    starts = (
                        find(line, env),
                        find(int32(line + across), env),
                        find(int32(line + 2 * across), env),
                        find(int32(line + 3 * across), env),
                    )
                    at = int32(int32(p * deep) * pitch + own)
                    for c in range(0, deep, depth):
                        raw = load(x, (starts, int64(c)))
                        acc = multiply(acc, raw, kernel_of, int32(at + int32(c) * pitch))
        write(acc, (first_row, line, column, m, n, scales, operands + ((),)))

    kernel.__name__ = f"convolution_direct_{tiling}{'_spread' if spread else ''}{epilogue}"
    kernel.blocks_per_sm = BLOCKS
    return kernel
