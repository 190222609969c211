"""A model as it goes on with sequences: over the places of a prompt at once, and over one place of each. Both share KV caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import AicfError, CacheError
from ..graph.emit.builder import Builder, GraphEmitter
from ..graph.emit.sequences import Sequences
from ..ir import Value
from ..types import TensorSpec, i32
from .places import Along, PlaceFlow

POSITION = "sequences.position"  # (batch,): places that are done


class Continued:
    """What `compile` is given in a model's place. Its params are the model's.

    model   of one input, the tokens (batch, length), to logits (batch, length, words)
    batch   sequences
    places  that a cache has
    """

    sizes: Mapping[str, int] = {}

    def __init__(self, model: Any, batch: int, places: int) -> None:
        self.model, self.batch, self.places = model, batch, places
        (self.name, spec), *_ = model.inputs.items()
        self.dtype, self.seed = spec.dtype, model.seed

    def go_on(self, ctx: Any, tokens: Value, starts: Value) -> Value:
        """What the model makes of the next tokens (batch, count) of each sequence."""
        ctx.sequences = Sequences(ctx, starts, self.places)
        made: Value = self.model.emit(ctx, {self.name: tokens.astype(self.dtype)})
        return made

    def _position(self, ctx: Any) -> Value:
        position: Value = ctx.session(POSITION, (self.batch,), 0, i32)
        return position


class Prefill(Continued):
    """Keys and values of prompts, padded on the right to one length: `counts` tokens of each are real, and stand from `starts` on.

    What the model makes of them is not asked for, so its head is not computed. Returns where each sequence stands.
    """

    def __init__(self, model: Any, batch: int, places: int, length: int) -> None:
        super().__init__(model, batch, places)
        self.sizes = {"length": length}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        each = TensorSpec((self.batch,), i32)
        return {"tokens": TensorSpec((self.batch, "length"), i32), "starts": each, "counts": each}

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Value:
        self.go_on(ctx, inputs["tokens"], inputs["starts"])
        now: Value = inputs["starts"] + inputs["counts"]
        ctx.update(self._position(ctx), now)
        return now


class Decode(Continued):
    """One token of each sequence to the logits of the next, (batch, words)."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        return {"tokens": TensorSpec((self.batch,), i32)}

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Value:
        position = self._position(ctx)
        logits = self.go_on(ctx, inputs["tokens"].reshape(self.batch, 1), position)
        if logits.rank != 3 or logits.shape[:2] != (self.batch, 1):
            raise no_logits([self.batch, 1, "words"], logits.shape)
        ctx.update(position, position + 1)
        one: Value = logits.reshape(self.batch, logits.shape[2])
        return one


def no_logits(expected: list[Any], shape: tuple[int, ...]) -> AicfError:
    return AicfError(
        "the model gives no logits for each token", expected=f"{expected}", got=f"{list(shape)}",
        hint="leave out what takes the mean, or the last, of a sequence",
    )  # fmt: skip


BATCH, COUNT = 1013, 1009  # that a model is looked at with, if it takes as many: sizes that mean nothing else


def why_uncached(model: Any, places: int) -> CacheError | None:
    """Why a KV cache can't serve a model; None if it can."""
    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    looked_at, count = Continued(model, BATCH, places), min(COUNT, places)
    tokens, starts = ctx.input("tokens", (BATCH, count), i32), ctx.input("starts", (BATCH,), i32)
    try:
        logits = looked_at.go_on(ctx, tokens, starts)
        assert ctx.sequences is not None
        known = {tokens.vid: Along(1), ctx.sequences.positions(count).vid: Along(1)}
        found = PlaceFlow(builder.graph.values, known)
        found.follow(builder.graph.ops)
        if logits.rank != 3 or found.along.get(logits.vid) != Along(1):
            return CacheError(
                "the model gives no logits for each token, so a KV cache can't serve it", expected="(batch, length, words)",
                got=str(logits.spec),
            )  # fmt: skip
    except CacheError as error:
        return error
    except AicfError as error:
        return CacheError(
            "the model takes no sequences of other lengths, so a KV cache can't serve it",
            details=str(error).splitlines(),
        )
    return None
