"""What is where in a block's dynamic shared memory: regions, and the barriers of rings of stages, by offsets from a base that is a multiple
of 1024 bytes.

    plan = SharedPlan()
    tiles = plan.region(2 * 16384)            # its offset
    ring = plan.ring(2, arrivals=2)           # a full and an empty barrier for each of two stages
    …
    base = align(…)                           # in the kernel: see `aligned_base`
    if thread == 0:
        init(base)                            # `plan.init()`: all barriers
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..dsl import cuda, device, types, uint32
from ..ptx import barrier_init, fence_async, publish_barriers, shared_address

ALIGNMENT = 1024  # swizzles of 128 bytes repeat so
BARRIERS = 32  # of 8 bytes, that a plan has room for


class Ring(NamedTuple):
    """Stages that a producer fills and consumers empty, in turn. Barriers of stage s: `full` + 8 s, and `empty` + 8 s."""

    stages: int
    full: int
    empty: int


@dataclass
class SharedPlan:
    """Barriers lie first, then regions, each at a multiple of 1024 bytes unless it is said otherwise."""

    end: int = 8 * BARRIERS
    barriers: list[int] = field(default_factory=list)  # arrivals of each

    def region(self, nbytes: int, alignment: int = ALIGNMENT) -> int:
        """The offset of so many bytes."""
        at = -(-self.end // alignment) * alignment
        self.end = at + nbytes
        return at

    def ring(self, stages: int, arrivals: int, fills: int = 1) -> Ring:
        """So many arrivals, of producers, make a stage full; so many, of consumers, make it empty."""
        first = 8 * len(self.barriers)
        self.barriers += [fills] * stages + [arrivals] * stages
        assert len(self.barriers) <= BARRIERS, self
        return Ring(stages, first, first + 8 * stages)

    @property
    def nbytes(self) -> int:
        """That a block asks for: shared memory begins where it likes."""
        return self.end + ALIGNMENT

    def init(self) -> Any:
        """`init(base)`: by one thread; then the block synchronizes."""
        return _init(tuple(self.barriers))


def _init(arrivals: tuple[int, ...]) -> Any:
    make, publish, fence = _inits(arrivals), publish_barriers(), fence_async()

    def init(base):
        make(base)
        publish()
        fence()

    return device(init)


def _inits(arrivals: tuple[int, ...], first: int = 0) -> Any:
    init, count = barrier_init(), arrivals[first]
    if first + 1 == len(arrivals):
        return device(lambda base: init(uint32(base + uint32(8 * first)), uint32(count)))
    others = _inits(arrivals, first + 1)

    def run(base):
        init(uint32(base + uint32(8 * first)), uint32(count))
        others(base)

    return device(run)


def aligned_base() -> Any:
    """`base()`: where the block's dynamic shared memory begins, up to a multiple of 1024."""
    address = shared_address()

    def base():
        return uint32(
            (address(cuda.shared.array(0, types.uint8)) + uint32(ALIGNMENT - 1)) & uint32(0xFFFFFC00)
        )

    return device(base)
