"""How results of a Hopper kernel become elements of x that lie a stride apart: rows of channels, stored by warps.

Each warp puts 64 columns of its 16 rows in shared memory, by stmatrix, as `matrices` of gemm/wgmma_store.py does for boxes, and stores them from there: 16
bytes a lane, four rows an instruction. Nothing is shared between warps. Where a row lies is found by two divisions, in each subtile anew: there
are no registers to keep it in.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dsl import cuda, device, int32, uint32
from ..gemm.epilogue import Epilogue
from ..gemm.wgmma_columns import OWN, in_columns
from ..gemm.wgmma_store import mapped
from ..gemm.wgmma_tiling import WgmmaTiling
from ..hopper.units import ATOM, SUBTILE_BYTES
from ..ptx import copy_run_below, global_address
from .producer import PLACES, Geometry

WIDTH, HEIGHT = 3, 4  # among sizes, of the elements of a phase
PITCHES = (
    3 + len(Geometry._fields) + PLACES
)  # elements from image to image, and from row to row and column to column of a phase
RUN = 8  # halves of a lane's 16 bytes
TOGETHER = 4  # rows of a warp's stores


def strided_results(tiling: WgmmaTiling, epilogue: Epilogue) -> tuple[Any, Any, Any]:
    """(`ask`, `write`, `done`), as `runs_of_results` of gemm/wgmma_store.py: a result of halves, whose rows have a multiple of `RUN` columns."""
    assert len(epilogue.stores) == 1 and epilogue.column_sums is None and not epilogue.batch, epilogue
    blocks, subtiles_at, buffers = tiling.row_blocks, tiling.subtiles_at(1), tiling.buffers(1)
    own = buffers * SUBTILE_BYTES
    size, put_all, load_rows, preloaded, distributed = mapped(tiling, epilogue, ())
    store_rows = rows_storer()

    def write_subtile(i, run, given):
        first, (subtiles, member, tile_coord, sizes, scales, operands) = given
        subtile = (first + i) // size
        row = np.int32(tile_coord[0] + subtile % blocks * 64)
        column = np.int32(tile_coord[1] + subtile // blocks * ATOM)
        at = uint32(subtiles + uint32(subtile % buffers * SUBTILE_BYTES))
        cuda.syncwarp()
        added = put_all(run, (at, member, row, column, sizes, scales, operands))
        cuda.syncwarp()
        store_rows(at, member, row, column, sizes, operands[3][0])
        return added

    write_each = in_columns(tiling, epilogue, size, tuple(range(OWN)), write_subtile, preloaded, distributed)

    def write(acc, words, base, maps, group, member, tile_coord, sizes, scales, operands, parity):
        subtiles = uint32(base + uint32(subtiles_at + group * own))
        env = subtiles, member, tile_coord, sizes, scales, operands
        write_each(acc, words, env, member, tile_coord, sizes, operands)

    def ask(base, maps, group, member, tile_coord, sizes, operands):
        return load_rows(tile_coord, member, sizes[1], operands)

    return device(ask), device(write), device(lambda member: None)


def rows_storer() -> Any:
    """`store(at, member, row, column, sizes, out)`: a warp's 16 rows of a subtile in shared memory, those of m and n that there are."""
    copy, address = copy_run_below(), global_address()

    def store(at, member, row, column, sizes, out):
        lane, warp_row = int32(member & 31), int32((member >> 5) * 16)
        run = int32(lane & 7)
        q = int32(column + run * RUN)
        width, height = uint32(sizes[WIDTH]), uint32(sizes[HEIGHT])
        for i in range(0, 16, TOGETHER):
            r = int32(warp_row + i + (lane >> 3))
            source = uint32(at + uint32(r * 2 * ATOM + (run ^ (r & 7)) * 16))
            which = uint32(row + r)
            line = uint32(which // width)
            image = uint32(line // height)
            x, y = uint32(which - line * width), uint32(line - image * height)
            start = np.int64(image) * sizes[PITCHES] + np.int64(y) * sizes[PITCHES + 1] + np.int64(x) * sizes[PITCHES + 2]  # fmt: skip
            limit = int32(sizes[1]) if int32(which) < int32(sizes[0]) else int32(0)
            copy(address(out, start + q), source, q, limit)

    return device(store)
