"""Pools of all kinds have one rule: of equal extremes of a window the first, in row-major order, has the gradient. Drawn, beside NumPy."""

import itertools

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.graph.emit.autodiff import gradients
from aicf.types import DType

from .mlp import on_each_device

KINDS = "max_pool", "adaptive_max_pool", "reduce_window", "select_and_scatter"


def spans(n, window, stride, pad, apart):
    """The elements of each window along an axis."""
    starts = range(-pad, n + pad - (window - 1) * apart, stride)
    return [[i for k in range(window) if 0 <= (i := start + k * apart) < n] for start in starts]


def adaptive(n, m):
    return [list(range(i * n // m, -(-(i + 1) * n // m))) for i in range(m)]


def pooled(x, along, weights, sign):
    """(y, the gradient of sum(y * weights)): windows are products of the elements along each of the last axes."""
    y, dx = np.zeros(weights.shape), np.zeros(x.shape)
    for before in np.ndindex(*x.shape[: x.ndim - len(along)]):
        for at in np.ndindex(*weights.shape[len(before) :]):
            places = list(itertools.product(*(axis[i] for axis, i in zip(along, at))))
            values = [sign * x[before + place] for place in places]
            first = before + places[int(np.argmax(values))]
            y[before + at] = x[first]
            dx[first] += weights[before + at]
    return y, dx


class Pool(nn.Layer):
    """(y, dx) of a pool and the weights of its results."""

    def __init__(self, kind, how, weights):
        self.kind, self.how, self.weights = kind, how, weights

    def emit(self, ctx, x):
        w = ctx.table("weights", self.weights.shape, lambda shape, rng: self.weights, x.dtype)
        if self.kind == "select_and_scatter":
            return ctx.select_and_scatter(x, w, **self.how)
        y = getattr(ctx, self.kind)(x, **self.how)
        (dx,) = gradients(ctx, ctx.reduce_sum(y * w), [x])
        return {"y": y, "dx": dx}


def drawn(draw, kind, overlapping, least=1):
    """(the shape of x, the op's attributes, windows along each axis, 1 for maxima and -1 for minima); windows of `least` elements or more
    along each axis."""
    axes, sign = int(draw.integers(1 + overlapping, 4)), 1
    shape = (int(draw.integers(1, 3)), 2, *draw.integers(3, 7 if axes < 3 else 5, axes).tolist())
    if kind == "adaptive_max_pool":
        sizes = tuple(int(draw.integers(1, min(n, 3) + 1)) for n in shape[2:])
        if overlapping:
            sizes = tuple(next(m for m in (2, 3, 4) if n % m) for n in shape[2:])
        return shape, {"sizes": sizes}, [adaptive(n, m) for n, m in zip(shape[2:], sizes)], sign
    window, strides = (tuple(draw.integers(n, 4, axes).tolist()) for n in (least, 1))
    pads = tuple(int(draw.integers(0, k // 2 + 1)) for k in window)
    how = {"window": window, "strides": strides, "low": pads, "high": pads}
    along = [spans(n, *of, 1) for n, *of in zip(shape[2:], window, strides, pads)]
    if kind != "max_pool":
        how = {k: ((0, 0) if k in ("low", "high") else (1, 1)) + v for k, v in how.items()}
    if kind == "reduce_window":
        sign = int(draw.choice([-1, 1]))
        how["how"] = "max" if sign > 0 else "min"
    return shape, how, along, sign


@pytest.mark.sample(1)
@on_each_device
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_of_equals_has_the_gradient(device, kind):
    draw = rng("pool ties", kind)
    # windows that overlap along several axes: the order of axes decides between equals
    for n, overlapping in enumerate((False, kind == "adaptive_max_pool")):
        shape, how, along, sign = drawn(draw, kind, overlapping, 1 + n)
        dtype = DType.of(str(draw.choice(["f32", "bf16", "f16"])))
        x = draw.integers(-1, 2, shape).astype(np.float32)
        if n:  # NaN is before all numbers, as NumPy's argmax has it; of several the first has the gradient
            x[draw.random(shape) < 0.2] = np.nan
        weights = draw.integers(1, 5, (*shape[:2], *map(len, along))).astype(np.float32)
        case = f"{kind} {dtype} {shape} {how}"
        model = nn.Model({"x": aicf.TensorSpec(shape, dtype)}, Pool(kind, how, weights))
        got = aicf.compile(model, device=device)({"x": x.astype(dtype.numpy)})
        y, dx = pooled(x, along, weights, sign)
        if kind != "select_and_scatter":
            np.testing.assert_array_equal(got["y"].numpy().astype(np.float32), y, err_msg=case)
        found = got["output" if kind == "select_and_scatter" else "dx"]
        np.testing.assert_array_equal(found.numpy().astype(np.float32), dx, err_msg=case)
