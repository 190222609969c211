"""What stands in the brackets of `x[1:, ::-2, None]`, read against a shape: where each axis starts, ends and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Refused(Exception):
    """An index that means nothing here: what is wrong with it, and what to write."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.hint = hint


class Taken(NamedTuple):
    """The elements start, start + step, … below limit of one axis; backwards where `reverse`. A single one loses its axis."""

    start: int
    limit: int
    step: int = 1
    reverse: bool = False
    single: bool = False
    indices: Any = None  # integers that choose elements, in place of start and limit

    @property
    def size(self) -> int:
        return len(range(self.start, self.limit, self.step))


@dataclass(frozen=True)
class Subscript:
    """`axes` has what is taken of each axis of x; `kept` the result's axes in order: an axis of x, or None for a new one of size 1."""

    axes: tuple[Taken, ...]
    kept: tuple[int | None, ...]

    @property
    def gathered(self) -> list[int]:
        return [n for n, taken in enumerate(self.axes) if taken.indices is not None]


def read(index: Any, shape: Sequence[int]) -> Subscript:
    """NumPy's basic indexing, and integers that choose along one axis."""
    entries = list(index) if isinstance(index, tuple) else [index]
    wild = [n for n, entry in enumerate(entries) if entry is Ellipsis]
    if len(wild) > 1:
        raise Refused(
            "an index has `...` twice", "`...` stands for all axes that are not named: once says it"
        )
    named = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if named > len(shape):
        raise Refused(f"an index of {named} axes where there are {len(shape)}", "None makes a new axis")
    at = wild[0] if wild else len(entries)
    entries[at : at + 1] = [slice(None)] * (len(shape) - named)
    axes: list[Taken] = []
    kept: list[int | None] = []
    for entry in entries:
        if entry is None:
            kept.append(None)
            continue
        axis = len(axes)
        axes.append(_taken(entry, axis, shape[axis]))
        if not axes[-1].single:
            kept.append(axis)
    made = Subscript(tuple(axes), tuple(kept))
    if len(made.gathered) > 1:
        raise Refused(
            "indices of several axes at once",
            "choose along one axis after the other: x[i][:, j]; or one number for both: x.reshape(-1)[i * n + j]",
        )
    if made.gathered and any(taken.single for taken in axes):
        raise Refused(
            "a number and indices in one index", "one after the other says which axes are left: x[0][:, i]"
        )
    return made


def _taken(entry: Any, axis: int, size: int) -> Taken:
    if isinstance(entry, slice):
        return _sliced(entry, size)
    if isinstance(entry, bool) or str(getattr(entry, "dtype", "")) == "bool":
        raise Refused(
            "a mask as index: how much it leaves is not known before a run",
            "ctx.select(mask, x, 0) keeps the shape",
        )
    if isinstance(entry, (int, np.integer)):
        if not -size <= entry < size:
            raise Refused(
                f"index {entry} is out of range for axis {axis} of size {size}",
                f"from {-size} to {size - 1}" if size else "the axis is empty",
            )
        at = int(entry) % size
        return Taken(at, at + 1, single=True)
    if hasattr(entry, "shape") and hasattr(entry, "dtype"):
        return Taken(0, size, indices=entry)
    raise Refused(
        f"{entry!r} as index",
        "an index is made of whole numbers, slices, `...`, None, and integers in a Value",
    )


def _sliced(entry: slice, size: int) -> Taken:
    for bound in (entry.start, entry.stop, entry.step):
        if not (bound is None or (isinstance(bound, (int, np.integer)) and not isinstance(bound, bool))):
            raise Refused(
                f"a slice from, to or by {bound!r}", "bounds are whole numbers, known while a graph is built"
            )
    if entry.step == 0:
        raise Refused("a slice by 0", "x[::1] takes all")
    places = range(*entry.indices(size))
    if not places:
        return Taken(0, 0)
    first, last = min(places[0], places[-1]), max(places[0], places[-1])
    return Taken(first, last + 1, abs(places.step), places.step < 0 and len(places) > 1)
