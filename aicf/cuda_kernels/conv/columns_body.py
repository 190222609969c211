"""im2col: each window of a tensor of channels last as a row of a matrix, places by channels, zeros where a window is outside.

A row has a pitch of whole units of 16 bytes; what is behind its last column is zeros. Limit: memory, and integer arithmetic where
channels come one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda, deferred, device, int32, int64, intrinsic, ir, types
from ..llvm import const
from ..tiles.storage import emit_load_parts
from .positions_body import element_of, place_of, window_of
from .tiling import FLIGHT, THREADS, TILE


@deferred
def copy_runs(dtype: DType, count: int, width: int) -> Any:
    """`copy(source, target, starts, places)`: `count` runs of `width` elements, all of them on their way before the first one is
    written. A run from -1 is zeros, one to -1 goes nowhere; starts are aligned to runs."""

    @intrinsic
    def copy(typing, source, target, starts, places):
        def codegen(ctx, b, sig, args):
            zero, loaded = const(0, 64), []
            for i in range(count):
                at, before = b.extract_value(args[2], i), b.basic_block
                with b.if_then(b.icmp_signed(">=", at, zero)):
                    parts = emit_load_parts(b, dtype, b.gep(args[0], [at]), width)
                    inside = b.basic_block
                merged = []
                for part in parts:
                    phi = b.phi(part.type)
                    phi.add_incoming(ir.Constant(part.type, 0), before)
                    phi.add_incoming(part, inside)
                    merged.append(phi)
                loaded.append(merged)
            for i, parts in enumerate(loaded):
                to = b.extract_value(args[3], i)
                vector = ir.VectorType(parts[0].type, len(parts))
                with b.if_then(b.icmp_signed(">=", to, zero)):
                    raw = vector(ir.Undefined)
                    for j, part in enumerate(parts):
                        raw = b.insert_element(raw, part, const(j))
                    place = b.bitcast(b.gep(args[1], [to]), vector.as_pointer())
                    b.store(raw, place, align=width * dtype.itemsize)
            return ctx.get_dummy_value()

        return types.void(source, target, starts, places), codegen

    return copy


@functools.cache
def columns(dtype: DType, width: int, spread: bool) -> Callable[..., None]:
    """`kernel(x, out, sizes, made, steps, first, window, apart, extents, between)`: see `WindowGeometry`.

    sizes  rows, rows of a block, units of `width` columns in a row and how many of them threads do side by side, channels, pitch
    width  neighbours that are copied at once, all of one place: it divides the channels
    """
    move, locate = copy_runs(dtype, FLIGHT, width), element_of(spread)
    window_at, place_at = window_of(), place_of()

    def one(row, env):
        """(first element to read, first element to write) of a row of the block; -1 for none."""
        z_of, y_of, x_of, base_of, place, inside, sizes, start, further, extents, between = env
        at, to = int64(-1), int64(-1)
        if row < sizes[1] and start + row < sizes[0]:
            to = int64(start + row) * sizes[5] + further
            if inside:
                z, y, x = (
                    int32(z_of[row] + place[0]),
                    int32(y_of[row] + place[1]),
                    int32(x_of[row] + place[2]),
                )
                found = locate(z, y, x, extents, between)
                if found >= 0:
                    at = base_of[row] + int64(found) * sizes[4] + place[3]
        return at, to

    find = device(one)

    def kernel(x, out, sizes, made, steps, first, window, apart, extents, between):
        z_of = cuda.shared.array(TILE, int32)
        y_of = cuda.shared.array(TILE, int32)
        x_of = cuda.shared.array(TILE, int32)
        base_of = cuda.shared.array(TILE, int64)
        rows, tile, units, lanes, channels = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
        thread, start = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x) * tile
        if thread < tile and start + thread < rows:
            image, z, y, along = window_at(int32(start + thread), made)
            z_of[thread] = int32(z * steps[0] + first[0])
            y_of[thread] = int32(y * steps[1] + first[1])
            x_of[thread] = int32(along * steps[2] + first[2])
            base_of[thread] = (
                int64(image) * int64(int32(extents[0] * int32(extents[1] * extents[2]))) * channels
            )
        cuda.syncthreads()
        line = int32(np.uint32(thread) // np.uint32(lanes))
        unit, across = int32(thread - int32(line * lanes)), int32(np.uint32(THREADS) // np.uint32(lanes))
        places = int32(window[0] * int32(window[1] * window[2]))
        if line < across:
            while unit < units:
                column = int32(unit * width)
                place = int32(np.uint32(column) // np.uint32(channels))
                channel = int32(column - int32(place * channels))
                dz, dy, dx = place_at(place, window, apart)
                env = (
                    z_of, y_of, x_of, base_of, (dz, dy, dx, channel), place < places, sizes, start, column,
                    extents, between,
                )  # fmt: skip
                row = line
                while row < tile:
                    a, a_to = find(row, env)
                    b, b_to = find(int32(row + across), env)
                    c, c_to = find(int32(row + 2 * across), env)
                    d, d_to = find(int32(row + 3 * across), env)
                    move(x, out, (a, b, c, d), (a_to, b_to, c_to, d_to))
                    row = int32(row + FLIGHT * across)
                unit = int32(unit + lanes)

    kernel.__name__ = f"convolution_columns{width}{'_spread' if spread else ''}_{dtype}"
    return kernel
