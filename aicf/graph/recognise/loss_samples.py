"""Hard samples for a cross entropy: rows that are saturated, equal, hidden, no numbers, with labels of every sampled class. They confirm what easy ones
have found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...ir import Value
from .classes import ClassRegion
from .flow import CameClose

EXACT = 1e-7
_Draw = Callable[[np.random.Generator, int], np.ndarray]


def _some(rng: np.random.Generator, n: int, number: float) -> np.ndarray:
    """Logits of which some, but not all, are a number."""
    x = np.where(rng.random(n) < 0.4, number, rng.normal(size=n))
    x[rng.integers(n)] = rng.normal()
    return x


def _one(rng: np.random.Generator, n: int, number: float, others: float = 1.0) -> np.ndarray:
    x = others * rng.normal(size=n)
    x[rng.integers(n)] = number
    return x


ROWS: dict[str, _Draw] = {
    "ordinary": lambda rng, n: 2 * rng.normal(size=n),
    "30 times as large": lambda rng, n: 30 * rng.normal(size=n),
    "saturated": lambda rng, n: _one(rng, n, rng.uniform(20, 300), 0.0),
    "far below others": lambda rng, n: _one(rng, n, -rng.uniform(20, 300)),
    "spread by hundreds": lambda rng, n: rng.uniform(-300, 300, n),
    "nearly equal": lambda rng, n: 1e-3 * rng.normal(size=n),
    "equal": lambda rng, n: np.full(n, rng.normal()),
    "large": lambda rng, n: rng.normal(size=n) + 1e4,
    "small": lambda rng, n: rng.normal(size=n) - 200,
    "hidden by -inf": lambda rng, n: _some(rng, n, -np.inf),
    "hidden by -1e9": lambda rng, n: _some(rng, n, -1e9),
    "with a NaN": lambda rng, n: _one(rng, n, np.nan),
    "with an inf": lambda rng, n: _one(rng, n, np.inf),
    "all -inf": lambda rng, n: np.full(n, -np.inf),
}


def softmax_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(softmax, logarithm of the sum of exponentials) of rows."""
    with np.errstate(all="ignore"):
        most = x.max(-1, keepdims=True)
        e = np.exp(x - most)
        total = e.sum(-1, keepdims=True)
        return e / total, (most + np.log(total))[:, 0]


@dataclass(frozen=True)
class LossCandidate:
    """What may be a loss, times `sign`, and a gradient: (softmax - label) * factor * of."""

    labels: Value
    loss: Value | None
    sign: float
    slope: Value | None
    factor: float
    of: Value | None


def confirm(region: ClassRegion, found: LossCandidate) -> None:
    """CameClose unless hard rows have the loss and the gradient of a cross entropy, too. A graph that overflows, or meets 0 times infinity, where the
    op does not, is one all the same."""
    for seed, (kinds, drawn) in enumerate(_rounds(region)):
        rng = np.random.default_rng((17, seed))
        classes = len(region.sampled)
        x = np.stack([ROWS[kind](rng, classes) for kind in kinds])
        p, lse = softmax_of(x)
        hot = np.arange(classes) == drawn[:, None]
        leaves: dict[int, np.ndarray] = {}
        probe = region.probe(x, found.labels, region.sampled[drawn], leaves, rng)
        with np.errstate(all="ignore"):
            if found.loss is not None:
                largest = np.abs(np.where(np.isfinite(x), x, 0.0)).max(-1)
                good = _same(probe.rows_of(found.loss), found.sign * (lse - x[hot]), 1 + largest)
                _refuse("loss", kinds, good)
            if found.slope is not None:
                of = 1.0 if found.of is None else probe.rows_of(found.of)[:, None]
                times = np.broadcast_to(found.factor * of, (len(x), 1))
                made, terms = probe.rows_of(found.slope), np.abs(times[:, 0])
                # the gradient of a logsumexp has no probabilities where there is no finite logit
                nothing = (x == -np.inf).all(-1) & _same(made, (0.0 - hot) * times, terms)
                good = nothing | _same(made, (p - hot) * times, terms)
                _refuse("gradient", kinds, good)


def _rounds(region: ClassRegion) -> Iterator[tuple[list[str], np.ndarray]]:
    """(kinds of rows, places of their labels), until each kind and each label was drawn several times."""
    rng, classes = np.random.default_rng(13), len(region.sampled)
    rounds = -(-max(3 * len(ROWS), 4 * classes) // region.count)
    labels = rng.permutation(np.resize(np.arange(classes), rounds * region.count))
    kinds = np.resize(list(ROWS), rounds * region.count)
    for n in range(rounds):
        part = slice(n * region.count, (n + 1) * region.count)
        yield list(kinds[part]), labels[part]


def _same(made: np.ndarray, want: np.ndarray, terms: np.ndarray) -> np.ndarray:
    """Which rows are as they should be, where f64 rounds numbers as large as `terms`. Where the op's are no numbers, they must not all be numbers."""
    made, want = made.reshape(len(made), -1), want.reshape(len(want), -1)
    scale = np.abs(np.where(np.isfinite(want), want, 0.0)).max(-1, keepdims=True)
    near = ~np.isfinite(made) | (np.abs(made - want) <= EXACT * scale + 1e-14 * terms[:, None])
    finite = np.isfinite(want).all(-1)
    return np.where(finite, near.all(-1), ~np.isfinite(made).all(-1))


def _refuse(what: str, kinds: list[str], good: np.ndarray) -> None:
    if not good.all():
        raise CameClose(f"the {what} is another one where logits are {kinds[int(np.argmin(good))]}")
