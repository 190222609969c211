"""Limits on times that hold on any machine: by how much slower Python is here and now than where they were set.

Tests run side by side, on machines that others share: what takes 0.1 s alone takes 0.4 s at times. A piece of Python of a known time
is run before and after what is timed, and takes as much longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import reduce

NOMINAL = 10e-3  # seconds that `_known` takes where limits were set: one of two cores of an EPYC, alone
ENOUGH = 5  # tries; interruptions only ever add


class _Node:
    __slots__ = ("key", "left", "weight")

    def __init__(self, key: tuple[int, ...], weight: float, left: _Node | None) -> None:
        self.key, self.weight, self.left = key, weight, left


def _known() -> float:
    """Objects, tuples, dictionaries, calls and sorting, as compilers are made of."""
    found: dict[tuple[int, ...], _Node] = {}
    last = None
    for n in range(6000):
        key = (n * 7919 % 4093, n % 61, n // 61)
        last = found.setdefault(key, _Node(key, 1.0 / (n + 1), last))
    ranked = sorted(found.values(), key=lambda node: (node.key[1], -node.weight))
    return reduce(lambda total, node: total + node.weight * len(node.key), ranked, 0.0)


def _seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def least_seconds(work: Callable[[], object], limit: float) -> float:
    """Of this thread, for `work`, as long as it would take there; tried again while it is over the limit."""
    best = float("inf")
    for _ in range(ENOUGH):
        before, taken, after = _seconds(_known), _seconds(work), _seconds(_known)
        best = min(best, taken / max(1.0, max(before, after) / NOMINAL))
        if best < limit:
            break
    return best
