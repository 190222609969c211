"""A valid instance of ops, and for each constraint what breaks it: one change of the instance."""

from __future__ import annotations

from dataclasses import replace

from ..mlir_worker import Instance
from .bases import BASES
from .bodies import BODIES
from .plain import PLAIN, Change

__all__ = ["BASES", "CHANGES", "changed"]

CHANGES: list[Change] = [*PLAIN, *BODIES]


def changed(change: Change) -> Instance:
    base, _, what = change
    given = BASES[base]
    made = replace(given, operands=list(given.operands), attributes=dict(given.attributes))
    for key, value in what.items():
        if isinstance(key, int):
            made.operands[key] = value
        elif key in ("operands", "results", "bodies"):
            setattr(made, key, value)
        elif value is None:
            del made.attributes[key]
        else:
            made.attributes[key] = value
    return made
