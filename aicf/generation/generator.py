"""Generator: the plans of a program's model that go on with sequences, and the loop around them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, get_ident
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from ..errors import AicfError, CacheError, Immovable
from ..lazy import lazy
from ..printing import Printed
from .decoding import Decode, Prefill, words_of
from .request import Request, window_of
from .sampling import Sampling, seeds_of

LEAST = 16  # rows of a prefill; more are powers of two, so that prompts of many lengths have few plans
Stream = Callable[[int, int], Any] | None


@dataclass(frozen=True, repr=False)
class GeneratorExplanation(Immovable, Printed):
    """The explanations of both plans; each has regions, `verbose()` and `to_json()` of its own."""

    prefill: Any
    decode: Any
    instead = "str(explanation) is its text"

    def verbose(self) -> GeneratorExplanation:
        return GeneratorExplanation(self.prefill.verbose(), self.decode.verbose())

    def _rendering(self) -> RenderableType:
        plans = ("prefill", self.prefill), ("\ndecode", self.decode)
        return Group(*(part for name, told in plans for part in (Text(f"{name}\n", style="bold"), told)))

    def __repr__(self) -> str:
        return "<the plans of a generator, prefill and decode; print it>"


class Generator:
    """What continues `batch` prompts at a time with a KV cache: each token is computed once, and its keys and values are kept.

    program  compiled in mode "infer" without a loss, of a causal model: one input of integers (batch, length), logits
             (batch, length, words). The plans have its params, device, precision and settings
    batch    prompts of a call; rows of a call with fewer stay empty
    length   most tokens of a sequence, the caches' size; by default the model's own size

    There are two plans, `prefill` for prompts and `decode` for one token of each sequence. Where each sequence stands is a counter on the
    device, so one captured graph serves every step. Caches are (batch, kv_heads, length, head_size) for each attention, of the
    element type of its keys.

    A model can be served if what it computes of a token depends on tokens before it through `nn.MultiHeadAttention` alone, causal and
    without a mask, and on places through it and `ctx.positions` alone; else CacheError says what stands against it.

    It writes for one call at a time: another thread's waits, and AicfError refuses one from the `stream` of its own.
    """

    def __init__(self, program: Any, batch: int, length: int | None = None) -> None:
        _, self.length, self.dtype = window_of(program, length)
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
            raise AicfError(f"batch can't be {batch!r}", expected="how many prompts, an integer of 1 or more")
        self.batch, model = int(batch), program.recipe.model
        self._lock, self._writer = Lock(), 0
        words, session = words_of(model, self.length), program.variables.of_session()
        self.decode = program.in_mode("infer", Decode(model, self.batch, self.length), session)
        self._make_prefill = lambda: program.in_mode(
            "infer", Prefill(model, self.batch, self.length, words, min(LEAST, self.length)), session
        )

    @lazy
    def prefill(self) -> Any:
        return self._make_prefill()

    def __call__(
        self, prompts: Sequence[Any], count: int, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None,
        repetition_penalty: float = 1.0, stop: int | Collection[int] | None = None, seed: int | Sequence[int] = 0, stream: Stream = None,
    ) -> list[np.ndarray]:  # fmt: skip
        """The prompts, each with up to `count` tokens more; as `generate`, with at most `batch` prompts.

        CacheError where a prompt and its tokens outgrow `length`, before anything runs.
        """
        how = Sampling(temperature, top_k, top_p, repetition_penalty)
        return self.write(Request.of(prompts, count, stop, seed, self.dtype), how, stream)

    def start(
        self, prompts: Sequence[Any], *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None,
        repetition_penalty: float = 1.0, seed: int | Sequence[int] = 0,
    ) -> None:  # fmt: skip
        """Fill the caches with at most `batch` prompts, for a loop of your own: each `decode({})["output"]` is then their next tokens.

        They are (batch,) of i32 on the device; a prompt of n tokens has `length` + 1 - n of them, which the loop is to count. Numbers and
        errors are those of a call.
        """
        how = Sampling(temperature, top_k, top_p, repetition_penalty)
        request = Request.of(prompts, 1, None, seed, self.dtype)
        self._check(request)
        with self._alone():
            self._fill(request.rows, request.seed, how)

    def write(self, request: Request, how: Sampling, stream: Stream) -> list[np.ndarray]:
        """The sequences of a request, grown token by token: what `aicf.generate` calls."""
        self._check(request)
        fresh = True

        def next_tokens(rows: Sequence[Sequence[int]]) -> np.ndarray:
            nonlocal fresh
            if fresh:
                self._fill(rows, request.seed, how)
                fresh = False
            tokens: np.ndarray = self.decode({})["output"].numpy()
            return tokens

        with self._alone():
            return write(request, next_tokens, stream)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._writer == get_ident():
            raise AicfError(
                "a Generator is called while it writes", expected="one call at a time", got="a call from its own stream callback",
                hint="make a second aicf.Generator(program, batch) for what the callback writes",
            )  # fmt: skip
        with self._lock:
            self._writer = get_ident()
            try:
                yield
            finally:
                self._writer = 0

    def _check(self, request: Request) -> None:
        if len(request.rows) > self.batch:
            raise CacheError(
                f"{len(request.rows)} prompts are more than the generator takes at a time", expected=f"at most {self.batch}",
                hint=f"aicf.Generator(program, batch={len(request.rows)})",
            )  # fmt: skip
        for n, row in enumerate(request.rows):
            if len(row) + request.count > self.length + 1:  # the last token is not read
                raise CacheError(
                    f"prompt {n} and what follows outgrow the cache", expected=f"at most {self.length + 1} tokens",
                    got=f"{len(row)} and {request.count} more",
                    hint="length=… makes a longer one, if the model takes it; generate(..., cache=False) lets the first tokens go",
                )  # fmt: skip

    def _fill(self, rows: Sequence[Sequence[int]], seed: int | tuple[int, ...], how: Sampling) -> None:
        """Keys and values of all tokens but each row's last, which `decode` reads."""
        self.decode.set(**how.numbers)
        counts, last, seeds = (np.zeros(self.batch, dtype) for dtype in (np.int32, np.int32, np.int64))
        counts[: len(rows)], last[: len(rows)] = [len(row) - 1 for row in rows], [row[-1] for row in rows]
        seeds[: len(rows)] = seeds_of(seed, len(rows))
        tokens = np.zeros((self.batch, min(self.length, padded(int(counts.max())))), np.int32)
        for n, row in enumerate(rows):
            tokens[n, : len(row) - 1] = row[:-1]
        self.prefill({"tokens": tokens, "counts": counts, "last": last, "seeds": seeds})["output"].numpy()

    def explain(self) -> GeneratorExplanation:
        """Why each kernel of both plans was chosen."""
        return GeneratorExplanation(self.prefill.explain(), self.decode.explain())

    def __repr__(self) -> str:
        return f"Generator({self.batch} prompts of up to {self.length} tokens on {self.decode.runtime.spec.name})"


def padded(count: int) -> int:
    """A length that serves this many tokens."""
    return max(LEAST, 1 << max(count - 1, 0).bit_length())


def write(
    request: Request, next_tokens: Callable[[Sequence[Sequence[int]]], np.ndarray], stream: Stream
) -> list[np.ndarray]:
    """The sequences, grown by what `next_tokens` gives, one for each of the first rows, until all have ended."""
    rows = request.rows
    open_ = list(range(len(rows)))
    for _ in range(request.count):
        if not open_:
            break
        tokens = next_tokens(rows).tolist()
        for n in list(open_):
            if tokens[n] < 0:
                raise AicfError(
                    f"logits of prompt {n} behind {len(rows[n])} tokens have NaN, or no greatest one",
                    hint="AICF_CHECK=nan names the op",
                )
            rows[n].append(tokens[n])
            if stream is not None:
                stream(n, tokens[n])
            if tokens[n] in request.ends:
                open_.remove(n)
    return [np.asarray(row, request.dtype) for row in rows]
