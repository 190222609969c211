"""The producer of a convolution on Hopper: K-tiles of a are channels of windows, which TMA finds by itself; of b, channels of a place of the kernel.

Rows of a are windows: (image, y, x). K goes from place to place of the kernel, along each of which from K-tile to K-tile of channels; what
a K-tile has beyond the last channel is zeros. A box of windows goes on from a row of them to the next one, and to the next image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..dsl import device, int32, uint32
from ..gemm.epilogue import Epilogue
from ..gemm.wgmma_scheduler import placer_of, work_tiles_of
from ..gemm.wgmma_tiling import WgmmaTiling, k_tile
from ..hopper.ring import advancer
from ..hopper.units import SWIZZLE_BYTES
from ..ptx import expect, load_box, load_windows, wait_phase


class Geometry(NamedTuple):
    """Of windows over an image, behind the sizes of a product: what a kernel is told when it starts. x is the axis whose neighbours are nearer."""

    width: int  # windows along x
    height: int
    step_x: int
    step_y: int
    first_x: int  # where the first window begins
    first_y: int
    places_x: int  # of the kernel, along x
    apart_x: int  # from place to place
    apart_y: int
    chunks: int  # K-tiles of channels


def producer(tiling: WgmmaTiling, epilogue: Epilogue, stages: int) -> Any:
    """`produce(base, full, maps, walk, sizes)`, as a GEMM's in gemm/wgmma_body.py."""
    assert tiling.together == 1 and not tiling.narrow_n and not tiling.stream, tiling
    tile_m, tile_k = tiling.m, k_tile(epilogue.dtype)
    stage_bytes, a_bytes = tiling.stage_bytes, tiling.a_bytes
    nbytes, empty, at = (tiling.m + tiling.n) * SWIZZLE_BYTES, 8 * stages, 4 if epilogue.split else 3
    bring, load = load_windows(2), load_box(3)
    make_plan, tile_of, k_tiles_of, _ = work_tiles_of(tiling, epilogue)
    place = placer_of(tiling, epilogue.batch > 0)
    wait, announce, advance = wait_phase(), expect(), advancer(stages)

    def produce(base, full, maps, walk, sizes):
        _, _, rows, columns, _, _, _, _ = walk
        width, height, step_x, step_y = uint32(sizes[at]), uint32(sizes[at + 1]), sizes[at + 2], sizes[at + 3]
        first_x, first_y, places_x = sizes[at + 4], sizes[at + 5], uint32(sizes[at + 6])
        apart_x, apart_y, chunks = sizes[at + 7], sizes[at + 8], uint32(sizes[at + 9])
        stage, phase = uint32(0), uint32(1)  # of the phase before the first: all stages are empty
        plan = make_plan(walk, sizes)
        work_tile, apart, end = plan[0], plan[1], plan[2]
        while work_tile < end:
            row, column, batch_coord, _ = place(tile_of(work_tile, plan), rows, columns, sizes)
            begin, count = k_tiles_of(work_tile, batch_coord, walk, plan)
            window = uint32(row * tile_m)
            line = uint32(window // width)
            image = uint32(line // height)
            x = int32(int32(window - line * width) * step_x + first_x)
            y = int32(int32(line - image * height) * step_y + first_y)
            kernel = uint32(uint32(begin) // chunks)
            chunk = uint32(uint32(begin) - kernel * chunks)
            place_y = uint32(kernel // places_x)
            place_x = uint32(kernel - place_y * places_x)
            for _ in range(int32(count)):
                ready = uint32(full + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                announce(ready, uint32(nbytes))
                a_at = uint32(base + stage * uint32(stage_bytes))
                channel = int32(chunk * tile_k)
                further_x, further_y = int32(int32(place_x) * apart_x), int32(int32(place_y) * apart_y)
                bring(a_at, maps[0], ready, channel, x, y, int32(image), further_x, further_y)
                load(uint32(a_at + uint32(a_bytes)), maps[1], ready, channel, int32(kernel), int32(column))
                stage, phase = advance(stage, phase)
                chunk = uint32(chunk + uint32(1))
                if chunk == chunks:
                    chunk, kernel = uint32(0), uint32(kernel + uint32(1))
                    place_x = uint32(place_x + uint32(1))
                    if place_x == places_x:
                        place_x, place_y = uint32(0), uint32(place_y + uint32(1))
            work_tile = uint32(work_tile + apart)

    return device(produce)
