"""Faults: invalid data that a run has met. A kernel can't raise: it writes a record, and whoever reads a result gets the error.

A record is i64 on the device: the number of invalid runs since the last report, and of the first of them the row, the label,
the number of classes, and the label that is left out. Of an index: its position, the index, the size of the axis, and INDEX,
or INDEX_FROM_ZERO where a negative index does not count from the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import LabelError, OutOfBoundsError
from .tensor import Tensor

RECORD = 5  # numbers
INDEX = -(2**63)  # instead of a label that is left out: the record is of an index
INDEX_FROM_ZERO = INDEX + 1


@dataclass(frozen=True)
class Fault:
    """A record, and what its message says of the check that writes it.

    what    the op and its operand, such as "embedding: index"
    shape   of the data that are checked
    guards  whether a valid run changes parameters or optimizer state, and an invalid one does not
    where   the line that emits the check
    """

    record: Tensor
    what: str = ""
    shape: tuple[int, ...] = ()
    guards: bool = False
    where: str = ""


class _Told:
    times = 0


def times_told() -> int:
    """How often this process was told: what a host knows of how many runs were kept may be wrong since."""
    return _Told.times


def tell(*faults: Fault) -> None:
    """LabelError, or OutOfBoundsError, for the first of these checks that failed since the last report. Waits for the device's stream.

    All their records are reset: one invalid run may fail several checks, and is one error.
    """
    found = [(fault, numbers) for fault in faults if (numbers := _taken(fault.record))[0]]
    if found:
        _Told.times += 1
        raise _error(*found[0])


def _taken(record: Tensor) -> list[int]:
    """What a record says; it is reset."""
    numbers: list[int] = record.runtime.download(record).tolist()
    if numbers[0]:
        record.runtime.write(record, np.zeros(RECORD, np.int64))
    return numbers


def _error(fault: Fault, numbers: list[int]) -> LabelError | OutOfBoundsError:
    """The message of a failed check."""
    runs, row, label, classes, ignored = numbers
    details = ["No parameter or optimizer state was changed."] * fault.guards
    if runs > 1:
        details.append(f"{runs - 1} more {'run' if runs == 2 else 'runs'} since then had invalid data, too.")
    if ignored in (INDEX, INDEX_FROM_ZERO):
        low = -classes if ignored == INDEX else 0
        valid = f"valid: {low} to {classes - 1}" if classes else "the axis is empty"
        return OutOfBoundsError(
            f"{fault.what or 'index'} {label}{_position(row, fault.shape)} is out of range for an axis of size {classes} ({valid}).",
            details=details,
            where=fault.where or None,
        )
    return LabelError(
        f"label {label} at row {row} is no class",
        expected=f"0 to {classes - 1}, or {ignored} for a row that is left out" if classes else "no rows: there are no classes",
        details=details, where=fault.where or None,
        hint=f"mend the label, or leave such rows out: ignore_index={label}",
    )  # fmt: skip


def _position(place: int, shape: tuple[int, ...]) -> str:
    """Of an element, by its number in row-major order."""
    if not shape:
        return ""
    if len(shape) == 1:
        return f" in row {place}"
    return f" at {[int(n) for n in np.unravel_index(place, shape)]}"
