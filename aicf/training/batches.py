"""Batches that can be resumed: `at(epoch, batch)` goes on from any place, in the order that the seed and the epoch give."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FeedError

Feed = Mapping[str, Any]


class Batches:
    """Arrays cut into batches along their first axis.

    arrays    by the names they are fed under; all have the same first size
    size      rows of a batch; the last one of an epoch may be smaller
    shuffle   each epoch in an order of its own, by the seed and its number
    drop_last leave out a smaller last batch
    """

    def __init__(
        self, arrays: Mapping[str, Any], size: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:  # fmt: skip
        self.arrays = {name: np.asarray(a) for name, a in arrays.items()}
        rows = {name: a.shape[0] if a.ndim else -1 for name, a in self.arrays.items()}
        if len(set(rows.values())) != 1 or -1 in rows.values():
            raise FeedError(
                "arrays to be cut into batches differ in length", expected="one first size", got=f"{rows}"
            )
        _at_least("size", size, 1)
        self.rows, self.size, self.shuffle, self.seed, self.drop_last = (
            rows.popitem()[1],
            size,
            shuffle,
            seed,
            drop_last,
        )

    def __len__(self) -> int:
        return self.rows // self.size if self.drop_last else -(-self.rows // self.size)

    def __iter__(self) -> Iterator[Feed]:
        return self.at(0)

    def at(self, epoch: int, batch: int = 0) -> Iterator[Feed]:
        """The rest of an epoch, from its batch of that number on."""
        order = _order(self.rows, self.seed, epoch) if self.shuffle else np.arange(self.rows)
        for n in range(batch, len(self)):
            chosen = order[n * self.size : (n + 1) * self.size]
            yield {name: array[chosen] for name, array in self.arrays.items()}


class Tokens:
    """Batches of token sequences from one long run of tokens: `x` is a window of it, and `y` the same, one token later.

    tokens    integers in an array, or a file of them, which is mapped into memory and never read as a whole
    length    tokens of a sequence
    size      sequences of a batch; what is left at an epoch's end is left out, so that all batches have one shape
    dtype     of the file's tokens; an array has its own
    first, last  the part of the tokens that is taken, so that one file serves training and validation
    prefetch  batches that a thread makes ahead of their use; 0 makes none

    Windows don't overlap. Each epoch begins them at an offset of its own, so that their borders move, and shuffles them. Ids come as
    i32, targets as i64.
    """

    def __init__(
        self, tokens: Any, length: int, size: int, *, dtype: Any = np.uint16, shuffle: bool = True, seed: int = 0,
        first: int = 0, last: int | None = None, prefetch: int = 2, x: str = "x", y: str = "y",
    ) -> None:  # fmt: skip
        if isinstance(tokens, str | Path):
            try:
                tokens = np.memmap(tokens, dtype, "r")
            except (OSError, ValueError) as error:
                raise FeedError(f"{tokens} can't be read as tokens of {np.dtype(dtype)}: {error}") from None
        tokens = np.asanyarray(tokens)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise FeedError(
                "tokens are one run of integers", expected="i[n]", got=f"{tokens.dtype}{list(tokens.shape)}"
            )
        _at_least("length", length, 1)
        _at_least("size", size, 1)
        _at_least("prefetch", prefetch, 0)
        self.tokens, self.length, self.size, self.shuffle, self.seed = (
            tokens[first:last],
            length,
            size,
            shuffle,
            seed,
        )
        self.prefetch, self.x, self.y = prefetch, x, y
        room = max(len(self.tokens) - 1 - length * size, 0) + 1
        self.spare = min(length, room) if shuffle else 1  # offsets that an epoch may begin at
        if len(self) == 0:
            raise FeedError(
                f"{len(self.tokens)} tokens make no batch of {size} sequences of {length}",
                expected=f"at least {length * size + 1} tokens", hint="a smaller size or length",
            )  # fmt: skip

    def __len__(self) -> int:
        return (len(self.tokens) - self.spare) // self.length // self.size

    def __iter__(self) -> Iterator[Feed]:
        return self.at(0)

    def at(self, epoch: int, batch: int = 0) -> Iterator[Feed]:
        """The rest of an epoch, from its batch of that number on."""
        made = self._made(epoch, batch)
        return _ahead(made, self.prefetch) if self.prefetch else made

    def _made(self, epoch: int, batch: int) -> Iterator[Feed]:
        count, offset = len(self) * self.size, 0
        order = np.arange(count)
        if self.shuffle:
            order = _order(count, self.seed, epoch)
            offset = int(np.random.default_rng([self.seed, epoch, 1]).integers(self.spare))
        reach = np.arange(self.length + 1)
        for n in range(batch, len(self)):
            starts = offset + order[n * self.size : (n + 1) * self.size] * self.length
            windows = self.tokens[starts[:, None] + reach]
            yield {self.x: windows[:, :-1].astype(np.int32), self.y: windows[:, 1:].astype(np.int64)}


def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or value < least:
        raise FeedError(f"{name} can't be {value!r}", expected=f"an integer, at least {least}")


END = object()


def _ahead(made: Iterator[Feed], depth: int) -> Iterator[Feed]:
    """The same, made by a thread that is at most so many ahead; what it raises is raised here."""
    ready: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def work() -> None:
        try:
            for feed in made:
                if not put(feed):
                    return
            put(END)
        except BaseException as error:
            put(error)

    threading.Thread(target=work, name="aicf batches", daemon=True).start()
    try:
        while (item := ready.get()) is not END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()


def passes(batches: Any, epoch: int, batch: int) -> Iterator[Feed]:
    """One epoch of whatever `fit` is given, from a batch on: `at`, a function of the epoch, or an iterable that begins anew."""
    if hasattr(batches, "at"):
        return batches.at(epoch, batch)
    made = iter(batches(epoch) if callable(batches) else batches)
    for _ in range(batch):
        next(made, None)
    return made


def once(batches: Any) -> bool:
    """An iterator: it can be gone through a single time."""
    return isinstance(batches, Iterator) and not hasattr(batches, "at")


def check_batches(what: str, batches: Any) -> None:
    takes = (
        isinstance(batches, Sequence)
        or hasattr(batches, "at")
        or hasattr(batches, "__iter__")
        or callable(batches)
    )
    if isinstance(batches, Sequence) and not isinstance(batches, str | bytes):
        for number, feed in enumerate(batches):
            if not isinstance(feed, Mapping):
                raise FeedError(
                    f"{what}[{number}] is no feed", expected="a dict from input names to tensors", got=type(feed).__name__,
                    hint="aicf.training.Batches({'x': x, 'y': y}, size=64)",
                )  # fmt: skip
    if not takes or isinstance(batches, Mapping | str | bytes):
        hint = (
            f"[{what}] repeats one batch"
            if isinstance(batches, Mapping)
            else "aicf.training.Batches({'x': x, 'y': y}, size=64)"
        )
        raise FeedError(
            f"{what} are no batches", expected="an iterable of feeds, a function of the epoch that returns one, Batches or Tokens",
            got=type(batches).__name__, hint=hint,
        )  # fmt: skip
