"""One order of batches for all ranks, of which each takes its rows: a place in it means the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import FeedError
from .batches import Feed, passes


class Shard:
    """Batches of all ranks, cut along their first axis: rank r of n has the r-th of n equal parts of each.

    batches  what `fit` takes: Batches, Tokens, a list of feeds, a function of the epoch
    FeedError for a batch that does not divide: a mean of means would be no mean. `fit` does this by itself.
    """

    def __init__(self, batches: Any, rank: int, ranks: int) -> None:
        self.batches, self.rank, self.ranks = batches, rank, ranks

    def __len__(self) -> int:
        return len(self.batches)

    def at(self, epoch: int, batch: int = 0) -> Iterator[Feed]:
        """The rest of an epoch, from its batch of that number on."""
        for feed in passes(self.batches, epoch, batch):
            yield self.of(feed)

    def of(self, feed: Feed) -> Feed:
        """This rank's rows of a feed; numbers without axes are everybody's."""
        return {name: self._rows(name, array) for name, array in feed.items()}

    def _rows(self, name: str, array: Any) -> Any:
        shape = getattr(array, "shape", ())
        if not shape:
            return array
        each, rest = divmod(int(shape[0]), self.ranks)
        if rest:
            raise FeedError(
                f"{name} has {shape[0]} rows for {self.ranks} ranks", expected=f"a multiple of {self.ranks}",
                hint="Batches(..., drop_last=True), with a size that the number of ranks divides",
            )  # fmt: skip
        return array[self.rank * each : (self.rank + 1) * each]
