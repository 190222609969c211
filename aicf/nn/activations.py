"""Activations beyond the commonest, which are in layers.py."""

from __future__ import annotations

import math
from typing import Any

from ..errors import TypeInferenceError
from ..ir import Initializer, Value
from . import checks, init
from .layer import Layer


class _OfOneOp(Layer):
    """An op of one Value, without numbers of its own."""

    op = ""

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.op(self.op, x)
        return y


class SELU(_OfOneOp):
    """1.0507 * x where positive, else 1.0507 * 1.67326 * (exp(x) - 1)."""

    op = "selu"


class Mish(_OfOneOp):
    """x * tanh(softplus(x))."""

    op = "mish"


class Hardswish(_OfOneOp):
    """x * clip(x + 3, 0, 6) / 6."""

    op = "hard_swish"


class Hardsigmoid(_OfOneOp):
    """clip(x / 6 + 1/2, 0, 1)."""

    op = "hard_sigmoid"


class ELU(Layer):
    """x where positive, else alpha * (exp(x) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = checks.anything("ELU: alpha", alpha)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.elu(x, alpha=self.alpha)
        return y


class CELU(Layer):
    """x where positive, else alpha * (exp(x / alpha) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = checks.positive("CELU: alpha", alpha)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.celu(x, alpha=self.alpha)
        return y


class Hardtanh(Layer):
    """x within [min_val, max_val], and the nearer of the two beyond."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val = checks.anything("Hardtanh: min_val", min_val)
        self.max_val = checks.Range(low=self.min_val)("Hardtanh: max_val", max_val)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.clamp(self.min_val, x, self.max_val)
        return y


class ReLU6(Layer):
    """min(max(x, 0), 6)."""

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.clamp(0.0, x, 6.0)
        return y


class Softplus(Layer):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is over the threshold, where they are the same when rounded."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = checks.positive("Softplus: beta", beta)
        self.threshold = checks.anything("Softplus: threshold", threshold)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.softplus(x, beta=self.beta)
        return y if self.threshold >= 20 else ctx.select(ctx.greater(x, self.threshold / self.beta), x, y)


class Softsign(Layer):
    """x / (1 + |x|)."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return x / (abs(x) + 1.0)


class LogSigmoid(Layer):
    """log(1 / (1 + exp(-x))), by what overflows nowhere."""

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.neg(ctx.softplus(ctx.neg(x)))
        return y


class Tanhshrink(Layer):
    """x - tanh(x)."""

    def emit(self, ctx: Any, x: Value) -> Value:
        return x - ctx.tanh(x)


class Hardshrink(Layer):
    """x where |x| is over lambd, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = checks.not_negative("Hardshrink: lambd", lambd)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.select(ctx.less_equal(ctx.abs(x), self.lambd), 0.0, x)
        return y


class Softshrink(Layer):
    """x nearer to 0 by lambd, and 0 where |x| is no more than that."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = checks.not_negative("Softshrink: lambd", lambd)

    def emit(self, ctx: Any, x: Value) -> Value:
        return x - ctx.clamp(-self.lambd, x, self.lambd)


class Threshold(Layer):
    """x where it is over the threshold, else the value."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold = checks.anything("Threshold: threshold", threshold)
        self.value = checks.anything("Threshold: value", value)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.select(ctx.greater(x, self.threshold), x, self.value)
        return y


class PReLU(Layer):
    """x where positive, else weight * x, with a weight that is learnt.

    Shapes: x and y (N, C, …) or any; weight (num_parameters,): one for all, or one for each channel.
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        self.num_parameters = checks.whole("PReLU: num_parameters", num_parameters, 1)
        self.init = checks.anything("PReLU: init", init)

    def emit(self, ctx: Any, x: Value) -> Value:
        count = self.num_parameters
        if count > 1 and (x.rank < 2 or x.shape[1] != count):
            raise TypeInferenceError(
                f"PReLU: x does not have {count} channels",
                expected=f"shape (N, {count}, …)",
                got=str(x.spec),
                where=ctx.here(),
            )
        x = ctx.computed(x)
        weight = ctx.param("weight", (count,), _constant(self.init), x.dtype)
        beside = weight.reshape(count, *[1] * (x.rank - 2)) if count > 1 else weight.reshape(())
        y: Value = ctx.select(ctx.greater(x, 0.0), x, x * beside)
        return y


def _constant(value: float) -> Initializer:
    return init.constant(value)


class Softmax(Layer):
    """exp(x) over its sum along an axis, by default the last."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = checks.whole("Softmax: dim", dim, -8)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.softmax(x, axis=self.dim)
        return y


class Softmin(Layer):
    """The softmax of -x along an axis, by default the last."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = checks.whole("Softmin: dim", dim, -8)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.softmax(ctx.neg(x), axis=self.dim)
        return y


class LogSoftmax(Layer):
    """The logarithm of the softmax along an axis, by default the last."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = checks.whole("LogSoftmax: dim", dim, -8)

    def emit(self, ctx: Any, x: Value) -> Value:
        y: Value = ctx.log_softmax(x, axis=self.dim)
        return y


class Softmax2d(Layer):
    """The softmax over the channels at each place: x and y (N, C, H, W) or (C, H, W)."""

    def emit(self, ctx: Any, x: Value) -> Value:
        if x.rank not in (3, 4):
            raise TypeInferenceError(
                f"Softmax2d: x has rank {x.rank}",
                expected="shape (N, C, H, W) or (C, H, W)",
                got=str(x.spec),
                where=ctx.here(),
            )
        y: Value = ctx.softmax(x, axis=-3)
        return y


class GLU(Layer):
    """The first half of x along an axis, times the sigmoid of the second (Dauphin et al. 2017): that axis is halved."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = checks.whole("GLU: dim", dim, -8)

    def emit(self, ctx: Any, x: Value) -> Value:
        axis = self.dim + x.rank if self.dim < 0 else self.dim
        if not 0 <= axis < x.rank or x.shape[axis] % 2:
            raise TypeInferenceError(
                f"GLU: axis {self.dim} of x can't be halved",
                expected="an axis of even size",
                got=str(x.spec),
                where=ctx.here(),
            )
        half = x.shape[axis] // 2
        cuts = [
            ctx.slice(
                x, start=tuple([first if a == axis else 0 for a in range(x.rank)]),
                limit=tuple([first + half if a == axis else n for a, n in enumerate(x.shape)]),
            )
            for first in (0, half)
        ]  # fmt: skip
        y: Value = ctx.mul(cuts[0], ctx.sigmoid(cuts[1]))
        return y


# --- dropout of more than elements ------------------------------------------------------------------------------------


class _Dropout(Layer):
    """Whole channels of x (N, C, …) are 0."""

    axes = 0

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = checks.Range(low=0, high=1)(f"{type(self).__name__}: rate", rate)

    def emit(self, ctx: Any, x: Value) -> Value:
        kind = type(self).__name__
        if x.rank not in (self.axes + 1, self.axes + 2):
            raise TypeInferenceError(
                f"{kind}: x has rank {x.rank}", expected=f"(N, C, {self.axes} spatial axes), or that without N", got=str(x.spec),
                where=ctx.here(),
            )  # fmt: skip
        if not ctx.training or self.rate == 0:
            return x
        channels = (*x.shape[: x.rank - self.axes], *[1] * self.axes)
        return x * _dropped(ctx, channels, x.dtype, self.rate)


def _dropped(ctx: Any, shape: tuple[int, ...], dtype: Any, rate: float) -> Value:
    """1 / (1 - rate), or 0 with a probability of `rate`."""
    state, number = ctx.random()
    ones = ctx.fill(shape=shape, value=1.0, dtype=dtype)
    made: Value = ctx.dropout(ones, state, rate=rate, layer=number)
    return made


class Dropout1d(_Dropout):
    """In training, each channel of each example is 0 with probability `rate`, and those kept are scaled by 1 / (1 - rate); else x.

    Shapes: x and y (N, C, L) or (C, L).
    """

    axes = 1


class Dropout2d(_Dropout):
    """Dropout1d of images: x and y (N, C, H, W) or (C, H, W)."""

    axes = 2


class Dropout3d(_Dropout):
    """Dropout1d of volumes: x and y (N, C, D, H, W) or (C, D, H, W)."""

    axes = 3


class AlphaDropout(Layer):
    """In training, each element is SELU's least value with probability `rate`, and all are scaled and moved so that mean and variance stay
    as they were (Klambauer et al. 2017); else x."""

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = checks.Range(low=0, high=1, open_high=True)("AlphaDropout: rate", rate)

    def emit(self, ctx: Any, x: Value) -> Value:
        if not ctx.training or self.rate == 0:
            return x
        least, keep = -1.7580993408473766, 1.0 - self.rate
        scale = 1 / math.sqrt(keep * (1 + self.rate * least * least))
        kept = _dropped(ctx, x.shape, x.dtype, self.rate) * keep
        y: Value = (x * kept + (1.0 - kept) * least) * scale - scale * self.rate * least
        return y
