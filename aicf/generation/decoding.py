"""A model as it goes on with sequences: over the places of a prompt at once, and over one place of each. Both share KV caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import AicfError, CacheError
from ..graph.emit.builder import Builder, GraphEmitter
from ..graph.emit.passes import optimize
from ..graph.emit.results import main_result, named_results
from ..graph.emit.sequences import Sequences
from ..ir import Role, Value
from ..types import DType, TensorSpec, bool_, i32, i64
from .places import Along, PlaceFlow


class Continued:
    """What `compile` is given in a model's place. Its params are the model's; its states are a generator's.

    model   of one input, the tokens (batch, length), to logits (batch, length, words)
    batch   sequences
    places  that a cache has
    """

    sizes: Mapping[str, int] = {}

    def __init__(self, model: Any, batch: int, places: int) -> None:
        self.model, self.batch, self.places = model, batch, places
        (self.name, spec), *_ = model.inputs.items()
        self.dtype, self.seed = spec.dtype, model.seed

    def go_on(self, ctx: Any, tokens: Value, starts: Value, fresh: bool = False) -> Value:
        """What the model makes of the next tokens (batch, count) of each sequence; see `Sequences`."""
        ctx.sequences = Sequences(ctx, starts, self.places, fresh)
        return self.emit_model(ctx, tokens)

    def emit_model(self, ctx: Any, tokens: Value) -> Value:
        """The model's "output", or its first result."""
        results = named_results(self.model.emit(ctx, {self.name: tokens.astype(self.dtype)}))
        return results[main_result(results)]

    def of_each(self, ctx: Any, name: str, dtype: DType = i32) -> Value:
        """A number of each sequence: "position", how many places are done; "token", its last; "seed"."""
        state: Value = ctx.session(f"sequences.{name}", (self.batch,), 0, dtype)
        return state

    def draw(
        self, ctx: Any, logits: Value, tokens: Value, starts: Value, counts: Value, seeds: Value
    ) -> Value:
        """The next token of each sequence, from logits (batch, words).

        tokens (batch, any), of which the first `counts` join those that were there; all that were, where `starts` is 0. The draw's place is
        what then stands before it.
        """
        seen = ctx.session("sequences.seen", (self.batch, logits.shape[1]), False, bool_)
        marked = ctx.mark_tokens(seen, tokens, starts, counts)
        ctx.update(seen, marked)
        with ctx.scope("sequences"):
            numbers = [ctx.meta(name, value) for name, value in SAMPLING.items()]
        token: Value = ctx.sample_tokens(logits, marked, seeds, starts + counts, *numbers)
        return token


SAMPLING = {"temperature": 1.0, "top_k": 0.0, "top_p": 1.0, "repetition_penalty": 1.0}  # meta-parameters


class Prefill(Continued):
    """Keys and values of prompts, padded on the right to one length: `counts` tokens of each are real, and `last` comes after them.

    What the model makes of them is not asked for, so its head is not computed. Returns where each sequence stands.
    """

    def __init__(self, model: Any, batch: int, places: int, words: int, length: int) -> None:
        super().__init__(model, batch, places)
        self.words, self.sizes = words, {"length": length}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        each = TensorSpec((self.batch,), i32)
        return {
            "tokens": TensorSpec((self.batch, "length"), i32), "counts": each, "last": each, "seeds": TensorSpec((self.batch,), i64),
        }  # fmt: skip

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Value:
        starts, counts = ctx.session("sequences.zeros", (self.batch,), 0, i32), inputs["counts"]
        self.go_on(ctx, inputs["tokens"], starts, fresh=True)
        seen = ctx.session("sequences.seen", (self.batch, self.words), False, bool_)
        ctx.update(seen, ctx.mark_tokens(seen, inputs["tokens"], starts, counts))
        for name, value in (("position", counts), ("token", inputs["last"])):
            ctx.update(self.of_each(ctx, name), ctx.copy(value))
        ctx.update(self.of_each(ctx, "seed", i64), ctx.copy(inputs["seeds"]))
        now: Value = ctx.copy(counts)
        return now


class Decode(Continued):
    """One token of each sequence to the next, which it keeps for the next run. It is fed nothing."""

    inputs: Mapping[str, TensorSpec] = {}

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Value:
        position, token = self.of_each(ctx, "position"), self.of_each(ctx, "token")
        read = token.reshape(self.batch, 1)
        logits = self.go_on(ctx, read, position)
        if logits.rank != 3 or logits.shape[:2] != (self.batch, 1):
            raise no_logits([self.batch, 1, "words"], logits.shape)
        ones = ctx.session("sequences.ones", (self.batch,), 1, i32)
        drawn = self.draw(
            ctx,
            logits.reshape(self.batch, logits.shape[2]),
            read,
            position,
            ones,
            self.of_each(ctx, "seed", i64),
        )
        ctx.update(position, position + 1)
        ctx.update(token, drawn)
        return drawn


class Window(Continued):
    """The next token of each sequence from its last tokens, all of which are computed: for models that no cache serves.

    tokens (batch, length), the last of which is in place `last`; said (batch, any), all that are there, `counts` of each.
    """

    def __init__(self, model: Any, batch: int, length: int, said: int) -> None:
        super().__init__(model, batch, length)
        self.sizes = {"said": said}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        each = TensorSpec((self.batch,), i32)
        return {
            "tokens": TensorSpec((self.batch, self.places), i32), "said": TensorSpec((self.batch, "said"), i32), "last": each,
            "counts": each, "seeds": TensorSpec((self.batch,), i64),
        }  # fmt: skip

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Value:
        logits = self.emit_model(ctx, inputs["tokens"])
        if logits.rank != 3 or logits.shape[:2] != (self.batch, self.places):
            raise no_logits([self.batch, self.places, "words"], logits.shape)
        rows = logits.reshape(self.batch * self.places, logits.shape[2])
        first = ctx.iota(shape=(self.batch,), axis=0, dtype=i32) * self.places
        here = ctx.gather(rows, first + inputs["last"])
        zeros = ctx.session("sequences.zeros", (self.batch,), 0, i32)
        return self.draw(ctx, here, inputs["said"], zeros, inputs["counts"], inputs["seeds"])


def no_logits(expected: list[Any], shape: tuple[int, ...]) -> AicfError:
    return AicfError(
        "the model gives no logits for each token", expected=f"{expected}", got=f"{list(shape)}",
        hint="leave out what takes the mean, or the last, of a sequence",
    )  # fmt: skip


BATCH, COUNT = 1013, 1009  # that a model is looked at with, if it takes as many: sizes that mean nothing else


def words_of(model: Any, places: int) -> int:
    """How many words a model has that a KV cache can serve; CacheError says why none can."""
    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    looked_at, count = Continued(model, BATCH, places), min(COUNT, places)
    tokens, starts = ctx.input("tokens", (BATCH, count), i32), ctx.input("starts", (BATCH,), i32)
    try:
        logits = looked_at.go_on(ctx, tokens, starts)
        assert ctx.sequences is not None
        known = {tokens.vid: Along(1), ctx.sequences.positions(count).vid: Along(1)}
        found = PlaceFlow(builder.graph.values, known, batch=BATCH)
        if logits.role is Role.tmp:
            builder.output("output", logits)
        found.follow(optimize(builder.graph).ops)  # without what other results are made by
    except CacheError:
        raise
    except AicfError as error:
        raise CacheError(
            "the model takes no sequences of other lengths, so a KV cache can't serve it",
            details=str(error).splitlines(),
        ) from error
    if logits.rank != 3 or found.along.get(logits.vid) != Along(1):
        raise CacheError(
            "the model gives no logits for each token, so a KV cache can't serve it", expected="(batch, length, words)",
            got=str(logits.spec),
        )  # fmt: skip
    return int(logits.shape[2])
