"""Faults: what a run found wrong with its data. A kernel can't raise: it writes a record, and whoever reads a result is told.

A record is i64 on the device: how many runs went wrong since it was last told, and of the first of them the row, the label,
how many classes there are, and the label that is left out. Of an index: its place, the index, the size of the axis, and INDEX.
"""

from __future__ import annotations

import numpy as np

from ..errors import LabelError, OutOfBoundsError
from .tensor import Tensor

RECORD = 5  # numbers
INDEX = -(2**63)  # in the place of a label that is left out: the record is of an index


class _Told:
    times = 0


def times_told() -> int:
    """How often this process was told: what a host knows of how many runs were kept may be wrong since."""
    return _Told.times


def tell(record: Tensor) -> None:
    """LabelError, or OutOfBoundsError, if something went wrong since the last time. Waits for the device's stream."""
    runs, row, label, classes, ignored = record.runtime.download(record).tolist()
    if not runs:
        return
    _Told.times += 1
    record.runtime.write(record, np.zeros(RECORD, np.int64))
    others = f"; nor did {runs - 1} more like it" if runs > 1 else ""
    kept = [f"its run changed nothing: no parameter, no optimizer state, no step{others}"]
    if ignored == INDEX:
        raise OutOfBoundsError(
            f"index {label} at place {row} is none",
            expected=f"{-classes} to {classes - 1}, of an axis of {classes}" if classes else "no index: the axis is empty",
            details=kept, hint="mend the indices; places are counted row by row",
        )  # fmt: skip
    raise LabelError(
        f"label {label} at row {row} is no class",
        expected=f"0 to {classes - 1}, or {ignored} for a row that is left out" if classes else "no rows: there are no classes",
        details=kept,
        hint=f"mend the label; nn.SoftmaxCrossEntropy(ignore_index={label}) leaves such rows out",
    )  # fmt: skip
