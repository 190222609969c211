"""How rotary positions are stretched to texts longer than a model was trained on first: records that RoPE takes as `scaling`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..errors import VerifyError
from . import checks

__all__ = ["LinearScaling", "Llama3Scaling"]


@dataclass(frozen=True)
class LinearScaling:
    """All frequencies divided by `factor`: position interpolation (Chen et al. 2023)."""

    factor: float

    def __post_init__(self) -> None:
        checks.positive("LinearScaling: factor", self.factor)

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's: waves much shorter than the first context stay, long ones are stretched, those between go over smoothly.

    factor     that long waves are stretched by
    low, high  a wave of more than positions / low is long, one of less than positions / high short
    positions  that the model was trained on first
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    positions: int = 8192

    def __post_init__(self) -> None:
        for name in ("factor", "low", "high"):
            checks.positive(f"Llama3Scaling: {name}", getattr(self, name))
        checks.whole("Llama3Scaling: positions", self.positions, 1)
        if self.high <= self.low:
            raise VerifyError(f"Llama3Scaling: high={self.high!r}", expected=f"a number > low={self.low!r}")

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        turns = frequencies * self.positions / (2 * math.pi)  # in the first context
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)
