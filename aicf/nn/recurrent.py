"""Recurrent layers: LSTM, GRU and RNN. The products of all inputs are one GEMM, and the steps are a scan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import TypeInferenceError, VerifyError
from ..ir import Value
from . import checks, init
from .layer import Layer
from .layers import Dropout

Step = Callable[
    [Any, Value, Value], tuple[Any, Value]
]  # (state, a row of products of inputs) -> state, what is shown


class _Recurrent(Layer):
    """What LSTM, GRU and RNN have in common: layers, directions and the names of their weights, which are PyTorch's."""

    gates = 1  # matrices of each weight, one below the other
    states = 1

    def __init__(
        self, inputs: int, hidden: int, layers: int = 1, *, bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.inputs, self.hidden = (
            checks.whole(f"{name}: inputs", inputs),
            checks.whole(f"{name}: hidden", hidden, least=1),
        )
        self.layers = checks.whole(f"{name}: layers", layers, least=1)
        self.bias = checks.yes_or_no(f"{name}: bias", bias)
        self.batch_first = checks.yes_or_no(f"{name}: batch_first", batch_first)
        self.dropout = checks.Range(low=0, high=1)(f"{name}: dropout", dropout)
        self.bidirectional = checks.yes_or_no(f"{name}: bidirectional", bidirectional)

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    def emit(self, ctx: Any, x: Value, state: Any = None) -> tuple[Value, Any]:
        name = type(self).__name__
        if x.rank != 3 or x.shape[2] != self.inputs:
            axes = "batch, steps" if self.batch_first else "steps, batch"
            raise TypeInferenceError(
                f"{name}: x is no batch of sequences of {self.inputs} features", expected=f"shape ({axes}, {self.inputs})",
                got=str(x.spec), where=ctx.here(), hint="batch_first=True takes (batch, steps, features)" if x.rank == 3 else None,
            )  # fmt: skip
        x = ctx.computed(x)
        if self.batch_first:
            x = x.transpose(1, 0, 2)
        starts, ends = self._starts(ctx, x, state), list[Any]()
        for layer in range(self.layers):
            if layer and self.dropout:
                x = Dropout(self.dropout).emit(ctx, x)
            shown = []
            for direction in range(self.directions):
                end, y = self._direction(
                    ctx, x, starts[layer * self.directions + direction], layer, direction
                )
                shown.append(y)
                ends.append(end)
            x = shown[0] if len(shown) == 1 else ctx.concatenate(*shown, axis=2)
        stacked = [_stacked(ctx, [end[n] for end in ends]) for n in range(self.states)]
        y = x.transpose(1, 0, 2) if self.batch_first else x
        return y, tuple(stacked) if self.states > 1 else stacked[0]

    def _direction(self, ctx: Any, x: Value, start: tuple[Value, ...], layer: int, direction: int) -> Any:
        """One layer in one direction: the last state, and what all steps show."""
        steps, batch, features = x.shape
        rows, edge = (
            self.gates * self.hidden,
            init.uniform(-1 / math.sqrt(self.hidden), 1 / math.sqrt(self.hidden)),
        )
        suffix = f"l{layer}" + "_reverse" * direction

        def weight(name: str, *shape: int) -> Value:
            use = "bias" if len(shape) == 1 else "weight"
            return ctx.param(f"{name}_{suffix}", shape, edge, x.dtype, use)

        of_input, of_state = weight("weight_ih", rows, features), weight("weight_hh", rows, self.hidden)
        biases = (weight("bias_ih", rows), weight("bias_hh", rows)) if self.bias else ()
        outside, inside = self._biases(ctx, *biases)
        product = ctx.gemm(x.reshape(steps * batch, features), of_input, trans_b=True)
        product = product if outside is None else ctx.bias_add(product, outside)
        step = self._step(ctx, of_state, inside)
        return ctx.scan(step, start, product.reshape(steps, batch, rows), reverse=bool(direction))

    def _biases(
        self, ctx: Any, of_input: Value | None = None, of_state: Value | None = None
    ) -> tuple[Value | None, Value | None]:
        """What is added to all products of inputs, and what to those of each step."""
        return (None if of_input is None or of_state is None else of_input + of_state), None

    def _step(self, ctx: Any, weight: Value, bias: Value | None) -> Callable[..., Any]:
        raise NotImplementedError

    def _starts(self, ctx: Any, x: Value, state: Any) -> list[tuple[Value, ...]]:
        """What each layer and direction begins with."""
        count, shape = self.layers * self.directions, (x.shape[1], self.hidden)
        if state is None:
            zeros = ctx.fill(shape=shape, value=0.0, dtype=x.dtype)
            return [(zeros,) * self.states] * count
        given = (
            (state,) if isinstance(state, Value) else tuple(state) if isinstance(state, (tuple, list)) else ()
        )
        if len(given) != self.states or any(
            not isinstance(s, Value) or s.shape != (count, *shape) for s in given
        ):
            one = f"shape ({count}, {shape[0]}, {shape[1]})"
            raise TypeInferenceError(
                f"{type(self).__name__}: the state does not fit", expected=one if self.states == 1 else f"(h, c), each of {one}",
                got=", ".join(str(getattr(s, "spec", s)) for s in given) or repr(state), where=ctx.here(),
            )  # fmt: skip
        parts = [[ctx.computed(s)[n] for s in given] for n in range(count)]
        return [tuple(part) for part in parts]

    def _part(self, gates: Value, n: int) -> Value:
        return gates[:, n * self.hidden : (n + 1) * self.hidden]

    def children(self) -> Iterator[tuple[str, Any]]:
        return iter(())


class LSTM(_Recurrent):
    """y, (h, c) = LSTM(x): long short-term memory (Hochreiter and Schmidhuber 1997) with forget gates.

        i, f, g, o = x_t @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh, a quarter of the columns each
        c = sigmoid(f) * c + sigmoid(i) * tanh(g);  h = sigmoid(o) * tanh(c);  y_t = h

    Shapes: x (steps, batch, inputs), or (batch, steps, inputs) with `batch_first`; y the same with directions * hidden columns; h and c
    (layers * directions, batch, hidden), those of a layer's directions side by side. All have the element type of x, a float. Weights
    are called as PyTorch's: weight_ih_l0 (4 * hidden, inputs), weight_hh_l0 (4 * hidden, hidden), bias_ih_l0, bias_hh_l0 (4 * hidden,),
    weight_ih_l0_reverse, …; they start uniform within 1 / sqrt(hidden). The number of steps is fixed when a plan is made.

    layers         each reads what the one before it shows
    dropout        of what a layer shows to the next one, when training
    bidirectional  a second scan from the last step to the first; y has its columns behind those of the first

    Packed sequences and projections (proj_size) are left out.
    """

    gates, states = 4, 2

    def emit(self, ctx: Any, x: Value, state: Any = None) -> tuple[Value, tuple[Value, Value]]:
        """state: (h, c) to begin with; zeros if it is None."""
        return super().emit(ctx, x, state)

    def _step(self, ctx: Any, weight: Value, bias: Value | None) -> Callable[..., Any]:
        def step(state: tuple[Value, Value], product: Value) -> Any:
            h, c = state
            gates = ctx.gemm(h, weight, trans_b=True) + product
            i, f, g, o = (self._part(gates, n) for n in range(4))
            c = ctx.sigmoid(f) * c + ctx.sigmoid(i) * ctx.tanh(g)
            h = ctx.sigmoid(o) * ctx.tanh(c)
            return (h, c), h

        return step


class GRU(_Recurrent):
    """y, h = GRU(x): gated recurrent units (Cho et al. 2014), with the reset gate behind the product, as in PyTorch and cuDNN.

        r, z = sigmoid(x_t @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh), the first two thirds of the columns
        n = tanh(x_t @ weight_in.T + bias_in + r * (h @ weight_hn.T + bias_hn)), the last third
        h = (1 - z) * n + z * h;  y_t = h

    Shapes and names as of `LSTM`, with 3 * hidden rows in each weight, and one state: h (layers * directions, batch, hidden).
    """

    gates = 3

    def _biases(
        self, ctx: Any, of_input: Value | None = None, of_state: Value | None = None
    ) -> tuple[Value | None, Value | None]:
        return of_input, of_state

    def _step(self, ctx: Any, weight: Value, bias: Value | None) -> Callable[..., Any]:
        def step(state: tuple[Value], product: Value) -> Any:
            (h,) = state
            inner = ctx.gemm(h, weight, trans_b=True)
            inner = inner if bias is None else ctx.bias_add(inner, bias)
            r, z = (ctx.sigmoid(self._part(product, n) + self._part(inner, n)) for n in (0, 1))
            n = ctx.tanh(self._part(product, 2) + r * self._part(inner, 2))
            h = n + z * (h - n)
            return (h,), h

        return step


class RNN(_Recurrent):
    """y, h = RNN(x): h = act(x_t @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh), y_t = h (Elman 1990).

    Shapes and names as of `LSTM`, with `hidden` rows in each weight, and one state: h (layers * directions, batch, hidden).

    nonlinearity  "tanh" or "relu"
    """

    def __init__(
        self, inputs: int, hidden: int, layers: int = 1, *, nonlinearity: str = "tanh", **more: Any
    ) -> None:
        super().__init__(inputs, hidden, layers, **more)
        if nonlinearity not in ("tanh", "relu"):
            raise VerifyError(f"RNN: nonlinearity is {nonlinearity!r}", expected='"tanh" or "relu"')
        self.nonlinearity = nonlinearity

    def _step(self, ctx: Any, weight: Value, bias: Value | None) -> Callable[..., Any]:
        act = ctx.tanh if self.nonlinearity == "tanh" else ctx.relu

        def step(state: tuple[Value], product: Value) -> Any:
            h = act(ctx.gemm(state[0], weight, trans_b=True) + product)
            return (h,), h

        return step


def _stacked(ctx: Any, parts: list[Value]) -> Value:
    rows = [part.reshape(1, *part.shape) for part in parts]
    return rows[0] if len(rows) == 1 else ctx.concatenate(*rows, axis=0)
