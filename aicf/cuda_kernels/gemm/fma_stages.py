"""K-tiles of the operands of fma.py: where they lie in shared memory, how they are loaded there, and how K-major becomes MN-major."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dsl import device, int32, uint32
from ..hopper.copies import loader
from ..ptx import Place, arrive, expect, load_box, transpose_runs, wait_phase
from ..ptx.quads import RUN
from .epilogue import Epilogue
from .tilings import PAD, WARP_TILE, FmaTiling, Order

# --- where things lie -------------------------------------------------------------------------------------------------


def pitch_of(order: Order, tile_mn: int) -> int:
    """Bytes from a k to the next one, of a K-tile that is multiplied."""
    return 4 * tile_mn + PAD * order.k_major


def places(order: Order, tile_mn: int, lanes: int) -> Callable[[int, int], Place]:
    """The Place of a thread's run of a quad, by its first m or n and k: its runs are `lanes` runs apart."""
    pitch = pitch_of(order, tile_mn)
    return lambda mn, k: (0, mn // RUN * lanes * 16 + k * pitch)


def lanes_of(tiling: FmaTiling) -> Any:
    """`of(member)`: (row, column) of a thread's warp, and its own in it. Neighbours read the same row of a, or column of b."""
    warps_n = tiling.warps_n

    def of(member):
        lane, warp = uint32(member % uint32(32)), uint32(member // uint32(32))
        row = uint32(lane & uint32(1) | lane >> uint32(4) << uint32(1))
        column = uint32(lane >> uint32(1) & uint32(7))
        return uint32(warp // uint32(warps_n)), uint32(warp % uint32(warps_n)), row, column

    return device(of)


def locator(tiling: FmaTiling, a_order: Order, b_order: Order) -> Any:
    """`locate(base, thread, number)`: where the rows of a thread begin in the number-th K-tile of its warp group, of a and of b."""
    lane_of, warps_threads = lanes_of(tiling), tiling.warps_threads
    _, a_lies = stages_of(tiling, a_order, True)
    _, b_lies = stages_of(tiling, b_order, False)

    def locate(base, thread, number):
        warp_row, warp_column, row, column = lane_of(uint32(thread % uint32(warps_threads)))
        warp_group = uint32(thread // uint32(warps_threads))
        a = uint32(a_lies(base, warp_group, number) + warp_row * uint32(WARP_TILE * 4) + row * uint32(16))
        b = uint32(
            b_lies(base, warp_group, number) + warp_column * uint32(WARP_TILE * 4) + column * uint32(16)
        )
        return a, b

    return device(locate)


def stages_of(tiling: FmaTiling, order: Order, is_a: bool) -> tuple[Any, Any]:
    """(`arrives(base, warp_group, number)`, `lies(base, warp_group, number)`): where the number-th K-tile of a warp group is loaded to, and where it is
    multiplied from. K-major rows are loaded behind the two stages for transposed K-tiles; but those of the first K-tile to the first, which is free."""
    tile_mn, start = (tiling.m, 0) if is_a else (tiling.n, tiling.ring_bytes(tiling.m))
    stages, raws, warp_group_bytes = tiling.stages, tiling.raws, tiling.warp_group_bytes
    transposed, nbytes = tiling.transposed_bytes(tile_mn), 4 * tile_mn * tiling.step

    def at(base, warp_group, offset):
        return uint32(base + warp_group * uint32(warp_group_bytes) + uint32(start) + offset)

    at = device(at)
    if not order.k_major:

        def cyclic(base, warp_group, number):
            return at(base, warp_group, uint32(number % uint32(stages) * uint32(nbytes)))

        return (device(cyclic),) * 2

    def arrives(base, warp_group, number):
        if number == 0:
            return at(base, warp_group, uint32(0))
        behind = uint32(uint32(2 * transposed) + uint32(number - uint32(1)) % uint32(raws) * uint32(nbytes))
        return at(base, warp_group, behind)

    def lies(base, warp_group, number):
        return at(base, warp_group, uint32(uint32(number + uint32(1)) % uint32(2) * uint32(transposed)))

    return device(arrives), device(lies)


def barriers_of(tiling: FmaTiling) -> Any:
    """`of(base, warp_group, number)`: the barrier that the number-th K-tile of a warp group arrives at, and the parity of its phase; those where it is
    empty, and transposed, lie behind."""
    stages, barriers_at = tiling.stages, tiling.barriers_at

    def of(base, warp_group, number):
        times = uint32(number // uint32(stages))
        slot = uint32(uint32(warp_group * uint32(stages) + number) - times * uint32(stages))
        return uint32(base + uint32(barriers_at) + uint32(8) * slot), uint32(times & uint32(1))

    return device(of)


# --- K-tiles ----------------------------------------------------------------------------------------------------------


def bringer(tiling: FmaTiling, a_order: Order, b_order: Order, epilogue: Epilogue) -> Any:
    """`bring(base, warp_group, number, maps, sizes, notes)`: issues loads of the number-th K-tile of a warp group."""
    announce, barrier_of, nbytes = expect(), barriers_of(tiling), tiling.stage_bytes
    notes_at, tile_k, split, warp_groups = tiling.notes_at, tiling.step, epilogue.split, tiling.warp_groups
    bring_a, bring_b, (_, point_of, _) = (
        _loader(a_order),
        _loader(b_order),
        batch_origins_of(tiling, epilogue),
    )
    (a_arrives, _), (b_arrives, _) = stages_of(tiling, a_order, True), stages_of(tiling, b_order, False)

    def bring(base, warp_group, number, maps, sizes, notes):
        full, _ = barrier_of(base, warp_group, number)
        announce(full, uint32(nbytes))
        point = point_of(notes)
        k = int32((warp_group + number * uint32(warp_groups)) * uint32(tile_k))
        if split:
            k = int32(k + point[0] * sizes[3])
        bring_a(a_arrives(base, warp_group, number), maps[0], full, int32(notes[notes_at]), k, point)
        bring_b(b_arrives(base, warp_group, number), maps[1], full, int32(notes[notes_at + 1]), k, point)

    return device(bring)


def _loader(order: Order) -> Any:
    """`bring(to, map, ready, mn, k, point)`: a K-tile of an operand."""
    load = loader(load_box, order.axes)
    if order.k_major:
        return device(lambda to, map, ready, mn, k, point: load(to, map, ready, k, mn, point))
    return load


def transposer(tiling: FmaTiling, a_order: Order, b_order: Order) -> tuple[Any, int, Any]:
    """(`transpose(base, thread, number)`: a warp group's threads transpose what is loaded as K-major rows of its number-th K-tile, when it has arrived and the one
    before the last is multiplied; where, behind full, the barrier is that tells that a K-tile may be multiplied; `room(base, warp_group,
    number)`: until there is room for the K-tile that is loaded when the number-th is the next).
    """
    wait, tell, barrier_of, warps_threads = wait_phase(), arrive(), barriers_of(tiling), tiling.warps_threads
    empty = 8 * tiling.warp_groups * tiling.stages
    if not (a_order.k_major or b_order.k_major):

        def room(base, warp_group, number):
            if number > 1:
                full, phase = barrier_of(base, warp_group, uint32(number - uint32(2)))
                wait(uint32(full + uint32(empty)), phase)

        return device(lambda base, thread, number: None), 0, device(room)
    transpose_a, transpose_b = transpose_of(tiling, a_order, True), transpose_of(tiling, b_order, False)

    def transpose(base, thread, number):
        warp_group, member = uint32(thread // uint32(warps_threads)), uint32(thread % uint32(warps_threads))
        if number > 1:
            before, phase = barrier_of(base, warp_group, uint32(number - uint32(2)))
            wait(uint32(before + uint32(empty)), phase)
        full, phase = barrier_of(base, warp_group, number)
        wait(full, phase)
        # `ldmatrix` waits for lanes that leave these loops apart: a syncwarp here took 0.2 to 1.7 % of a product
        transpose_a(base, warp_group, member, number)
        transpose_b(base, warp_group, member, number)
        # each lane, for what it wrote: a tool that follows machine code sees no order between a warp's writes and one lane's arrival
        tell(uint32(full + uint32(2 * empty)))

    return device(transpose), 2 * empty, device(lambda base, warp_group, number: None)


def transpose_of(tiling: FmaTiling, order: Order, is_a: bool) -> Any:
    """`transpose(base, warp_group, member, number)`: of one operand, by whole warps. A lane gets a k of four rows: the same word of each of the four
    matrices that `ldmatrix` reads, whose rows are four k of a row. Rows of a matrix are of two fours of rows and four quads: they
    lie in different banks, and so do runs that eight lanes store."""
    if not order.k_major:
        return device(lambda base, warp_group, member, number: None)
    tile_mn = tiling.m if is_a else tiling.n
    pitch, to_pitch, warps = 4 * tiling.step, pitch_of(order, tile_mn), tiling.warps_threads // 32
    swizzle = (lambda row: row % 8) if pitch == 128 else (lambda row: row // 2 % 4)
    # a warp has eight rows at a time, then those that lie behind all warps'; and 16 of k, or twice as many
    steps = [(i, j) for i in range(tile_mn // (8 * warps)) for j in range(tiling.step // 16)]
    sources = tuple((j * 64, i * 8 * warps * pitch) for i, j in steps)
    targets = tuple((0, i * 32 * warps + j * 16 * to_pitch) for i, j in steps)
    move, (arrives, lies) = transpose_runs(sources, targets), stages_of(tiling, order, is_a)
    four_apart, narrow = swizzle(4), pitch != 128

    def transpose(base, warp_group, member, number):
        lane, warp = uint32(member % uint32(32)), uint32(member // uint32(32))
        row, four = uint32(lane >> uint32(3)), uint32(lane & uint32(1))
        quad = uint32(lane >> uint32(1) & uint32(3))
        swizzled = uint32(row >> uint32(1)) if narrow else row
        chunk = uint32(quad ^ swizzled ^ four * uint32(four_apart))
        at = uint32((row + four * uint32(4) + warp * uint32(8)) * uint32(pitch) + chunk * uint32(16))
        k, to_four = uint32(row * uint32(4) + (lane & uint32(3))), uint32(lane >> uint32(2) & uint32(1))
        to = uint32(k * uint32(to_pitch) + (warp * uint32(2) + to_four) * uint32(16))
        move(uint32(arrives(base, warp_group, number) + at), uint32(lies(base, warp_group, number) + to))

    return device(transpose)


def batch_origins_of(tiling: FmaTiling, epilogue: Epilogue) -> tuple[Any, Any, Any]:
    """(`keep(notes, origin)`, `point(notes)`, `of(notes, sizes)`): what `block_place` returns of a place in a batch, or of a split of
    k; its index along each axis."""
    at = tiling.notes_at + 3
    if not epilogue.batch:
        return device(lambda notes, origin: None), device(lambda notes: ()), device(lambda notes, sizes: ())
    if epilogue.batch == 1:

        def keep_one(notes, origin):
            notes[at] = int32(origin[1])

        def one(notes, sizes):
            x = np.int64(notes[at])
            return x * sizes[0], x

        return device(keep_one), device(lambda notes: (int32(notes[at]),)), device(one)

    def keep_two(notes, origin):
        notes[at], notes[at + 1] = int32(origin[1]), int32(origin[2])

    def two(notes, sizes):
        x, y = np.int64(notes[at]), np.int64(notes[at + 1])
        return (x * sizes[4] + y) * sizes[0], x, y

    return device(keep_two), device(lambda notes: (int32(notes[at]), int32(notes[at + 1]))), device(two)
