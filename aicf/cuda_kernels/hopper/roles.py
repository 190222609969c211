"""Who does what in a block, and who goes first: registers of producers and of consumers, and consumers that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dsl import device, int32
from ..ptx import arrive_threads, setmaxnreg_dec, setmaxnreg_inc, sync_threads
from .units import WARPGROUP


def registers(of_threads: tuple[int, int] | None) -> tuple[Any, Any]:
    """(`dec_registers()` for the producer, `inc_registers()` for consumers): so many of a thread; None: nobody gives or takes any."""
    if of_threads is None:
        nothing = device(lambda: None)
        return nothing, nothing
    return setmaxnreg_dec(of_threads[0]), setmaxnreg_inc(of_threads[1])


def ordered_barrier(consumers: int, ping_pong: bool) -> tuple[Any, Any]:
    """(`wait(turn_group)`, `pass_on(turn_group)`): of two turn groups, one after the other issues the wgmmas of its tile.

    Parity cannot tell a phase from the one two earlier, so groups must consume in order. It pays, too: one turn group has the
    tensor cores while the other stores its results. Named barrier ids follow the epilogue's.
    """
    if not ping_pong:
        nothing = device(lambda turn_group: None)
        return nothing, nothing
    barriers, both = (1 + consumers, 2 + consumers), WARPGROUP * consumers
    wait = chosen([sync_threads(barrier, both) for barrier in barriers])
    return wait, chosen([arrive_threads(barrier, both) for barrier in reversed(barriers)])


def chosen(instructions: Sequence[Any]) -> Any:
    """`do(i)`: the i-th of some instructions that differ in a constant."""
    first, *rest = instructions
    if not rest:
        return device(lambda i: first())
    others = chosen(rest)

    def do(i):
        if i == 0:
            first()
        else:
            others(int32(i - 1))

    return device(do)
