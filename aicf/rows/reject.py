"""Reject: why something is refused, as data."""

from __future__ import annotations

from typing import NamedTuple


class Reject(NamedTuple):
    """Why a variant does not take a region: the condition that failed, with the value seen."""

    condition: str
    reason: str

    def __str__(self) -> str:
        return self.reason
