"""Limits on times that hold on any machine.

Tests run side by side, on machines that others share: what takes 0.1 s alone takes 0.4 s at times. So a limit goes by how long a
known piece of Python takes here and now, or by the time of another run; and what is over it is tried again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import reduce

NOMINAL = 5e-3  # seconds that `_known` takes where limits were set: a core of an EPYC, alone
TRIES = 5  # interruptions only ever add to a time


def least_seconds(work: Callable[[], object], limit: float) -> float:
    """Of this thread, for `work`, as long as it would take there; tried again while it is over the limit."""
    best = float("inf")
    for _ in range(TRIES):
        before, taken, after = _seconds(_known), _seconds(work), _seconds(_known)
        best = min(best, taken / max(1.0, min(before, after) / NOMINAL))
        if best < limit:
            break
    return best


def least_ratio(long: Callable[[], object], short: Callable[[], object], limit: float) -> float:
    """How many times as long the one takes as the other; tried again while it is over the limit."""
    most = least = float("inf")
    for _ in range(TRIES):
        most, least = min(most, _seconds(long)), min(least, _seconds(short))
        if most < limit * least:
            break
    return most / least


def _seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


class _Node:
    __slots__ = ("key", "left", "weight")

    def __init__(self, key: tuple[int, ...], weight: float, left: _Node | None) -> None:
        self.key, self.weight, self.left = key, weight, left


def _known() -> float:
    """Objects, tuples, dictionaries, calls and sorting, as compilers are made of."""
    found: dict[tuple[int, ...], _Node] = {}
    last, collecting = None, gc.isenabled()
    gc.disable()  # there may be millions of objects of others
    for n in range(6000):
        key = (n * 7919 % 4093, n % 61, n // 61)
        last = found.setdefault(key, _Node(key, 1.0 / (n + 1), last))
    ranked = sorted(found.values(), key=lambda node: (node.key[1], -node.weight))
    if collecting:
        gc.enable()
    return reduce(lambda total, node: total + node.weight * len(node.key), ranked, 0.0)
