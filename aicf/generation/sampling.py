"""How a token is drawn from logits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..errors import AicfError


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
            if (
                not number
                or not (least < value if open_below else least <= value)
                or not value <= most
                or value == np.inf
            ):
                raise AicfError(
                    f"{name} can't be {value!r}",
                    expected="a number of 0 or more"
                    if not open_below
                    else f"a number over 0{', at most 1' if most == 1 else ''}",
                )
        k = self.top_k
        if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1):
            raise AicfError(f"top_k can't be {k!r}", expected="an integer, at least 1; None keeps all")

    def draw(self, logits: np.ndarray, seen: Collection[int], rng: np.random.Generator) -> int:
        """A token. `logits` are of one place, f64; `seen` are the tokens before."""
        if self.repetition_penalty != 1.0:
            logits = logits.copy()
            known = np.fromiter(set(seen), np.int64)
            there = logits[known]
            logits[known] = np.where(
                there > 0, there / self.repetition_penalty, there * self.repetition_penalty
            )
        if self.temperature == 0:
            return int(logits.argmax())
        logits = (logits - logits.max()) / self.temperature
        if self.top_k is not None and self.top_k < len(logits):
            logits = np.where(logits < np.partition(logits, -self.top_k)[-self.top_k], -np.inf, logits)
        p = np.exp(logits - logits.max())
        p /= p.sum()
        if self.top_p is not None:
            order = np.argsort(-p, kind="stable")
            before = np.cumsum(p[order]) - p[order]
            p[order[before >= self.top_p]] = 0.0
            p /= p.sum()
        return int(rng.choice(len(p), p=p))
