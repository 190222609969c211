"""generate: prompts continued, by a KV cache where one can serve the model, else by its whole window for each token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol

import numpy as np

from ..errors import CacheError
from .decoding import Window
from .generator import Generator, padded, write
from .request import Request, window_of
from .sampling import Sampling, seeds_of

KEPT = 4  # generators of a program, by batch and length, and as many windows: each has memory of its own


class Speaks(Protocol):
    """What `generate` needs of an aicf.Program: from ids (batch, length) to logits (batch, length, words)."""

    recipe: Any
    variables: Any
    in_mode: Callable[..., Any]


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
    seed: int | Sequence[int] = 0,
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
    seed      each sequence draws by the seed and its index among the prompts, so that other prompts change nothing; a list has a seed
              for each prompt, which then draws alike at any index: as it does alone with that seed
    length    tokens that the model sees at once: the last ones, once there are more; by default the model's own size
    cache     True keeps keys and values, and computes one token of each sequence at a time: see `Generator`. CacheError if the model
              can't be continued so, or if a sequence outgrows `length`. False computes the whole window for each token: all runs have
              one shape, (len(prompts), length), and rows are filled up. None keeps them wherever True would not be refused
    stream    called with (which prompt, token) for each new token

    Several threads may call it at once, and `stream` may: calls beside each other have caches of their own.

    FeedError for prompts that are none, AicfError for a program or numbers that don't fit, before anything runs, or for a model that gives
    other logits.
    """
    _, length, dtype = window_of(program, length)
    how = Sampling(temperature, top_k, top_p, repetition_penalty)
    request = Request.of(prompts, count, stop, seed, dtype)
    if not request.rows or not request.count:
        return write(request, lambda rows: np.zeros(0), stream)
    if cache or (cache is None and _fit(request, length)):
        with _generator(program, len(request.rows), length, cache) as generator:
            if generator is not None:
                return generator.write(request, how, stream)
    return _by_windows(program, request, how, length, stream)


def _fit(request: Request, length: int) -> bool:
    return all(len(row) + request.count <= length + 1 for row in request.rows)


class Lent:
    """What was made for a shape, to one call at a time: it keeps where sequences stand, so a call beside it has another.

    Up to KEPT wait for the next call; the least recently used goes first.
    """

    def __init__(self) -> None:
        self.lock, self.waiting = Lock(), list[tuple[tuple[int, int], Any]]()

    @contextmanager
    def lend(self, key: tuple[int, int], make: Callable[[], Any]) -> Iterator[Any]:
        with self.lock:
            found = [n for n, (of, _) in enumerate(self.waiting) if of == key]
            entry = self.waiting.pop(found[-1]) if found else None
        if entry is None:
            entry = key, make()
        try:
            yield entry[1]
        finally:
            with self.lock:
                self.waiting = [*self.waiting, entry][-KEPT:]


def _lent(program: Any, what: str) -> Lent:
    made: Lent = program.__dict__.setdefault(what, Lent())
    return made


@contextmanager
def _generator(program: Any, batch: int, length: int, cache: bool | None) -> Iterator[Generator | None]:
    """One of the program's for this shape; None where the model has none, and nobody insists."""

    def make() -> Generator | None:
        try:
            return Generator(program, batch, length)
        except CacheError:
            if cache:
                raise
            return None

    with _lent(program, "_generators").lend((batch, length), make) as found:
        yield Generator(program, batch, length) if found is None and cache else found


def _by_windows(
    program: Any, request: Request, how: Sampling, length: int, stream: Callable[[int, int], Any] | None
) -> list[np.ndarray]:
    """Each token from a run over the last `length` of its sequence."""
    batch, seeds = len(request.rows), seeds_of(request.seed, len(request.rows))

    def make() -> Any:
        model = Window(program.recipe.model, batch, length, padded(max(map(len, request.rows))))
        return program.in_mode("infer", model, program.variables.of_session())

    def next_tokens(rows: Sequence[Sequence[int]]) -> np.ndarray:
        tokens = np.zeros((batch, length), np.int32)
        said = np.zeros((batch, padded(max(map(len, rows)))), np.int32)
        for n, row in enumerate(rows):
            seen = row[-length:]
            tokens[n, : len(seen)], said[n, : len(row)] = seen, row
        counts = np.array([len(row) for row in rows], np.int32)
        feed = {
            "tokens": tokens,
            "said": said,
            "last": np.minimum(counts, length) - 1,
            "counts": counts,
            "seeds": seeds,
        }
        drawn: np.ndarray = window(feed)["output"].numpy()
        return drawn

    with _lent(program, "_windows").lend((batch, length), make) as window:
        window.set(**how.numbers)
        return write(request, next_tokens, stream)
