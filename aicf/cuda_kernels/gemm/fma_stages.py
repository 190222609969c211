"""Slices of the operands of fma.py: where they lie in shared memory, how they come there, and how rows of k become rows of lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dsl import device, int32, uint32
from ..ptx import Place, arrive, expect, load_box, turn_runs, wait_phase
from ..ptx.quads import RUN
from .epilogue import Epilogue
from .fma import PAD, WARP_TILE, Order, Tiling

# --- where things lie -------------------------------------------------------------------------------------------------


def pitch_of(order: Order, lines: int) -> int:
    """Bytes from a k to the next one, of a slice that is multiplied."""
    return 4 * lines + PAD * order.k_fast


def places(order: Order, lines: int, lanes: int) -> Callable[[int, int], Place]:
    """The Place of a thread's run of a quad, by its first line and k: its runs are `lanes` runs apart."""
    pitch = pitch_of(order, lines)
    return lambda line, k: (0, line // RUN * lanes * 16 + k * pitch)


def lanes_of(tiling: Tiling) -> Any:
    """`of(member)`: (row, column) of a thread's warp, and its own in it. Neighbours read the same row of a, or column of b."""
    warps_n = tiling.warps_n

    def of(member):
        lane, warp = uint32(member % uint32(32)), uint32(member // uint32(32))
        row = uint32(lane & uint32(1) | lane >> uint32(4) << uint32(1))
        column = uint32(lane >> uint32(1) & uint32(7))
        return uint32(warp // uint32(warps_n)), uint32(warp % uint32(warps_n)), row, column

    return device(of)


def locator(tiling: Tiling, a_order: Order, b_order: Order) -> Any:
    """`locate(base, thread, number)`: where the lines of a thread begin in the number-th slice of its part, of a and of b."""
    lane_of, members = lanes_of(tiling), tiling.members
    _, a_lies = stages_of(tiling, a_order, True)
    _, b_lies = stages_of(tiling, b_order, False)

    def locate(base, thread, number):
        warp_row, warp_column, row, column = lane_of(uint32(thread % uint32(members)))
        part = uint32(thread // uint32(members))
        a = uint32(a_lies(base, part, number) + warp_row * uint32(WARP_TILE * 4) + row * uint32(16))
        b = uint32(b_lies(base, part, number) + warp_column * uint32(WARP_TILE * 4) + column * uint32(16))
        return a, b

    return device(locate)


def stages_of(tiling: Tiling, order: Order, is_a: bool) -> tuple[Any, Any]:
    """(`arrives(base, part, number)`, `lies(base, part, number)`): where the number-th slice of a part is brought to, and where it is
    multiplied from. Rows of k come behind the two stages for turned slices; but those of the first slice to the first, which is free."""
    lines, stages, raws, part_bytes = (
        tiling.m if is_a else tiling.n,
        tiling.stages,
        tiling.raws,
        tiling.part_bytes,
    )
    start, turned, nbytes = (
        0 if is_a else tiling.ring_bytes(tiling.m),
        tiling.turned_bytes(lines),
        4 * lines * tiling.step,
    )

    def at(base, part, offset):
        return uint32(base + part * uint32(part_bytes) + uint32(start) + offset)

    at = device(at)
    if not order.k_fast:
        lies = device(
            lambda base, part, number: at(base, part, uint32(number % uint32(stages) * uint32(nbytes)))
        )
        return lies, lies

    def arrives(base, part, number):
        if number == 0:
            return at(base, part, uint32(0))
        return at(
            base,
            part,
            uint32(uint32(2 * turned) + uint32(number - uint32(1)) % uint32(raws) * uint32(nbytes)),
        )

    def lies(base, part, number):
        return at(base, part, uint32(uint32(number + uint32(1)) % uint32(2) * uint32(turned)))

    return device(arrives), device(lies)


def barriers_of(tiling: Tiling) -> Any:
    """`of(base, part, number)`: the barrier that the number-th slice of a part arrives at, and the parity of its phase; those where it is
    empty, and turned, lie behind."""
    stages, barriers_at = tiling.stages, tiling.barriers_at

    def of(base, part, number):
        times = uint32(number // uint32(stages))
        slot = uint32(uint32(part * uint32(stages) + number) - times * uint32(stages))
        return uint32(base + uint32(barriers_at) + uint32(8) * slot), uint32(times & uint32(1))

    return device(of)


# --- slices -----------------------------------------------------------------------------------------------------------


def bringer(tiling: Tiling, a_order: Order, b_order: Order, epilogue: Epilogue) -> Any:
    """`bring(base, part, number, maps, sizes, notes)`: asks for the number-th slice of a part."""
    announce, barrier_of, nbytes, parts = expect(), barriers_of(tiling), tiling.stage_bytes, tiling.parts
    notes_at, depth, split = tiling.notes_at, tiling.step, epilogue.split
    bring_a, bring_b, (_, point_of, _) = _loader(a_order), _loader(b_order), layers_of(tiling, epilogue)
    (a_arrives, _), (b_arrives, _) = stages_of(tiling, a_order, True), stages_of(tiling, b_order, False)

    def bring(base, part, number, maps, sizes, notes):
        full, _ = barrier_of(base, part, number)
        announce(full, uint32(nbytes))
        point = point_of(notes)
        k = int32((part + number * uint32(parts)) * uint32(depth))
        if split:
            k = int32(k + point[0] * sizes[3])
        bring_a(a_arrives(base, part, number), maps[0], full, int32(notes[notes_at]), k, point)
        bring_b(b_arrives(base, part, number), maps[1], full, int32(notes[notes_at + 1]), k, point)

    return device(bring)


def _loader(order: Order) -> Any:
    """`bring(to, map, ready, line, k, point)`: a slice of an operand."""
    load, axes = load_box(2 + len(order.axes)), order.axes
    corner = device((lambda line, k: (k, line)) if order.k_fast else (lambda line, k: (line, k)))
    if not axes:
        return device(lambda to, map, ready, line, k, point: load(to, map, ready, *corner(line, k)))
    x, y = axes[0], axes[-1]
    if len(axes) == 1:
        return device(lambda to, map, ready, line, k, point: load(to, map, ready, *corner(line, k), point[x]))
    return device(
        lambda to, map, ready, line, k, point: load(to, map, ready, *corner(line, k), point[x], point[y])
    )


def turner(tiling: Tiling, a_order: Order, b_order: Order) -> tuple[Any, int, Any]:
    """(`turn(base, thread, number)`: a part's threads turn what comes as rows of k of its number-th slice, when it has come and the one
    before the last is multiplied; where, behind full, the barrier is that tells that a slice may be multiplied; `room(base, part,
    number)`: until there is room for the slice that is brought when the number-th is the next).
    """
    wait, tell, barrier_of, members = wait_phase(), arrive(), barriers_of(tiling), tiling.members
    empty = 8 * tiling.parts * tiling.stages
    if not (a_order.k_fast or b_order.k_fast):

        def room(base, part, number):
            if number > 1:
                full, phase = barrier_of(base, part, uint32(number - uint32(2)))
                wait(uint32(full + uint32(empty)), phase)

        return device(lambda base, thread, number: None), 0, device(room)
    turn_a, turn_b = turn_of(tiling, a_order, True), turn_of(tiling, b_order, False)

    def turn(base, thread, number):
        part, member = uint32(thread // uint32(members)), uint32(thread % uint32(members))
        if number > 1:
            before, phase = barrier_of(base, part, uint32(number - uint32(2)))
            wait(uint32(before + uint32(empty)), phase)
        full, phase = barrier_of(base, part, number)
        wait(full, phase)
        # `ldmatrix` waits for lanes that leave these loops apart: a syncwarp here took 0.2 to 1.7 % of a product
        turn_a(base, part, member, number)
        turn_b(base, part, member, number)
        # each lane, for what it wrote: a tool that follows machine code sees no order between a warp's writes and one lane's arrival
        tell(uint32(full + uint32(2 * empty)))

    return device(turn), 2 * empty, device(lambda base, part, number: None)


def turn_of(tiling: Tiling, order: Order, is_a: bool) -> Any:
    """`turn(base, part, member, number)`: of one operand, by whole warps. A lane gets a k of four lines: the same word of each of the four
    matrices that `ldmatrix` reads, whose rows are four k of a line. Rows of a matrix are of two fours of lines and four quads: they
    lie in different banks, and so do runs that eight lanes store."""
    if not order.k_fast:
        return device(lambda base, part, member, number: None)
    lines = tiling.m if is_a else tiling.n
    pitch, to_pitch, warps = 4 * tiling.step, pitch_of(order, lines), tiling.members // 32
    swizzle = (lambda row: row % 8) if pitch == 128 else (lambda row: row // 2 % 4)
    # a warp has eight lines at a time, then those that lie behind all warps'; and 16 of k, or twice as many
    steps = [(i, j) for i in range(lines // (8 * warps)) for j in range(tiling.step // 16)]
    sources = tuple((j * 64, i * 8 * warps * pitch) for i, j in steps)
    targets = tuple((0, i * 32 * warps + j * 16 * to_pitch) for i, j in steps)
    move, (arrives, lies), four_apart = (
        turn_runs(sources, targets),
        stages_of(tiling, order, is_a),
        swizzle(4),
    )
    narrow = pitch != 128

    def turn(base, part, member, number):
        lane, warp = uint32(member % uint32(32)), uint32(member // uint32(32))
        line, four, quad = (
            uint32(lane >> uint32(3)),
            uint32(lane & uint32(1)),
            uint32(lane >> uint32(1) & uint32(3)),
        )
        turned = uint32(line >> uint32(1)) if narrow else line
        chunk = uint32(quad ^ turned ^ four * uint32(four_apart))
        at = uint32((line + four * uint32(4) + warp * uint32(8)) * uint32(pitch) + chunk * uint32(16))
        k, to_four = uint32(line * uint32(4) + (lane & uint32(3))), uint32(lane >> uint32(2) & uint32(1))
        to = uint32(k * uint32(to_pitch) + (warp * uint32(2) + to_four) * uint32(16))
        move(uint32(arrives(base, part, number) + at), uint32(lies(base, part, number) + to))

    return device(turn)


def layers_of(tiling: Tiling, epilogue: Epilogue) -> tuple[Any, Any, Any]:
    """(`keep(notes, layer)`, `point(notes)`, `of(notes, sizes)`): what `block_place` returns of a place in a batch, or of a part of
    k; its index along each axis."""
    at = tiling.notes_at + 3
    if not epilogue.batch:
        return device(lambda notes, layer: None), device(lambda notes: ()), device(lambda notes, sizes: ())
    if epilogue.batch == 1:

        def keep_one(notes, layer):
            notes[at] = int32(layer[1])

        def one(notes, sizes):
            x = np.int64(notes[at])
            return x * sizes[0], x

        return device(keep_one), device(lambda notes: (int32(notes[at]),)), device(one)

    def keep_two(notes, layer):
        notes[at], notes[at + 1] = int32(layer[1]), int32(layer[2])

    def two(notes, sizes):
        x, y = np.int64(notes[at]), np.int64(notes[at + 1])
        return (x * sizes[4] + y) * sizes[0], x, y

    return device(keep_two), device(lambda notes: (int32(notes[at]), int32(notes[at + 1]))), device(two)
