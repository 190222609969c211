"""Model and layers. A layer chooses values and emits ops through `ctx`; it never names a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import VerifyError
from ..graph.build.builder import Builder, GraphEmitter, user_line
from ..ir import Graph, Initializer, Value
from ..types import TensorSpec
from . import init


class Layer:
    """Emits its part of the forward pass: `emit(ctx, x) -> y`, declaring weights with `ctx.param`."""

    def emit(self, ctx: Any, x: Value) -> Value:
        raise NotImplementedError(f"{type(self).__name__}.emit")

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{k}={v!r}" for k, v in vars(self).items() if isinstance(v, (bool, int, float, str))
        )
        return f"{type(self).__name__}({shown})"


class Linear(Layer):
    """y = x @ weight.T + bias: x (N, inputs), weight (outputs, inputs), bias (outputs,), y (N, outputs)."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        self.inputs, self.outputs, self.bias = inputs, outputs, bias
        self.weight_init = weight_init or init.kaiming_uniform(math.sqrt(5.0))
        edge = 1.0 / math.sqrt(max(inputs, 1))
        self.bias_init = bias_init or init.uniform(-edge, edge)

    def emit(self, ctx: Any, x: Value) -> Value:
        weight = ctx.param("weight", (self.outputs, self.inputs), self.weight_init, x.dtype)
        y = ctx.gemm(x, weight, trans_b=True)
        return (
            ctx.bias_add(y, ctx.param("bias", (self.outputs,), self.bias_init, x.dtype)) if self.bias else y
        )


class BiasAdd(Layer):
    """y = x + bias over the columns: x (M, N), bias (N,)."""

    def __init__(self, size: int, bias_init: Initializer = init.zeros) -> None:
        self.size, self.bias_init = size, bias_init

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.bias_add(x, ctx.param("bias", (self.size,), self.bias_init, x.dtype))


class ReLU(Layer):
    """max(x, 0)."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.relu(x)


class LeakyReLU(Layer):
    """x where positive, else slope * x."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.leaky_relu(x, slope=self.slope)


class GELU(Layer):
    """x times the normal distribution's CDF, in its tanh form or, approximate=False, by erf."""

    def __init__(self, approximate: bool = True) -> None:
        self.approximate = approximate

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


class Sequential(Layer):
    """Layers one after the other; their weights are called `<position>.<name>`."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = list(layers)

    def emit(self, ctx: Any, x: Value) -> Value:
        for n, layer in enumerate(self.layers):
            with ctx.scope(str(n)):
                x = layer.emit(ctx, x)
        return x

    def __repr__(self) -> str:
        return f"Sequential({', '.join(map(repr, self.layers))})"


class Residual(Layer):
    """x + f(x)."""

    def __init__(self, *layers: Layer) -> None:
        self.inner = Sequential(*layers)

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.add(x, self.inner.emit(ctx, x))

    def __repr__(self) -> str:
        return f"Residual({', '.join(map(repr, self.inner.layers))})"


class Model:
    """A chain of layers over the first input.

    inputs  specs by name; dimensions may be names, such as "batch", whose sizes follow each feed
    sizes   a size for each named dimension: the one that `add` checks types with and `compile` plans for first
    seed    of the initialisers

        model = Model({"x": TensorSpec(("batch", 64))}, batch=32)
        model.add(Linear(64, 10)).add(ReLU())
    """

    def __init__(self, inputs: Mapping[str, TensorSpec], *, seed: int = 0, **sizes: int) -> None:
        self.inputs, self.sizes, self.seed = dict(inputs), dict(sizes), seed
        if not self.inputs:
            raise VerifyError(
                "a model needs an input", hint='Model({"x": TensorSpec(("batch", 64))}, batch=32)'
            )
        unbound = sorted({d for s in self.inputs.values() for d in s.dims} - set(sizes))
        if unbound:
            raise VerifyError(f"no size for {', '.join(unbound)}", hint=f"Model(..., {unbound[0]}=32)")
        self.layers: list[tuple[str, Layer]] = []
        self._lines: dict[str, str] = {}  # where each layer was added, for messages
        self._builder = Builder()
        self._ctx = GraphEmitter(self._builder, "cpu")
        self._values = {n: self._ctx.input(n, s.bind(sizes).shape, s.dtype) for n, s in self.inputs.items()}
        self._last = next(iter(self._values.values()))

    def add(self, layer: Layer, name: str | None = None) -> Model:
        """Emit a layer after those there are (C1). A shape that does not fit is an error here, at the caller's line."""
        name = name or str(len(self.layers))
        if name in dict(self.layers):
            raise VerifyError(f"two layers are called {name!r}", where=user_line())
        before = len(self._builder.graph.values), len(self._builder.graph.ops)
        try:
            with self._ctx.scope(name):
                self._last = layer.emit(self._ctx, self._last)
        except Exception:
            self._builder.rewind(*before)  # a refused layer leaves no trace
            raise
        self.layers.append((name, layer))
        self._lines[name] = user_line()
        return self

    def __copy__(self) -> Model:
        """The layers of now, to be emitted: what is added to the original later is not in the copy."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, layers=list(self.layers), _lines=dict(self._lines))
        return other

    @property
    def graph(self) -> Graph:
        """The forward graph at the model's own sizes, as `add` emitted it."""
        return self._builder.graph

    @property
    def output(self) -> TensorSpec:
        return self._last.spec

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Value:
        """Emit the whole model again, for the sizes of these inputs."""
        x = next(iter(inputs.values()))
        for name, layer in self.layers:
            with ctx.scope(name, self._lines[name]):
                x = layer.emit(ctx, x)
        return x

    def summary(self) -> list[tuple[str, str, str, int]]:
        """(name, layer, output type, parameters) for each layer."""
        rows = []
        builder = Builder()
        ctx = GraphEmitter(builder, "cpu")
        name, spec = next(iter(self.inputs.items()))
        x = ctx.input(name, spec.bind(self.sizes).shape, spec.dtype)
        for name, layer in self.layers:
            before = _parameters(builder.graph)
            with ctx.scope(name):
                x = layer.emit(ctx, x)
            rows.append((name, repr(layer), str(x.spec), _parameters(builder.graph) - before))
        return rows

    def __repr__(self) -> str:
        body = "".join(f"\n  {name}: {layer!r}" for name, layer in self.layers)
        return f"Model({', '.join(f'{n}: {s}' for n, s in self.inputs.items())}){body}"


def _parameters(graph: Graph) -> int:
    return sum(v.spec.numel for v in graph.values if v.role.value == "param")
