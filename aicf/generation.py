"""Sequences that a language model writes: one token after another, drawn from what it makes of those before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .errors import AicfError, FeedError


class Speaks(Protocol):
    """What `generate` needs of an aicf.Program: from ids (batch, length) to logits (batch, length, words)."""

    recipe: Any

    def __call__(self, feed: Mapping[str, Any], /) -> Mapping[str, Any]: ...


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


def generate(
    program: Speaks,
    prompts: Sequence[Any],
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: int | Collection[int] | None = None,
    seed: int = 0,
    length: int | None = None,
    stream: Callable[[int, int], Any] | None = None,
) -> list[np.ndarray]:
    """The prompts, each with up to `count` tokens more.

    program   compiled in mode "infer" without a loss, of a causal model: one input of integers (batch, length), logits
              (batch, length, words)
    prompts   sequences of token ids, of any lengths from 1 on
    temperature, top_k, top_p, repetition_penalty   see `Sampling`; temperature=0 is greedy
    stop      a token, or several, behind which a sequence ends; it is part of it
    seed      each sequence draws by the seed and its own place, so that others beside it change nothing
    length    tokens that the model sees at once: the last ones, once there are more; by default the model's own size
    stream    called with (which prompt, token) for each new token

    All runs have one shape, (len(prompts), length): what lies behind a token does not reach it, so rows are filled up. The whole window
    is computed for each token; keys and values are not kept.

    FeedError for prompts that are none, AicfError for a program or numbers that don't fit, before anything runs, or for a model that gives
    other logits.
    """
    name, length, dtype = _window(program, length)
    how = Sampling(temperature, top_k, top_p, repetition_penalty)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise AicfError(f"count can't be {count!r}", expected="how many tokens, an integer of 0 or more")
    rows = [_prompt(n, prompt, dtype) for n, prompt in enumerate(prompts)]
    ends = {stop} if isinstance(stop, int | np.integer) else set(() if stop is None else stop)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise AicfError(f"seed can't be {seed!r}", expected="an integer of 0 or more")
    draws = [np.random.default_rng([seed, n]) for n in range(len(rows))]
    open_ = list(range(len(rows)))
    for _ in range(count):
        if not open_:
            break
        window = np.zeros((len(rows), length), dtype)
        for n in open_:
            seen = rows[n][-length:]
            window[n, : len(seen)] = seen
        logits = program({name: window})["output"].numpy()
        if logits.ndim != 3 or logits.shape[:2] != window.shape:
            raise AicfError(
                "the model gives no logits for each token", expected=f"{[*window.shape, 'words']}", got=f"{list(logits.shape)}",
                hint="leave out what takes the mean, or the last, of a sequence",
            )  # fmt: skip
        for n in list(open_):
            here = logits[n, min(len(rows[n]), length) - 1].astype(np.float64)
            if np.isnan(here).any():
                raise AicfError(
                    f"logits of prompt {n} behind {len(rows[n])} tokens have NaN",
                    hint="AICF_CHECK=nan names the op",
                )
            token = how.draw(here, rows[n], draws[n])
            rows[n].append(token)
            if stream is not None:
                stream(n, token)
            if token in ends:
                open_.remove(n)
    return [np.asarray(row, dtype) for row in rows]


def _window(program: Any, length: int | None) -> tuple[str, int, np.dtype]:
    """The input's name, how many tokens it is fed, and their type."""
    recipe = getattr(program, "recipe", None)
    if recipe is None or recipe.mode != "infer" or recipe.loss is not None:
        got = (
            type(program).__name__
            if recipe is None
            else f"mode {recipe.mode!r}{' with a loss' if recipe.loss is not None else ''}"
        )
        raise AicfError(
            "this can't generate", expected='aicf.compile(model), of mode "infer" without a loss', got=got
        )
    model = recipe.model
    name, spec = next(iter(model.inputs.items()))
    if len(model.inputs) != 1 or spec.rank != 2 or spec.dtype.kind != "int":
        raise AicfError(
            "this model's inputs are no token ids", expected="one input of integers (batch, length)",
            got=", ".join(f"{n} {s}" for n, s in model.inputs.items()),
        )  # fmt: skip
    dim = spec.shape[1]
    own = model.sizes[dim] if isinstance(dim, str) else dim
    if length is None or length == own:
        return name, own, spec.dtype.numpy
    if (
        not isinstance(dim, str)
        or isinstance(length, bool)
        or not isinstance(length, int | np.integer)
        or length < 1
    ):
        raise AicfError(
            f"length can't be {length!r}",
            expected="an integer, at least 1" if isinstance(dim, str) else f"{own}",
        )
    return name, int(length), spec.dtype.numpy


def _prompt(n: int, prompt: Any, dtype: np.dtype) -> list[int]:
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not tokens.size:
        raise FeedError(
            f"prompt {n} is no sequence of tokens", expected="a list or an array of integers, at least one",
            got=f"{tokens.dtype}{list(tokens.shape)}", hint="encode text first; a model begins from a token, such as its end-of-text",
        )  # fmt: skip
    if tokens.min() < 0 or tokens.max() > np.iinfo(dtype).max:
        raise FeedError(
            f"prompt {n} has a token that is no id",
            expected=f"0 to {np.iinfo(dtype).max}",
            got=f"{tokens.min()} to {tokens.max()}",
        )
    return tokens.tolist()
