"""generate: prompts continued, by a KV cache where one can serve the model, else by its whole window for each token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .decoding import no_logits, why_uncached
from .generator import Generator, write
from .request import Request, window_of
from .sampling import Sampling


class Speaks(Protocol):
    """What `generate` needs of an aicf.Program: from ids (batch, length) to logits (batch, length, words)."""

    recipe: Any

    def __call__(self, feed: Mapping[str, Any], /) -> Mapping[str, Any]: ...


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
    cache: bool | None = None,
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
    cache     True keeps keys and values, and computes one token of each sequence at a time: see `Generator`. CacheError if the model
              can't be continued so, or if a sequence outgrows `length`. False computes the whole window for each token: all runs have
              one shape, (len(prompts), length), and rows are filled up. None keeps them wherever True would not be refused
    stream    called with (which prompt, token) for each new token

    FeedError for prompts that are none, AicfError for a program or numbers that don't fit, before anything runs, or for a model that gives
    other logits.
    """
    name, length, dtype = window_of(program, length)
    how = Sampling(temperature, top_k, top_p, repetition_penalty)
    request = Request.of(prompts, count, stop, seed, dtype)
    if request.rows and (cache or (cache is None and _fit(request, length))):
        generator = _generator(program, len(request.rows), length, cache)
        if generator is not None:
            return generator.write(request, how, stream)

    def next_logits(rows: Sequence[Sequence[int]]) -> np.ndarray:
        window = np.zeros((len(rows), length), dtype)
        for n, row in enumerate(rows):
            seen = row[-length:]
            window[n, : len(seen)] = seen
        logits: np.ndarray = program({name: window})["output"].numpy()
        if logits.ndim != 3 or logits.shape[:2] != window.shape:
            raise no_logits([*window.shape, "words"], logits.shape)
        last = [min(len(row), length) - 1 for row in rows]
        return logits[np.arange(len(rows)), last]

    return write(request, how, next_logits, stream)


def _fit(request: Request, length: int) -> bool:
    return all(len(row) + request.count <= length + 1 for row in request.rows)


def _generator(program: Any, batch: int, length: int, cache: bool | None) -> Generator | None:
    """The program's own for this shape, made once; None where the model has none, and nobody insists."""
    known: dict[tuple[int, int], Generator | None] = program.__dict__.setdefault("_generators", {})
    if (batch, length) not in known and not cache:
        known[batch, length] = (
            None if why_uncached(program.recipe.model, length) else Generator(program, batch, length)
        )
    elif known.get((batch, length)) is None and cache:
        known[batch, length] = Generator(program, batch, length)
    return known[batch, length]
