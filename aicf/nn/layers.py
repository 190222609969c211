"""The layers. A layer chooses values and emits ops through `ctx`; it never names a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..errors import TypeInferenceError
from ..ir import Initializer, Value
from ..types import DType, f32
from . import checks, init
from .layer import Layer


class Linear(Layer):
    """y = x @ weight.T + bias along the last axis.

    Shapes: x (..., inputs), weight (outputs, inputs), bias (outputs,), y (..., outputs). All have the element type of x, a float.

    weight  a layer whose `weight` is this layer's too, as in GPT-2, whose head has the weight of its embedding. That layer is
            emitted first; the weight is trained by the sum of its gradients
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        weight_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        weight: Any = None,
    ) -> None:
        self.inputs = checks.whole("Linear: inputs", inputs)
        self.outputs = checks.whole("Linear: outputs", outputs)
        self.bias = checks.yes_or_no("Linear: bias", bias)
        self.tied = None if weight is None else checks.layer(weight)
        edge = 1.0 / math.sqrt(max(self.inputs, 1))
        self.weight_init = checks.initializer(
            "weight_init", weight_init or init.kaiming_uniform(math.sqrt(5.0))
        )
        self.bias_init = checks.initializer("bias_init", bias_init or init.uniform(-edge, edge))

    def _that_fits(self, x: Value) -> str:
        """What to add in place of this layer, whose features are not those of x: a layer before it, or one of another size."""
        bias = "" if self.bias else ", bias=False"
        if x.rank > 2 and math.prod(x.shape[1:]) == self.inputs:
            return f"nn.Flatten() before nn.Linear({self.inputs}, {self.outputs}{bias})"
        return f"nn.Linear({x.shape[-1]}, {self.outputs}{bias})"

    def emit(self, ctx: Any, x: Value) -> Value:
        if x.rank == 0:
            raise TypeInferenceError(
                "Linear: x is 0-D", expected=f"shape (..., {self.inputs})", got=str(x.spec), where=ctx.here()
            )
        if x.shape[-1] != self.inputs:
            raise TypeInferenceError(
                f"Linear: x has {x.shape[-1]} features, and the layer takes {self.inputs}", expected=f"shape (..., {self.inputs})",
                got=str(x.spec), where=ctx.here(), hint=self._that_fits(x),
            )  # fmt: skip
        x, shape = ctx.computed(x), (self.outputs, self.inputs)
        weight = (
            ctx.param("weight", shape, self.weight_init, x.dtype)
            if self.tied is None
            else ctx.param_of(self.tied, "weight", shape, x.dtype)
        )
        # all rows are one product's: its kernels, its epilogue and its gradients know no batch
        rows = x if x.rank == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y = ctx.gemm(rows, weight, trans_b=True)
        if self.bias:
            y = ctx.bias_add(y, ctx.param("bias", (self.outputs,), self.bias_init, x.dtype, "bias"))
        return y if x.rank == 2 else y.reshape(*x.shape[:-1], self.outputs)

    def children(self) -> Iterator[tuple[str, Any]]:
        return iter(())  # the layer that the weight is tied to is a part of another


class Embedding(Layer):
    """y[...] = weight[ids[...]]: a row of the table for each number.

    Shapes: ids (...), of i32 or i64; weight (entries, width) of `dtype`, y (..., width). A number from -entries to -1 counts from the
    end; one beyond is an OutOfBoundsError, and nothing of its run is kept.
    """

    def __init__(
        self, entries: int, width: int, dtype: Any = f32, *, weight_init: Initializer | None = None
    ) -> None:
        self.entries = checks.whole("Embedding: entries", entries)
        self.width = checks.whole("Embedding: width", width)
        self.dtype = DType.of(dtype)
        self.weight_init = checks.initializer("weight_init", weight_init or init.normal())

    def emit(self, ctx: Any, ids: Value) -> Value:
        if ids.dtype.kind != "int":
            raise TypeInferenceError(
                f"Embedding: the numbers of rows are {ids.dtype}", expected="i32 or i64", got=repr(ids), where=ctx.here(),
                hint='declare them: nn.Model({"tokens": aicf.TensorSpec(("batch", "seq"), aicf.i32)}, ...)',
            )  # fmt: skip
        return ctx.gather(
            ctx.param("weight", (self.entries, self.width), self.weight_init, self.dtype, "embedding"), ids
        )


class LayerNorm(Layer):
    """(x - mean) / sqrt(var + eps) * weight + bias, with mean and variance along the last axis (Ba et al. 2016).

    Shapes: x and y (..., size), weight and bias (size,), of the element type of x; statistics are f32.

    affine  whether there are a weight, which starts at 1, and, if `bias`, a bias, which starts at 0
    """

    def __init__(self, size: int, eps: float = 1e-5, *, affine: bool = True, bias: bool = True) -> None:
        self.size = checks.whole("LayerNorm: size", size)
        self.eps = checks.not_negative("LayerNorm: eps", eps)
        self.affine = checks.yes_or_no("LayerNorm: affine", affine)
        self.bias = checks.yes_or_no("LayerNorm: bias", bias) and affine

    def emit(self, ctx: Any, x: Value) -> Value:
        _check_last(ctx, "LayerNorm", x, self.size)
        x = ctx.computed(x)
        weight = ctx.param("weight", (self.size,), init.ones, x.dtype, "norm") if self.affine else None
        bias = ctx.param("bias", (self.size,), init.zeros, x.dtype, "norm") if self.bias else None
        return ctx.layer_norm(x, weight, bias, eps=self.eps)


class RMSNorm(Layer):
    """x / sqrt(mean(x^2) + eps) * weight, with the mean along the last axis (Zhang and Sennrich 2019).

    Shapes: x and y (..., size), weight (size,), of the element type of x; statistics are f32.

    affine  whether there is a weight, which starts at 1
    """

    def __init__(self, size: int, eps: float = 1e-6, *, affine: bool = True) -> None:
        self.size = checks.whole("RMSNorm: size", size)
        self.eps = checks.not_negative("RMSNorm: eps", eps)
        self.affine = checks.yes_or_no("RMSNorm: affine", affine)

    def emit(self, ctx: Any, x: Value) -> Value:
        _check_last(ctx, "RMSNorm", x, self.size)
        x = ctx.computed(x)
        weight = ctx.param("weight", (self.size,), init.ones, x.dtype, "norm") if self.affine else None
        return ctx.rms_norm(x, weight, eps=self.eps)


def _check_last(ctx: Any, layer: str, x: Value, size: int) -> None:
    if x.shape[-1:] != (size,):
        raise TypeInferenceError(
            f"{layer}: x does not have {size} columns", expected=f"shape (..., {size})", got=str(x.spec), where=ctx.here(),
        )  # fmt: skip


class BiasAdd(Layer):
    """y = x + bias over the columns: x (..., M, N), bias (N,)."""

    def __init__(self, size: int, bias_init: Initializer = init.zeros) -> None:
        self.size = checks.whole("BiasAdd: size", size)
        self.bias_init = checks.initializer("bias_init", bias_init)

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.bias_add(x, ctx.param("bias", (self.size,), self.bias_init, x.dtype, "bias"))


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


class SiLU(Layer):
    """x / (1 + exp(-x)), also called swish."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return ctx.silu(x)


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
