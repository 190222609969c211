"""Faults: what a run found wrong with its data. A kernel can't raise: it writes a record, and whoever reads a result is told.

A record is i64 on the device: how many runs went wrong since it was last told, and of the first of them the row, the label,
how many classes there are, and the label that is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import LabelError

if TYPE_CHECKING:
    from .tensor import Tensor

RECORD = 5  # numbers


class _Told:
    times = 0


def times_told() -> int:
    """How often this process was told: what a host knows of how many runs were kept may be wrong since."""
    return _Told.times


def tell(record: Tensor) -> None:
    """LabelError if something went wrong since the last time. Waits for the device's stream."""
    runs, row, label, classes, ignored = record.runtime.download(record).tolist()
    if not runs:
        return
    _Told.times += 1
    record.runtime.write(record, np.zeros(RECORD, np.int64))
    others = f"; nor did {runs - 1} more like it" if runs > 1 else ""
    raise LabelError(
        f"label {label} at row {row} is no class",
        expected=f"0 to {classes - 1}, or {ignored} for a row that is left out" if classes else "no rows: there are no classes",
        details=[f"its run changed nothing: no parameter, no optimizer state, no step{others}"],
        hint=f"mend the label; nn.SoftmaxCrossEntropy(ignore_index={label}) leaves such rows out",
    )  # fmt: skip
