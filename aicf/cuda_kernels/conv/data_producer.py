"""The producer of a convolution's data gradient on Hopper: as `producer` of producer.py over dy, but that b is the kernel as it lies in memory.

Its transpose is N-major: 64 channels of x at a time, of 64 channels of y at one place. Which place, goes back as windows go on: a K-tile's
is `base` and so many steps along x and along y. Of strides a launch has those places only that reach its elements
of x; where none does, one K-tile behind the last channel, which is zeros.
"""

from __future__ import annotations

from typing import Any

from ..dsl import device, int32, uint32
from ..gemm.epilogue import Epilogue
from ..gemm.wgmma_scheduler import placer_of, work_tiles_of
from ..gemm.wgmma_tiling import WgmmaTiling, k_tile
from ..hopper.ring import advancer
from ..hopper.units import ATOM, SWIZZLE_BYTES
from ..ptx import expect, load_box, load_windows, wait_phase
from .producer import Geometry

# Numbers behind a Geometry: the first window's place in the kernel, steps from it along x and along y, the first K-tile of channels.
PLACES = 4


def columns_of_kernel(tile_n: int) -> Any:
    """`bring(to, map, ready, channel, place, column)`: 64 of k by a tile of columns, of a kernel (O, places, C)."""
    load, boxes = load_box(3), tile_n // ATOM

    def bring(to, map, ready, channel, place, column):
        for i in range(boxes):
            load(uint32(to + uint32(i * ATOM * SWIZZLE_BYTES)), map, ready, int32(column + i * ATOM), place, channel)  # fmt: skip

    return device(bring)


def data_producer(tiling: WgmmaTiling, epilogue: Epilogue, stages: int) -> Any:
    """`produce(base, full, maps, walk, sizes)`, as a GEMM's in gemm/wgmma_body.py. sizes: behind m, n and k a Geometry and `PLACES` numbers."""
    assert tiling.together == 1 and not tiling.narrow_n and not tiling.stream and not epilogue.batch, tiling
    tile_m, tile_k = tiling.m, k_tile(epilogue.dtype)
    stage_bytes, a_bytes = tiling.stage_bytes, tiling.a_bytes
    nbytes, empty, at = (tiling.m + tiling.n) * SWIZZLE_BYTES, 8 * stages, 3
    bring, load, behind = load_windows(2), columns_of_kernel(tiling.n), at + len(Geometry._fields)
    make_plan, tile_of, k_tiles_of, _ = work_tiles_of(tiling, epilogue)
    place = placer_of(tiling, False)
    wait, announce, advance = wait_phase(), expect(), advancer(stages)

    def produce(base, full, maps, walk, sizes):
        _, _, rows, columns, _, _, _, _ = walk
        width, height = uint32(sizes[at]), uint32(sizes[at + 1])
        first_x, first_y, places_x = sizes[at + 4], sizes[at + 5], uint32(sizes[at + 6])
        apart_x, apart_y, chunks = sizes[at + 7], sizes[at + 8], uint32(sizes[at + 9])
        origin, back_x, back_y, chunk0 = (
            sizes[behind],
            sizes[behind + 1],
            sizes[behind + 2],
            uint32(sizes[behind + 3]),
        )
        stage, phase = uint32(0), uint32(1)  # of the phase before the first: all stages are empty
        plan = make_plan(walk, sizes)
        work_tile, apart, end = plan[0], plan[1], plan[2]
        while work_tile < end:
            row, column, batch_coord, _ = place(tile_of(work_tile, plan), rows, columns, sizes)
            _, count = k_tiles_of(work_tile, batch_coord, walk, plan)
            window = uint32(row * tile_m)
            line = uint32(window // width)
            image = uint32(line // height)
            x = int32(int32(window - line * width) * sizes[at + 2] + first_x)
            y = int32(int32(line - image * height) * sizes[at + 3] + first_y)
            place_x, place_y, chunk = uint32(0), uint32(0), chunk0
            for _ in range(int32(count)):
                ready = uint32(full + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                announce(ready, uint32(nbytes))
                a_at = uint32(base + stage * uint32(stage_bytes))
                channel = int32(chunk * tile_k)
                further_x, further_y = int32(int32(place_x) * apart_x), int32(int32(place_y) * apart_y)
                bring(a_at, maps[0], ready, channel, x, y, int32(image), further_x, further_y)
                kernel = int32(origin + int32(place_x) * back_x + int32(place_y) * back_y)
                load(uint32(a_at + uint32(a_bytes)), maps[1], ready, channel, kernel, int32(column))
                stage, phase = advance(stage, phase)
                chunk = uint32(chunk + uint32(1))
                if chunk == chunks:
                    chunk, place_x = chunk0, uint32(place_x + uint32(1))
                    if place_x == places_x:
                        place_x, place_y = uint32(0), uint32(place_y + uint32(1))
            work_tile = uint32(work_tile + apart)

    return device(produce)
