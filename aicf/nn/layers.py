"""The layers. A layer chooses values and emits ops through `ctx`; it never names a kernel."""

from __future__ import annotations

import math
from typing import Any

from ..ir import Initializer, Value
from . import checks, init


class Layer:
    """Emits its part of the forward pass: `emit(ctx, x) -> y`, declaring weights with `ctx.param`.

    A layer that holds others emits them with `ctx.layer(layer, name, x)`, which names their weights. A layer object that is
    used in two places has one set of weights.
    """

    def emit(self, ctx: Any, x: Value) -> Value:
        raise NotImplementedError(f"{type(self).__name__}.emit")

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{k}={v!r}" for k, v in vars(self).items() if isinstance(v, (bool, int, float, str))
        )
        return f"{type(self).__name__}({shown})"


class Linear(Layer):
    """y = x @ weight.T + bias: x (..., N, inputs), weight (outputs, inputs), bias (outputs,), y (..., N, outputs)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        self.inputs = checks.whole("Linear: inputs", inputs)
        self.outputs = checks.whole("Linear: outputs", outputs)
        self.bias = checks.yes_or_no("Linear: bias", bias)
        edge = 1.0 / math.sqrt(max(self.inputs, 1))
        self.weight_init = checks.initializer(
            "weight_init", weight_init or init.kaiming_uniform(math.sqrt(5.0))
        )
        self.bias_init = checks.initializer("bias_init", bias_init or init.uniform(-edge, edge))

    def emit(self, ctx: Any, x: Value) -> Value:
        weight = ctx.param("weight", (self.outputs, self.inputs), self.weight_init, x.dtype)
        y = ctx.gemm(x, weight, trans_b=True)
        return (
            ctx.bias_add(y, ctx.param("bias", (self.outputs,), self.bias_init, x.dtype)) if self.bias else y
        )


class BiasAdd(Layer):
    """y = x + bias over the columns: x (..., M, N), bias (N,)."""

    def __init__(self, size: int, bias_init: Initializer = init.zeros) -> None:
        self.size = checks.whole("BiasAdd: size", size)
        self.bias_init = checks.initializer("bias_init", bias_init)

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.bias_add(x, ctx.param("bias", (self.size,), self.bias_init, x.dtype))


class ReLU(Layer):
    """max(x, 0)."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.relu(x)


class LeakyReLU(Layer):
    """x where positive, else slope * x."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = checks.anything("LeakyReLU: slope", slope)

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.leaky_relu(x, slope=self.slope)


class GELU(Layer):
    """x times the normal distribution's CDF, in its tanh form or, approximate=False, by erf."""

    def __init__(self, approximate: bool = True) -> None:
        self.approximate = checks.yes_or_no("GELU: approximate", approximate)

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.gelu(x) if self.approximate else ctx.gelu_erf(x)


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.sigmoid(x)


class Tanh(Layer):
    """Hyperbolic tangent."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.tanh(x)


class Dropout(Layer):
    """In training, each element is 0 with probability `rate`, and those kept are scaled by 1 / (1 - rate); else x.

    The masks come from the model's seed and the number of the step: `state_dict` has both, as "rng".
    """

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = checks.Range(low=0, high=1)("Dropout: rate", rate)

    def emit(self, ctx: Any, x: Value) -> Value:
        if not ctx.training or self.rate == 0:
            return x
        state, number = ctx.random()
        return ctx.dropout(x, state, rate=self.rate, layer=number)


class Sequential(Layer):
    """Layers one after the other; their weights are called `<position>.<name>`."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = checks.layers(layers)

    def emit(self, ctx: Any, x: Value) -> Value:
        for n, layer in enumerate(self.layers):
            x = ctx.layer(layer, str(n), x)
        return x

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"


class Residual(Layer):
    """x + f(x)."""

    def __init__(self, *layers: Layer) -> None:
        self.inner = Sequential(*layers)

    def emit(self, ctx: Any, x: Value) -> Value:
        return x + self.inner.emit(ctx, x)

    def __repr__(self) -> str:
        return f"Residual({', '.join(map(repr, self.inner.layers))})"
