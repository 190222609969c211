"""Threads of a block in one thread of the host: each runs until it waits for something, and then another does.

The host's own threads would take turns by locks, of which a block of 256 has thousands; a switch here is a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

try:
    from greenlet import getcurrent, greenlet
except ModuleNotFoundError as error:  # tests for a GPU, which stand in the same files, do without
    missing, getcurrent, greenlet = error, None, object
else:
    missing = None


class Stuck(Exception):
    """Nothing can go on, and not everything is done."""


class Fiber(greenlet):
    """`switch` runs it until it waits, or is `dead`; what it raises is raised there."""

    def __init__(self, run: Callable[[], None]) -> None:
        if missing:
            raise missing
        super().__init__(run)
        self.ready: Callable[[], bool] = lambda: True

    def wait(self, ready: Callable[[], bool]) -> None:
        """Called by itself; whoever switches to it again looks whether it is ready."""
        self.ready = ready
        self.parent.switch()


class Meeting:
    """A barrier of so many fibers, again and again."""

    def __init__(self, count: int) -> None:
        self.count, self.arrived = count, 0

    def wait(self) -> None:
        self.arrived += 1
        everyone = -(-self.arrived // self.count) * self.count
        if self.arrived < everyone:
            getcurrent().wait(lambda: self.arrived >= everyone)


def take_turns(fibers: Sequence[Fiber], told: Callable[[Stuck], None] = lambda stuck: None) -> None:
    """Runs all to their ends. Where none can go on, all do, as compiled code between them can't be left in the middle: `told` is, and
    then they wait for nothing any more; it is raised in the end."""
    alive, stuck = list(fibers), None
    while alive:
        able = alive if stuck else [fiber for fiber in alive if fiber.ready()]
        if not able:
            stuck, able = Stuck(f"{len(alive)} of {len(fibers)} threads wait for others"), alive
            told(stuck)
        for fiber in able:
            fiber.switch()
        alive = [fiber for fiber in alive if not fiber.dead]
    if stuck:
        raise stuck
