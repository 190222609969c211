"""Beam search over where regions end: k best hypotheses at each op. k = LENGTH_LIMIT keeps all and finds the optimum over
intervals, unless ops side by side make more hypotheses than that.

A hypothesis is an open region with the cheapest partition of all before it. What is still to pay depends on its anchor and
last op alone, so one per anchor is enough, and of those the k cheapest are kept. An open region that no kernel takes yet is
charged for its longest taken prefix and for the rest op by op, as if it were cut there.
"""

from __future__ import annotations

from dataclasses import dataclass

from .compose import Composer
from .nodes import Open, Stop


@dataclass(frozen=True)
class _Closed:
    """The cheapest partition found of ops 0..end-1: its last region, and the partition before that."""

    us: float
    region: Open | None = None
    before: _Closed | None = None


@dataclass(frozen=True)
class _Hypothesis:
    before: _Closed
    region: Open
    us: float  # closed and open


def search(composer: Composer, n: int, k: int) -> list[Open] | None:
    """A partition of ops 0..n-1 into regions that kernels take, as cheap as k hypotheses find; None if they find none."""
    closed: list[_Closed | None] = [_Closed(0.0), *[None] * n]
    hypotheses: list[_Hypothesis] = []
    made: list[list[_Hypothesis]] = [
        [] for _ in range(n)
    ]  # by the last op; a step may be of several ops side by side
    for i in range(n):
        for h in hypotheses:
            following = composer.compose(h.region)
            if not isinstance(following, Stop):
                made[following.last].append(_charged(composer, h.before, following, h.us))
        before = closed[i]
        if before is not None:
            for region in (composer.start(i), composer.beside(i)):
                if region is not None:
                    made[region.last].append(_charged(composer, before, region, before.us))
        grown = made[i]
        for h in grown:
            known = closed[i + 1]
            if h.region.us is not None and (known is None or h.before.us + h.region.us < known.us):
                closed[i + 1] = _Closed(h.before.us + h.region.us, h.region, h.before)
        hypotheses = sorted(grown, key=lambda h: (h.us, h.region.anchor))[:k]
    last = closed[n]
    if last is None:
        return None
    regions = []
    while last.region is not None:
        regions.append(last.region)
        assert last.before is not None
        last = last.before
    return regions[::-1]


def _charged(composer: Composer, before: _Closed, region: Open, otherwise: float) -> _Hypothesis:
    if region.us is not None:
        return _Hypothesis(before, region, before.us + region.us)
    count = region.node.abreast
    apart = composer.apart(region.last + 1 - count, count)
    return _Hypothesis(before, region, otherwise + (apart[0] if apart else 0.0))
