"""Numbers that a training program returns beside its loss: their means, of the runs since the last row and of validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .logs import COLUMNS

LOSS = "loss"


class Watch:
    """The 0-D floats that runs return beside the loss: `columns` of a row, by the results' names.

    A result that is called as a column of every row is `result.<name>`; validation's means are `validation_<name>`.
    """

    def __init__(self, outputs: Mapping[str, Any], validates: bool) -> None:
        found = [
            n for n, spec in outputs.items() if n != LOSS and spec.shape == () and spec.dtype.kind == "float"
        ]
        self.names = {name: f"result.{name}" if name in COLUMNS else name for name in found}
        later = [f"validation_{column}" for column in self.names.values()] if validates else []
        self.columns = [*self.names.values(), *later]
        self._runs: list[dict[str, Any]] = []  # since the last row; still on the device

    def ran(self, results: Mapping[str, Any]) -> None:
        if self.names:
            self._runs.append(self.of(results))

    def of(self, results: Mapping[str, Any]) -> dict[str, Any]:
        return {name: results[name] for name in self.names if name in results}

    def means(self, runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """By name. Waits for the device."""
        found = {name: [float(run[name]) for run in runs if name in run] for name in self.names}
        return {name: float(np.mean(values)) for name, values in found.items() if values}

    def row(self, validated: Mapping[str, float]) -> dict[str, float | None]:
        """All columns, None for what is not known; the next row begins behind this one."""
        runs, self._runs = self._runs, []
        columns: dict[str, float | None] = dict.fromkeys(self.columns)
        columns |= {self.names[name]: mean for name, mean in self.means(runs).items()}
        return columns | {f"validation_{self.names[name]}": mean for name, mean in validated.items()}
