"""Layers that are made of layers: chains, residual connections, and the feed-forward part of a transformer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..ir import Initializer, Value
from . import checks
from .layer import Layer
from .layers import GELU, Dropout, Linear


class Sequential(Layer):
    """Layers one after the other; their weights are called `<position>.<name>`."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = checks.layers(layers)

    def emit(self, ctx: Any, x: Value) -> Value:
        for n, layer in enumerate(self.layers):
            x = ctx.layer(layer, str(n), x)
        return x

    def children(self) -> Iterator[tuple[str, Any]]:
        yield from ((str(n), layer) for n, layer in enumerate(self.layers))

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"


class Residual(Layer):
    """x + f(x)."""

    def __init__(self, *layers: Layer) -> None:
        self.inner = Sequential(*layers)

    def emit(self, ctx: Any, x: Value) -> Value:
        return x + self.inner.emit(ctx, x)

    def children(self) -> Iterator[tuple[str, Any]]:
        return self.inner.children()

    def __repr__(self) -> str:
        return f"Residual({', '.join(map(repr, self.inner.layers))})"


class MLP(Layer):
    """down(activation(up(x))), with dropout behind it: the feed-forward part of a transformer.

    Shapes: x and y (..., size), of a float. Weights: up.weight (hidden, size), down.weight (size, hidden), and their biases.

    hidden      4 * size unless it is given
    activation  a layer, by default GELU()
    dropout     the rate of it
    weight_init, out_init   of up.weight and of down.weight, which is initialised as the former unless it is given; as Linear's
    """

    def __init__(
        self,
        size: int,
        hidden: int | None = None,
        activation: Layer | None = None,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        weight_init: Initializer | None = None,
        out_init: Initializer | None = None,
    ) -> None:
        size = checks.whole("MLP: size", size)
        hidden = 4 * size if hidden is None else checks.whole("MLP: hidden", hidden)
        self.up = Linear(size, hidden, bias, weight_init=weight_init)
        self.down = Linear(hidden, size, bias, weight_init=out_init or weight_init)
        self.activation = GELU() if activation is None else checks.layer(activation)
        self.dropout = Dropout(dropout)

    def emit(self, ctx: Any, x: Value) -> Value:
        return self.dropout(self.down(ctx.layer(self.activation, "activation", self.up(x))))


class SwiGLU(Layer):
    """down(silu(gate(x)) * up(x)), with dropout behind it: the feed-forward part of Llama (Shazeer 2020).

    Shapes: x and y (..., size), of a float. Weights: gate.weight and up.weight (hidden, size), down.weight (size, hidden), and, if
    asked for, their biases.

    hidden   by default 8/3 * size, which makes as many weights as an MLP of 4 * size, up to the next multiple of 64
    dropout  the rate of it
    weight_init, out_init   of gate.weight and up.weight, and of down.weight; as MLP's
    """

    def __init__(
        self,
        size: int,
        hidden: int | None = None,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        weight_init: Initializer | None = None,
        out_init: Initializer | None = None,
    ) -> None:
        size = checks.whole("SwiGLU: size", size)
        hidden = -(-8 * size // 192) * 64 if hidden is None else checks.whole("SwiGLU: hidden", hidden)
        self.gate = Linear(size, hidden, bias, weight_init=weight_init)
        self.up = Linear(size, hidden, bias, weight_init=weight_init)
        self.down = Linear(hidden, size, bias, weight_init=out_init or weight_init)
        self.dropout = Dropout(dropout)

    def emit(self, ctx: Any, x: Value) -> Value:
        return self.dropout(self.down(ctx.silu(self.gate(x)) * self.up(x)))
