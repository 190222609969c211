"""How a token is drawn from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import AicfError

MOST_WORDS = 2**20  # that an f32 counts exactly


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits; steps are taken in this order.

    repetition_penalty  logits of tokens that are there already are divided by it where positive, multiplied where not (CTRL); 1: none
    temperature         logits are divided by it; 0 takes the greatest, the first of equals
    top_k               only the so many greatest stay, and what equals the last of them
    top_p               only the fewest stay whose probabilities make at least this much together
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("temperature", 0.0, np.inf),
            ("top_p", 0.0, 1.0),
            ("repetition_penalty", 0.0, np.inf),
        ):
            value = getattr(self, name)
            if value is None and name == "top_p":
                continue
            open_below = name != "temperature"
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            held = _f32(value) if number else np.nan
            if not number or not least <= value <= most or held == np.inf or (open_below and not held > 0):
                raise AicfError(
                    f"{name} can't be {value!r}",
                    expected="a number of 0 or more"
                    if not open_below
                    else f"a number over 0{', at most 1' if most == 1 else ''}",
                    hint=f"in f32 it is {held}" if number and held != value else None,
                )
        k = self.top_k
        if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1):
            raise AicfError(f"top_k can't be {k!r}", expected="an integer, at least 1; None keeps all")

    @property
    def numbers(self) -> dict[str, float]:
        """As the plans' meta-parameters, in f32; a temperature under the least f32 is 0."""
        numbers = {
            "temperature": self.temperature, "top_k": min(self.top_k or 0, MOST_WORDS),
            "top_p": 1.0 if self.top_p is None else self.top_p, "repetition_penalty": self.repetition_penalty,
        }  # fmt: skip
        return {name: _f32(value) for name, value in numbers.items()}


def _f32(value: Any) -> float:
    """What a plan is given of a number; inf of one that is too great, 0 of one that is too small."""
    try:
        with np.errstate(over="ignore", under="ignore"):
            return float(np.float32(value))
    except OverflowError:  # an integer beyond f64
        return np.inf


def seeds_of(seed: int | tuple[int, ...], count: int) -> np.ndarray:
    """One for each sequence, by the seed and its index, so that other sequences change nothing; of several seeds by its own, with the index 0."""
    entropy = [(seed, n) for n in range(count)] if isinstance(seed, int) else [(own, 0) for own in seed]
    made = [np.random.SeedSequence(own).generate_state(1, np.uint64)[0] >> np.uint64(1) for own in entropy]
    return np.array(made, np.int64)
