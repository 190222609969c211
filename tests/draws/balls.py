"""What ops compute, in float64, and how far rounding may take a kernel from it: the oracle of random programs.

A `Ball` is the exact value and a bound on the error that arithmetic in f32, and storage in a value's own type, may have made on
the way. The bound follows from the formulas and grows with them. Nothing here calls aicf's references.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from aicf.types import ActKind, DType

ROUNDING = 2.0**-24  # of arithmetic in f32


@dataclass
class Ball:
    """Exact values, and by how much what is computed may differ from each."""

    v: np.ndarray
    e: np.ndarray

    @classmethod
    def of(cls, v: Any) -> Ball:
        return cls(np.asarray(v, np.float64), np.zeros(np.shape(v)))

    def stored(self, dtype: DType) -> Ball:
        """Rounded to an element type, to nearest."""
        if dtype.kind != "float":
            return self
        info = ml_dtypes.finfo(dtype.numpy)
        least = float(info.smallest_subnormal)
        return Ball(self.v, self.e + (np.abs(self.v) + self.e) * 2.0 ** -(info.nmant + 1) + least)

    def each(self, how: Callable[..., Any]) -> Ball:
        """What moves elements without arithmetic, of values and errors alike."""
        return Ball(np.ascontiguousarray(how(self.v)), np.ascontiguousarray(how(self.e)))

    def reduced(self, how: str, axes: tuple[int, ...], keepdims: bool) -> Ball:
        axes = axes or tuple(range(self.v.ndim))
        count = math.prod(self.v.shape[a] for a in axes)
        over = {"axis": axes, "keepdims": keepdims}
        if how == "max":
            least = {"initial": -np.inf, **over}
            return Ball(self.v.max(**least), self.e.max(initial=0.0, **over))
        total, size = self.v.sum(**over), np.abs(self.v).sum(**over)
        e = self.e.sum(**over) + (count + 1) * ROUNDING * (size + self.e.sum(**over))
        if how == "sum":
            return Ball(total, e)
        return (
            Ball(total / count, e / count + 2 * ROUNDING * np.abs(total / count))
            if count
            else Ball(total / 0.0, e)
        )


def apply(function: Callable[..., Any], *balls: Ball, ulps: float = 2.0, beside: float = 0.0) -> Ball:
    """A function of elements in f32: how far the errors of its operands carry, found at the corners of their box.

    beside  units of the last place of the operands that it may lose, too, where it subtracts within
    """
    v = function(*[b.v for b in balls])
    e = np.zeros(np.shape(v))
    for signs in product((-1, 1), repeat=len(balls)):
        e = np.maximum(e, np.abs(function(*[b.v + s * b.e for s, b in zip(signs, balls)]) - v))
    e = 1.5 * e + ulps * ROUNDING * (np.abs(v) + e) + 2.0**-140
    return Ball(v, e + sum(beside * ROUNDING * np.abs(b.v) for b in balls))


_erf = np.vectorize(math.erf, otypes=[np.float64])
ELEMENTS: Mapping[str, tuple[Callable[..., Any], float, float]] = {
    "neg": (np.negative, 0, 0), "abs": (np.abs, 0, 0), "exp": (np.exp, 4, 0), "tanh": (np.tanh, 4, 0), "square": (np.square, 2, 0),
    "sqrt": (lambda x: np.sqrt(np.maximum(x, 0)), 2, 0), "log": (lambda x: np.log(np.maximum(x, 1e-300)), 4, 4),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 8, 0), "relu": (lambda x: np.maximum(x, 0), 0, 0), "copy": (lambda x: x, 0, 0),
    "gelu_erf": (lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), 8, 8), "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), 2, 0),
    "gelu": (lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 8, 8),
    "add": (np.add, 2, 0), "sub": (np.subtract, 2, 0), "mul": (np.multiply, 2, 0), "div": (np.divide, 2, 0),
    "maximum": (np.maximum, 0, 0), "minimum": (np.minimum, 0, 0), "select": (lambda c, a, b: np.where(c != 0, a, b), 0, 0),
    "greater": (lambda a, b: (a > b) * 1.0, 0, 0), "less_equal": (lambda a, b: (a <= b) * 1.0, 0, 0),
    "add_gradient": (np.add, 2, 0), "squared_error": (lambda a, b: (a - b) ** 2, 4, 0),
}  # fmt: skip
UNARY = ["neg", "abs", "exp", "tanh", "square", "sigmoid", "relu", "gelu_erf", "gelu", "leaky_relu", "copy"]
BINARY = ["add", "sub", "mul", "maximum", "minimum", "squared_error"]
ACTS = {
    int(ActKind.none): "copy",
    int(ActKind.relu): "relu",
    int(ActKind.tanh): "tanh",
    int(ActKind.gelu): "gelu",
}


def element(kind: str, *balls: Ball) -> Ball:
    function, ulps, beside = ELEMENTS[kind]
    return apply(function, *balls, ulps=ulps, beside=beside)


def _shifted(x: Ball, axis: int) -> tuple[Ball, Ball]:
    most = x.reduced("max", (axis,), True)
    return element("sub", x, most), most


def _softmax(x: Ball, axis: int) -> Ball:
    e = element("exp", _shifted(x, axis)[0])
    return element("mul", e, apply(lambda s: 1 / s, e.reduced("sum", (axis,), True)))


def _log_softmax(x: Ball, axis: int) -> Ball:
    shifted, _ = _shifted(x, axis)
    return element("sub", shifted, element("log", element("exp", shifted).reduced("sum", (axis,), True)))


def _logsumexp(x: Ball, axis: int) -> Ball:
    shifted, most = _shifted(x, axis)
    return element("add", element("log", element("exp", shifted).reduced("sum", (axis,), True)), most)


def _rstd(x: Ball, eps: float) -> Ball:
    mean = element("square", x).reduced("mean", (-1,), True)
    return apply(lambda m: 1 / np.sqrt(np.maximum(m, 0) + eps), mean, ulps=6)


def _layer_norm(x: Ball, weight: Ball, bias: Ball, eps: float) -> Ball:
    centred = element("sub", x, x.reduced("mean", (-1,), True))
    return element("add", element("mul", element("mul", centred, _rstd(centred, eps)), weight), bias)


def _rms_norm(x: Ball, weight: Ball, eps: float) -> Ball:
    return element("mul", element("mul", x, _rstd(x, eps)), weight)


def _gemm(
    a: Ball,
    b: Ball,
    c: Ball | None,
    bias: Ball | None,
    *,
    alpha: float,
    beta: float = 1.0,
    trans_a: bool,
    trans_b: bool,
    act: int,
) -> Ball:
    a, b = (x.each(lambda m: np.swapaxes(m, -1, -2)) if t else x for x, t in ((a, trans_a), (b, trans_b)))
    size = np.abs(a.v) @ np.abs(b.v)
    far = np.abs(a.v) @ b.e + a.e @ np.abs(b.v) + a.e @ b.e
    z = Ball(a.v @ b.v, far + (a.v.shape[-1] + 1) * ROUNDING * (size + far))
    z = apply(lambda x: np.float64(np.float32(alpha)) * x, z)
    for term in (c, bias):
        z = z if term is None else element("add", z, term)
    return element(ACTS[act], z)


def _pad(x: Ball, value: float, low: tuple, high: tuple, interior: tuple) -> Ball:
    made = []
    for part, fill in ((x.v, value), (x.e, 0.0)):
        shape = [n + max(n - 1, 0) * i for n, i in zip(part.shape, interior)]
        wide = np.full([s + max(lo, 0) + max(hi, 0) for s, lo, hi in zip(shape, low, high)], fill)
        wide[tuple(slice(max(lo, 0), max(lo, 0) + s, i + 1) for lo, s, i in zip(low, shape, interior))] = part
        made.append(
            wide[tuple(slice(max(-lo, 0), n - max(-hi, 0)) for lo, hi, n in zip(low, high, wide.shape))]
        )
    return Ball(*made)


def _spread(x: np.ndarray, shape: tuple, dims: tuple) -> np.ndarray:
    column = [1] * len(shape)
    for size, d in zip(x.shape, dims):
        column[d] = size
    return np.broadcast_to(x.reshape(column), shape)


ORACLES: Mapping[str, Callable[..., Ball]] = {
    **{kind: (lambda *balls, _kind=kind: element(_kind, *balls)) for kind in ELEMENTS},
    "scale": lambda x, factor: apply(lambda v: v * np.float64(np.float32(factor)), x),
    "convert": lambda x, dtype: x,
    "sgd_step": lambda p, g, v, lr, *_: element("sub", p, element("mul", lr, g)),
    **{f"reduce_{how}": (lambda x, axes, keepdims, _how=how: x.reduced(_how, axes, keepdims)) for how in ("sum", "mean", "max")},
    "softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp, "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    "gemm": _gemm, "pad": _pad,
    "reshape": lambda x, shape: x.each(lambda v: v.reshape(shape)),
    "transpose": lambda x, perm: x.each(lambda v: v.transpose(perm)),
    "slice": lambda x, start, limit, step: x.each(lambda v: v[tuple(map(slice, start, limit, step))]),
    "reverse": lambda x, dims: x.each(lambda v: np.flip(v, dims)),
    "broadcast_in_dim": lambda x, shape, dims: x.each(lambda v: _spread(v, shape, dims)),
    "concatenate": lambda *xs, axis: Ball(*(np.concatenate([getattr(x, part) for x in xs], axis) for part in "ve")),
    "gather": lambda x, indices, axis: x.each(lambda v: np.take(v, indices.v.astype(int), axis, mode="wrap")),
}  # fmt: skip
