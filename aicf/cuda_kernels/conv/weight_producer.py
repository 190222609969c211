"""The producer of a convolution's weight gradient on Hopper: K-tiles are of 64 windows, of which a is what dy has there, and b what they have of x.

a is M-major, 64 channels of y at a time; b is N-major: 64 columns are channels of x at one place of the kernel, which TMA finds in its im2col
mode. Columns go from place to place, along each of which from 64 channels to the next: a tile has several of either.
"""

from __future__ import annotations

from typing import Any

from ..dsl import device, int32, uint32
from ..gemm.epilogue import Epilogue
from ..gemm.wgmma_scheduler import placer_of, work_tiles_of
from ..gemm.wgmma_tiling import WgmmaTiling, k_tile
from ..hopper.copies import bringer
from ..hopper.ring import advancer
from ..hopper.units import ATOM, SWIZZLE_BYTES
from ..ptx import expect, load_box, load_windows, wait_phase

PLACE, FURTHER = 16, 8  # bits: of 64 channels above those of an offset, whose two axes have so many each


def weight_producer(tiling: WgmmaTiling, epilogue: Epilogue, stages: int) -> Any:
    """`produce(base, full, maps, walk, sizes)`, as a GEMM's in gemm/wgmma_body.py. sizes: behind those of splits of k, a `Geometry`."""
    assert tiling.together == 1 and not tiling.narrow_n and not tiling.stream and epilogue.split, tiling
    tile_m, tile_k, slabs = tiling.m, k_tile(epilogue.dtype), tiling.n // ATOM
    stage_bytes, a_bytes = tiling.stage_bytes, tiling.a_bytes
    nbytes, empty, at = (tiling.m + tiling.n) * SWIZZLE_BYTES, 8 * stages, 4
    bring_a, load = bringer(tile_m, (False, ()), tile_k, load_box), load_windows(2)
    make_plan, tile_of, k_tiles_of, _ = work_tiles_of(tiling, epilogue)
    place = placer_of(tiling, epilogue.batch > 0)
    wait, announce, advance = wait_phase(), expect(), advancer(stages)
    slab_of = device(slab_at(at))

    def load_slab(i, slab, to, map, ready, x, y, image):
        channel = int32(int32(slab >> uint32(PLACE)) * ATOM)
        further_x = int32(slab & uint32(2**FURTHER - 1))
        further_y = int32((slab >> uint32(FURTHER)) & uint32(2**FURTHER - 1))
        load(uint32(to + uint32(i * ATOM * SWIZZLE_BYTES)), map, ready, channel, x, y, image, further_x, further_y)  # fmt: skip

    bring_b, slabs_of = brought(slabs, device(load_slab)), known(slabs, slab_of)

    def produce(base, full, maps, walk, sizes):
        _, _, rows, columns, _, _, _, _ = walk
        width, height, step_x, step_y = uint32(sizes[at]), uint32(sizes[at + 1]), sizes[at + 2], sizes[at + 3]
        first_x, first_y = sizes[at + 4], sizes[at + 5]
        stage, phase = uint32(0), uint32(1)  # of the phase before the first: all stages are empty
        plan = make_plan(walk, sizes)
        work_tile, apart, end = plan[0], plan[1], plan[2]
        while work_tile < end:
            row, column, batch_coord, _ = place(tile_of(work_tile, plan), rows, columns, sizes)
            begin, count = k_tiles_of(work_tile, batch_coord, walk, plan)
            given = slabs_of(uint32(uint32(column) // uint32(ATOM)), sizes)
            for step in range(int32(begin), int32(begin + count)):
                window = uint32(uint32(step) * uint32(tile_k))
                line = uint32(window // width)
                image = uint32(line // height)
                x = int32(int32(window - line * width) * step_x + first_x)
                y = int32(int32(line - image * height) * step_y + first_y)
                ready = uint32(full + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                announce(ready, uint32(nbytes))
                a_at = uint32(base + stage * uint32(stage_bytes))
                bring_a(a_at, maps[0], ready, int32(row * tile_m), int32(window), ())
                bring_b(given, uint32(a_at + uint32(a_bytes)), maps[1], ready, x, y, int32(image))
                stage, phase = advance(stage, phase)
            work_tile = uint32(work_tile + apart)

    return device(produce)


def slab_at(at: int) -> Any:
    """`slab(number, sizes)`: which 64 channels, and how far along both axes, in one word. Behind the last one, the last."""

    def slab(number, sizes):
        chunks, places_x = uint32(sizes[at + 9]), uint32(sizes[at + 6])
        number = uint32(min(number, uint32(uint32(over64(sizes[1])) - uint32(1))))
        kernel = uint32(number // chunks)
        place_y = uint32(kernel // places_x)
        further_x = uint32(uint32(kernel - place_y * places_x) * uint32(sizes[at + 7]))
        further_y = uint32(place_y * uint32(sizes[at + 8]))
        chunk = uint32(number - kernel * chunks)
        return uint32((chunk << uint32(PLACE)) | (further_y << uint32(FURTHER)) | further_x)

    return slab


@device
def over64(n):
    return uint32(uint32(n) // uint32(ATOM))


def known(count: int, slab_of: Any) -> Any:
    """`all(first, sizes)`: the words of so many slabs, from a number on."""
    i = count - 1
    if count == 1:
        return device(lambda first, sizes: (slab_of(first, sizes),))
    others = known(i, slab_of)
    return device(lambda first, sizes: (*others(first, sizes), slab_of(uint32(first + uint32(i)), sizes)))


def brought(count: int, load_slab: Any) -> Any:
    """`bring(slabs, to, map, ready, x, y, image)`: each, one behind the other."""
    i = count - 1

    def bring_last(slabs, to, map, ready, x, y, image):
        load_slab(int32(i), slabs[i], to, map, ready, x, y, image)

    if count == 1:
        return device(bring_last)
    others, last = brought(i, load_slab), device(bring_last)

    def bring(slabs, to, map, ready, x, y, image):
        others(slabs, to, map, ready, x, y, image)
        last(slabs, to, map, ready, x, y, image)

    return device(bring)
