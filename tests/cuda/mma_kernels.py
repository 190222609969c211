"""Small kernels around cp.async, ldmatrix and mma.sync, of one warp, to run on a GPU and on the model of an Ampere multiprocessor."""

from __future__ import annotations

import numpy as np
from memory_kernels import launch
from ptx_kernels import aligned

import aicf.cuda_kernels.ptx as ptx
from aicf.cuda_kernels.dsl import cuda, device, int32, types, uint32
from aicf.cuda_kernels.gemm.operands.stages import Fragments, StageLoad, Stored
from aicf.cuda_kernels.tiles.layout import Layout
from aicf.cuda_kernels.tiles.register_tile import store_tile
from aicf.cuda_kernels.tiles.tile import zeros
from aicf.registry.variant import In, Launch, Num, Out
from aicf.types import f32, i32

UNIT = 16  # bytes, that each lane brings
LINES = 32  # of an operand of `multiplied`


def staged(width: int, transposed: bool, nbytes: int, registers: bool = False) -> Launch:
    """Four 8 x 8 matrices of halves, of which operand 0 has the first so many bytes, to shared memory, `width` bytes at a time, and
    zeros behind them; in result 0 each lane's words of these. registers: by way of them, as 2 bytes must."""
    count = UNIT // width

    def span(env):
        lane, nbytes = env
        return (
            np.int64(lane * UNIT // 2),
            np.int64(width // 2),
            np.int64(width),
            np.int64(max(0, nbytes - lane * UNIT) // width),
        )

    places = tuple((0, i * width) for i in range(count))
    address, commit, wait = ptx.shared_address(), ptx.commit_copies(), ptx.wait_copies(0)
    load = ptx.load_matrices(transposed)
    fetch, keep = ptx.copy_async(places, 1, span, width, 2), device(lambda to, units: None)
    if registers:
        fetch, keep = ptx.load_unit_words(count, 1, span, width, 2, True), ptx.store_unit_words(places, width)
        commit = wait = device(lambda: None)

    def kernel(x, out, nbytes):
        lane = int32(cuda.threadIdx.x)
        own = uint32(aligned(address(cuda.shared.array(0, types.uint8))) + uint32(lane * UNIT))
        keep(own, fetch(x, own, (lane, nbytes)))
        commit()
        wait()
        cuda.syncthreads()
        words = load(own)
        out[4 * lane], out[4 * lane + 1] = int32(words[0]), int32(words[1])
        out[4 * lane + 2], out[4 * lane + 3] = int32(words[2]), int32(words[3])

    return launch(kernel, In(0), Out(0), Num(nbytes, i32), threads=32, shared=2048)


def multiplied(kind: str, mn_major: bool, steps: int) -> Launch:
    """Result 0, 32 x 32 of f32: a bᵀ of 32 lines each, over so many steps of 32 bytes of k, of which the last one's fragments are read before.
    Operands have k contiguous, or lines."""
    itemsize = 4 if kind.startswith("tf32") else 2
    stored = Stored(LINES, steps * 32 // itemsize, itemsize, mn_major)
    bring, sums = StageLoad(stored, 16, 32), Layout(LINES, LINES)
    a, b = (Fragments(stored, LINES // 16, first) for first in (True, False))
    nbytes, length, extent = stored.nbytes, stored.row // itemsize, stored.k
    line_step, k_step = (1, length) if mn_major else (length, 1)

    address, commit, wait = ptx.shared_address(), ptx.commit_copies(), ptx.wait_copies(0)
    first_of, fetch, offset, a_lane, b_lane = (
        bring.first(),
        bring.fetch(),
        stored.offset(),
        a.lane(),
        b.lane(),
    )
    read = ptx.read_fragments(a.places, b.places, *turned(stored))
    multiply = ptx.multiply_steps(kind, a.places, b.places, *turned(stored))
    finish, start = ptx.multiply_fragments(kind, LINES // 16), zeros(sums.count)
    put, place = store_tile(sums, f32), sums.place()

    def kernel(a, b, out):
        lane = int32(cuda.threadIdx.x)
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        line, depth = first_of(lane)
        at, own = np.int64(line * line_step + depth * k_step), uint32(base + uint32(offset(line, depth)))
        left = at, int32(LINES - line), int32(extent - depth), np.int64(line_step), np.int64(k_step)
        fetch(a, own, left)
        fetch(b, uint32(own + uint32(nbytes)), left)
        commit()
        wait()
        cuda.syncthreads()
        a_line, a_k = a_lane(lane)
        b_line, b_k = b_lane(lane)
        a_at = uint32(base + uint32(offset(a_line, a_k)))
        b_at = uint32(base + uint32(nbytes + offset(b_line, b_k)))
        acc, fragments = multiply(start, read(a_at, b_at), a_at, b_at)
        put(finish(acc, fragments), (out, (place(0, 0, lane), (LINES, LINES), LINES)))

    return launch(kernel, In(0), In(1), Out(0), threads=32, shared=1024 + 2 * nbytes)


def turned(stored: Stored) -> tuple[bool, bool]:
    """Whether ldmatrix transposes a and b."""
    return (stored.mn_major and not stored.by_numbers,) * 2
