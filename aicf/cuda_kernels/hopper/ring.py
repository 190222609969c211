"""Rings of stages in shared memory, as those walk through them who fill and empty them: a stage, and the parity of its phase.

A producer begins with phase 1, of the phase before the first, in which all stages are empty; a consumer with phase 0.
"""

from __future__ import annotations

from typing import Any

from ..dsl import device, uint32
from ..ptx import arrive, arrive_remote, expect, in_block, wait_phase
from .shared_plan import Ring


def advancer(stages: int) -> Any:
    """`advance(stage, phase)`: the next stage of the ring, and the parity of its phase."""

    def advance(stage, phase):
        if stage == stages - 1:
            return uint32(0), uint32(phase ^ uint32(1))
        return uint32(stage + uint32(1)), phase

    return device(advance)


def places_of_stages(stages: int, stage_bytes: int) -> tuple[Any, Any]:
    """(`here(stage, first)`, `go_on(stage, phase, ready, a, b)`): the barrier of a stage and its descriptors, of which those of the
    first are given; and all of the next one, each a sum: products would be an instruction more for each."""
    apart, back = stage_bytes // 16, stages - 1

    def here(stage, first):
        further = uint32(stage * uint32(apart))
        return uint32(first[0] + stage * uint32(8)), uint32(first[1] + further), uint32(first[2] + further)

    def go_on(stage, phase, ready, a, b):
        if stage == stages - 1:
            ready = uint32(ready - uint32(8 * back))
            return (
                uint32(0),
                uint32(phase ^ uint32(1)),
                ready,
                uint32(a - uint32(back * apart)),
                uint32(b - uint32(back * apart)),
            )
        ready = uint32(ready + uint32(8))
        return uint32(stage + uint32(1)), phase, ready, uint32(a + uint32(apart)), uint32(b + uint32(apart))

    return device(here), device(go_on)


def skipper(stages: int) -> Any:
    """`skip(stage, phase, count)`: as `advance`, `count` times."""

    def skip(stage, phase, count):
        passed = uint32(stage + count)
        return uint32(passed % uint32(stages)), uint32((phase ^ passed // uint32(stages)) & uint32(1))

    return device(skip)


def filler(ring: Ring, nbytes: int, load: Any) -> Any:
    """`fill(base, to, stage, phase, map, row, head, batch)`: a stage of a ring, as soon as it is empty."""
    wait, announce, full, empty = wait_phase(), expect(), ring.full, ring.empty

    def fill(base, to, stage, phase, map, row, head, batch):
        barrier = uint32(base + uint32(8) * stage)
        wait(uint32(barrier + uint32(empty)), phase)
        announce(uint32(barrier + uint32(full)), uint32(nbytes))
        load(uint32(to + stage * uint32(nbytes)), map, uint32(barrier + uint32(full)), row, head, batch)

    return device(fill)


def releaser(cluster: int = 1) -> Any:
    """`release(empty, member)`: this warpgroup has read a stage. One arrival on its empty barrier: the first thread's; or, of a cluster
    whose blocks each load a part of the stage, one at each of them."""
    if cluster == 1:
        tell = arrive()

        def release(empty, member):
            if member == 0:
                tell(empty)

        return device(release)
    tell_remote, there = arrive_remote(), in_block()

    def release_all(empty, member):
        if member < cluster:
            tell_remote(there(empty, uint32(member)))

    return device(release_all)
