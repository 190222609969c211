"""What layers over spatial axes share: numbers for each axis, and what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import TypeInferenceError, VerifyError
from ..ir import Value
from . import checks


def each(name: str, value: Any, axes: int, least: int = 0) -> tuple[int, ...]:
    """A whole number for each spatial axis; one stands for all."""
    if isinstance(value, (tuple, list)):
        if len(value) != axes:
            raise VerifyError(f"{name}={value!r}", expected=f"a whole number, or {axes} of them")
        return tuple([checks.whole(name, n, least) for n in value])
    return (checks.whole(name, value, least),) * axes


def batched(ctx: Any, layer: str, x: Value, axes: int, emit: Callable[[Value], Value]) -> Value:
    """What `emit` makes of x (N, C, …); of one example (C, …), which is a batch of one."""
    if x.rank not in (axes + 1, axes + 2):
        raise TypeInferenceError(
            f"{layer}: x has rank {x.rank}", expected=f"shape (N, C, {axes} spatial axes), or that without N", got=str(x.spec),
            where=ctx.here(),
        )  # fmt: skip
    if x.rank == axes + 2:
        return emit(x)
    y = emit(x.reshape(1, *x.shape))
    return y.reshape(*y.shape[1:])


def check_channels(ctx: Any, layer: str, x: Value, channels: int, hint: str | None = None) -> None:
    """x (N, C, …) has so many channels; else an error with `hint`, or with what moves the channels if they are the last axis.

    hint  the layer that takes x as it is
    """
    if x.shape[1] != channels:
        if x.shape[-1] == channels and x.rank > 2:
            shape = (channels, *x.shape[1:-1])
            hint = f"np.moveaxis(x, -1, {-len(shape)}) puts the channels of an array first: declare an input whose shape ends in {shape}"
        raise TypeInferenceError(
            f"{layer}: x has {x.shape[1]} channels, and the layer takes {channels}", expected=f"shape (N, {channels}, …)",
            got=str(x.spec), where=ctx.here(), hint=hint,
        )  # fmt: skip


def check_fits(ctx: Any, layer: str, x: Value, span: tuple[int, ...], padded: tuple[int, ...]) -> None:
    """A window lies somewhere in what is padded."""
    if any(n > size for n, size in zip(span, padded)):
        raise TypeInferenceError(
            f"{layer}: a window that spans {span} does not fit into {padded}, which x is with its padding",
            expected=f"spatial axes of at least {span} with the padding", got=str(x.spec), where=ctx.here(),
        )  # fmt: skip
