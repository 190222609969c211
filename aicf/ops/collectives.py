"""What all ranks of a run do together, in place: sums of gradients, copies of parameters. Of one rank they change nothing."""

from __future__ import annotations

from ..types import TensorSpec
from .schema import Number, op, require

COLLECTIVE = (
    "collective"  # the core of ops in which all ranks take part, whether this rank reads the result or not
)


@op("all_reduce", alias={0: (0, "must")}, core=COLLECTIVE)
def all_reduce(x: Number, *, ranks: int = 1, mean: bool = False, bucket: int = 0):
    """The sum of x over all ranks, or their mean, in place. Each rank has an x of this type, and all have the same result.

    bucket  those of one number are one transfer. It has no gradient: what is summed are gradients

    C1  ranks is 1 or more
    """
    return _in_place(x, ranks)


@all_reduce.reference
def _(x, ranks, mean, bucket):
    assert ranks == 1, "a reference knows this rank alone"
    return x.copy()


@op("broadcast_from", alias={0: (0, "must")}, core=COLLECTIVE)
def broadcast_from(x: Number, *, ranks: int = 1, root: int = 0, bucket: int = 0):
    """What the rank `root` has as x, in place on all others.

    bucket  those of one number are one transfer. It has no gradient

    C1  ranks is 1 or more
    C2  root is one of them
    """
    made = _in_place(x, ranks)
    require(0 <= root < ranks, "C2", f"root is {root}, expected one of {ranks} ranks, from 0 on")
    return made


@broadcast_from.reference
def _(x, ranks, root, bucket):
    assert ranks == 1, "a reference knows this rank alone"
    return x.copy()


def _in_place(x: TensorSpec, ranks: int) -> TensorSpec:
    require(ranks >= 1, "C1", f"ranks is {ranks}, expected 1 or more")
    return x


for _schema in (all_reduce, broadcast_from):
    for _s in ((4, 7), (1025,), (0, 3), ()):
        _schema.samples(_s)
all_reduce.samples((5,), mean=True, bucket=3)
