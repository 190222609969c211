"""What a graph knows of the sequences that it goes on with: where each stands, and the KV caches of its layers."""

from __future__ import annotations

from typing import Any

from ...errors import CacheError
from ...ir import Value
from ...types import i32


class Sequences:
    """Of a graph that makes the next places of `batch` sequences. Its states are of one generator, not of the model.

    starts  (batch,) i32: how many places of each sequence are done; what the graph is given are the next ones
    places  that a cache has: the most tokens of a sequence
    fresh   whether all starts are 0: then what the graph is given is all that there is, and attention need not look into the cache
    """

    def __init__(self, ctx: Any, starts: Value, places: int, fresh: bool = False) -> None:
        self.ctx, self.starts, self.places, self.fresh = ctx, starts, places, fresh
        self.batch = starts.shape[0]
        self.caches = 0

    def positions(self, count: int) -> Value:
        """(batch, count) i32: places that are next. What lies beyond the last is padding: it stands at the last."""

        def made() -> Value:
            steps = self.ctx.iota(shape=(count,), axis=0, dtype=i32)
            after = self.starts.reshape(self.batch, 1) + steps
            last: Value = self.ctx.minimum(after, self.places - 1)
            return last

        known: Value = self.ctx.once(("sequences.positions", count), made)
        return known

    def cached(self, k: Value, v: Value) -> tuple[Value, Value, Value | None]:
        """(keys, values, lengths) of all places so far, with these written to them: k and v (batch, heads, count, d). Lengths are
        None where all of them exist, or are padding behind what does.

        Each call has a cache of its own, by its number in the graph.
        """
        ctx, number = self.ctx, self.caches
        self.check("attention: k", k)
        self.caches += 1
        names = (f"sequences.{what}.{number}" for what in ("keys", "values"))
        keys, values = (
            ctx.session(name, (*x.shape[:2], self.places, x.shape[3]), 0, x.dtype)
            for name, x in zip(names, (k, v))
        )
        new_keys, new_values = ctx.cache_write(keys, values, k, v, self.starts)
        ctx.update(keys, new_keys)
        ctx.update(values, new_values)
        if self.fresh:
            return k, v, None
        count = k.shape[2]
        lengths = ctx.once(("sequences.lengths", count), lambda: self.starts + count)
        return new_keys, new_values, lengths

    def check(self, what: str, x: Value) -> None:
        """x has rows of each head of each sequence."""
        if x.rank != 4 or x.shape[0] != self.batch:
            raise CacheError(
                f"{what} is no batch of sequences", expected=f"shape ({self.batch}, heads, rows, d), one entry for each sequence",
                got=str(x.spec), where=self.ctx.here(),
            )  # fmt: skip
