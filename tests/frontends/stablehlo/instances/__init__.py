"""Random instances of StableHLO's ops, seeded: valid ones, looser ones whose sizes are open or bounded, and ones with one thing changed."""

from __future__ import annotations

from ..mlir_worker import BODIES, Instance
from . import bodies, collectives, control, elementwise, indexing, movement, windows  # noqa: F401  fill the table
from .changes import changed
from .making import MAKERS, Maker

__all__ = ["MAKERS", "instances"]


def instances(count: int, seed: int) -> list[Instance]:
    """`count` instances, in turn of each op."""
    names = sorted(MAKERS)
    made = []
    for n in range(count):
        m = Maker(seed * 1_000_003 + n)
        given = MAKERS[names[n % len(names)]](m, names[n % len(names)])
        bare = (
            given.name in BODIES and given.bodies is None
        )  # inferred alone: MLIR verifies it with its bodies only
        made.append(changed(m, given) if m.chance(0.55) and not bare else given)
    return made
