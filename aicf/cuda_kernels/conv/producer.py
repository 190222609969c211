"""The producers of convolutions on Hopper, as GEMMs one of whose operands are windows, which TMA finds by itself in its im2col mode.

A box of windows goes on from a row of them to the next one, and to the next image. What of a K-tile is what:

    forward, data gradient   a: channels of windows, K-major. K goes from place to place of the kernel, along each of which from K-tile to
                             K-tile of channels; what a K-tile has beyond the last channel is zeros. b: these channels of the kernel there
    weight gradient          64 windows: a is what dy has there, M-major; b what they have of x, N-major: 64 columns are channels at one
                             place. Columns go from place to place, along each of which from 64 channels to the next
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ..dsl import device, int32, uint32
from ..gemm.epilogue import Epilogue
from ..gemm.wgmma_body import placer_of, work_tiles_of
from ..gemm.wgmma_tiling import WgmmaTiling, k_tile
from ..hopper.copies import bringer
from ..hopper.ring import advancer
from ..hopper.units import ATOM, SWIZZLE_BYTES
from ..ptx import expect, load_box, load_windows, wait_phase

PLACE, FURTHER = 16, 8  # bits: of 64 channels above those of an offset, whose two axes have so many each


class Geometry(NamedTuple):
    """Windows over an image, among a kernel's sizes. x is the axis whose neighbours are nearer."""

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


# Numbers after a data gradient's Geometry: the first window's place in the kernel, steps from it along x and along y, the first K-tile of channels.
PLACES = 4


def window_finder(at: int) -> Any:
    """`window_at(window, sizes)`: the image of the window of this number, and where in it the window begins."""

    def window_at(window, sizes):
        line = uint32(window // uint32(sizes[at]))
        image = uint32(line // uint32(sizes[at + 1]))
        x = int32(int32(window - line * uint32(sizes[at])) * sizes[at + 2] + sizes[at + 4])
        y = int32(int32(line - image * uint32(sizes[at + 1])) * sizes[at + 3] + sizes[at + 5])
        return int32(image), x, y

    return device(window_at)


def windows_by_channels(tiling: WgmmaTiling, epilogue: Epilogue, stages: int, transposed: bool) -> Any:
    """`produce(base, full, maps, walk, sizes)` of a convolution, or of a data gradient: as a GEMM's in gemm/wgmma_body.py. sizes: after m, n and k a
    `Geometry`.

    transposed  b is the kernel as it is in memory, N-major, with its places in reverse. After the Geometry there are `PLACES` numbers: a K-tile's place
                is the first and so many steps along x and along y. Of strides a launch has those places only that reach its elements of x; where
                none does, one K-tile after the last channel, which is zeros
    """
    assert tiling.together == 1 and not tiling.narrow_n and not tiling.stream and not epilogue.batch, tiling
    tile_m, tile_k, at = tiling.m, k_tile(epilogue.dtype), 3
    stage_bytes, a_bytes = tiling.stage_bytes, tiling.a_bytes
    nbytes, empty = (tiling.m + tiling.n) * SWIZZLE_BYTES, 8 * stages
    load_a, load_b = load_windows(2), kernel_loader(tiling.n, transposed)
    first_chunk, following, kernel_of = places_of_kernel(at + len(Geometry._fields), transposed)
    make_plan, tile_of, k_tiles_of, _ = work_tiles_of(tiling, epilogue)
    place, window_at = placer_of(tiling, False), window_finder(at)
    wait, announce, advance = wait_phase(), expect(), advancer(stages)

    def produce(base, full, maps, walk, sizes):
        _, _, rows, columns, _, _, _, _ = walk
        places_x, apart_x, apart_y = uint32(sizes[at + 6]), sizes[at + 7], sizes[at + 8]
        chunk0, chunks = first_chunk(sizes), uint32(sizes[at + 9])
        stage, phase = uint32(0), uint32(1)  # of the phase before the first: all stages are empty
        plan = make_plan(walk, sizes)
        work_tile, apart, end = plan[0], plan[1], plan[2]
        while work_tile < end:
            row, column, batch_coord, _ = place(tile_of(work_tile, plan), rows, columns, sizes)
            _, count = k_tiles_of(work_tile, batch_coord, walk, plan)
            image, x, y = window_at(uint32(row * tile_m), sizes)
            kernel, chunk, place_y, place_x = uint32(0), chunk0, uint32(0), uint32(0)
            for _ in range(int32(count)):
                ready = uint32(full + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                announce(ready, uint32(nbytes))
                a_at = uint32(base + stage * uint32(stage_bytes))
                channel = int32(chunk * tile_k)
                further_x, further_y = int32(int32(place_x) * apart_x), int32(int32(place_y) * apart_y)
                load_a(a_at, maps[0], ready, channel, x, y, image, further_x, further_y)
                b_place = kernel_of(kernel, place_x, place_y, sizes)
                load_b(uint32(a_at + uint32(a_bytes)), maps[1], ready, channel, b_place, int32(column))
                stage, phase = advance(stage, phase)
                chunk = uint32(chunk + uint32(1))
                if chunk == chunks:
                    chunk, kernel = chunk0, following(kernel)
                    place_x = uint32(place_x + uint32(1))
                    if place_x == places_x:
                        place_x, place_y = uint32(0), uint32(place_y + uint32(1))
            work_tile = uint32(work_tile + apart)

    return device(produce)


CONVOLUTION = functools.partial(windows_by_channels, transposed=False)
DATA_GRADIENT = functools.partial(windows_by_channels, transposed=True)


def places_of_kernel(at: int, transposed: bool) -> tuple[Any, Any, Any]:
    """(`first_chunk(sizes)`: the first K-tile of channels of each place; `following(kernel)`: the number of the next place; `kernel_of(kernel, place_x,
    place_y, sizes)`: which place of the kernel that is)."""
    if not transposed:
        zero, following = device(lambda sizes: uint32(0)), device(lambda kernel: uint32(kernel + uint32(1)))
        return zero, following, device(lambda kernel, x, y, sizes: int32(kernel))

    def kernel_of(kernel, place_x, place_y, sizes):
        return int32(sizes[at] + int32(place_x) * sizes[at + 1] + int32(place_y) * sizes[at + 2])

    return device(lambda sizes: uint32(sizes[at + 3])), device(lambda kernel: kernel), device(kernel_of)


def kernel_loader(tile_n: int, transposed: bool) -> Any:
    """`load(to, map, ready, channel, place, column)`: a K-tile of a kernel (O, places, C): of channels by a tile of O; or transposed, of O by a
    tile of channels, 64 at a time."""
    load, boxes = load_box(3), tile_n // ATOM
    if not transposed:
        return device(
            lambda to, map, ready, channel, place, column: load(to, map, ready, channel, place, column)
        )

    def load_boxes(to, map, ready, channel, place, column):
        for i in range(boxes):
            load(uint32(to + uint32(i * ATOM * SWIZZLE_BYTES)), map, ready, int32(column + i * ATOM), place, channel)  # fmt: skip

    return device(load_boxes)


def windows_by_rows(tiling: WgmmaTiling, epilogue: Epilogue, stages: int) -> Any:
    """The same of a weight gradient, of splits of the windows. sizes: after m, n, k and k of a split a `Geometry`."""
    assert tiling.together == 1 and not tiling.narrow_n and not tiling.stream and epilogue.split, tiling
    tile_m, tile_k, slabs, at = tiling.m, k_tile(epilogue.dtype), tiling.n // ATOM, 4
    stage_bytes, a_bytes = tiling.stage_bytes, tiling.a_bytes
    nbytes, empty = (tiling.m + tiling.n) * SWIZZLE_BYTES, 8 * stages
    load_a, load_b = bringer(tile_m, (False, ()), tile_k, load_box), slab_loader(slabs)
    slabs_of = slab_words(slabs, slab_finder(at))
    make_plan, tile_of, k_tiles_of, _ = work_tiles_of(tiling, epilogue)
    place, window_at = placer_of(tiling, epilogue.batch > 0), window_finder(at)
    wait, announce, advance = wait_phase(), expect(), advancer(stages)

    def produce(base, full, maps, walk, sizes):
        _, _, rows, columns, _, _, _, _ = walk
        stage, phase = uint32(0), uint32(1)  # of the phase before the first: all stages are empty
        plan = make_plan(walk, sizes)
        work_tile, apart, end = plan[0], plan[1], plan[2]
        while work_tile < end:
            row, column, batch_coord, _ = place(tile_of(work_tile, plan), rows, columns, sizes)
            begin, count = k_tiles_of(work_tile, batch_coord, walk, plan)
            words = slabs_of(uint32(uint32(column) // uint32(ATOM)), sizes)
            for step in range(int32(begin), int32(begin + count)):
                window = uint32(uint32(step) * uint32(tile_k))
                image, x, y = window_at(window, sizes)
                ready = uint32(full + uint32(8) * stage)
                wait(uint32(ready + uint32(empty)), phase)
                announce(ready, uint32(nbytes))
                a_at = uint32(base + stage * uint32(stage_bytes))
                load_a(a_at, maps[0], ready, int32(row * tile_m), int32(window), ())
                load_b(words, uint32(a_at + uint32(a_bytes)), maps[1], ready, x, y, image)
                stage, phase = advance(stage, phase)
            work_tile = uint32(work_tile + apart)

    return device(produce)


def slab_finder(at: int) -> Any:
    """`slab(number, sizes)`: which 64 channels, and how far along both axes, in one word. After the last one, the last."""

    def slab(number, sizes):
        chunks, places_x = uint32(sizes[at + 9]), uint32(sizes[at + 6])
        number = uint32(min(number, uint32(uint32(uint32(sizes[1]) // uint32(ATOM)) - uint32(1))))
        kernel = uint32(number // chunks)
        place_y = uint32(kernel // places_x)
        further_x = uint32(uint32(kernel - place_y * places_x) * uint32(sizes[at + 7]))
        further_y = uint32(place_y * uint32(sizes[at + 8]))
        chunk = uint32(number - kernel * chunks)
        return uint32((chunk << uint32(PLACE)) | (further_y << uint32(FURTHER)) | further_x)

    return device(slab)


def slab_words(count: int, slab_of: Any) -> Any:
    """`all(first, sizes)`: the words of so many slabs, from a number on."""
    i = count - 1
    if count == 1:
        return device(lambda first, sizes: (slab_of(first, sizes),))
    others = slab_words(i, slab_of)
    return device(lambda first, sizes: (*others(first, sizes), slab_of(uint32(first + uint32(i)), sizes)))


def slab_loader(count: int) -> Any:
    """`load(slabs, to, map, ready, x, y, image)`: each, one after the other, of the windows from one on."""
    i, load_windows_of = count - 1, load_windows(2)
    others = slab_loader(i) if i else device(lambda slabs, to, map, ready, x, y, image: None)

    def load(slabs, to, map, ready, x, y, image):
        others(slabs, to, map, ready, x, y, image)
        slab = slabs[i]
        channel = int32(int32(slab >> uint32(PLACE)) * ATOM)
        further_x = int32(slab & uint32(2**FURTHER - 1))
        further_y = int32((slab >> uint32(FURTHER)) & uint32(2**FURTHER - 1))
        load_windows_of(uint32(to + uint32(i * ATOM * SWIZZLE_BYTES)), map, ready, channel, x, y, image, further_x, further_y)  # fmt: skip

    return device(load)
