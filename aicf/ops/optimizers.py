"""Optimizer steps, written in place, and the 0-D ops that drive them: counters, corrections, clipping, schedules.

Hyper-parameters are operands, 0-D f32 tensors, so that they can change between replays of a captured graph.
Moments are f32 whatever the parameter's type: the square of a small gradient is nothing in f16, and 0.999 of a bf16 is
the same bf16. A policy may ask for bf16 all the same. A gradient has the parameter's type, or is f32, as sums and clipped gradients are.

What is written in place asks `valid`, and stays as it is, bit for bit, if that is false: a step that something in the graph
has found fault with is not taken, captured or not. An emitter fills it in.
"""

from __future__ import annotations

import math

import numpy as np

from ..types import DType, TensorSpec
from .schema import F32, Float, FloatOwn, Gradient, Index, Int, Moment, Sum, Valid, elementwise, op, require

# --- SGD ----------------------------------------------------------------------------------------------------


def mostly(rng, shape, shapes):
    """A flag that is true, or several that may be."""
    return np.ones(shape) if shape == () else rng.integers(0, 2, shape)


@elementwise("increment", must={"y": "step"}, continuous=True, version=2)
def increment(step: Int, valid: Valid):
    """step + 1 if valid, else step, in place."""
    return step + 1 if valid else step


@increment.reference
def _(step, valid):
    return np.where(valid, step + step.dtype.type(1), step)


increment.draws(valid=mostly)
increment.samples((), ())
increment.samples((3,), (3,))
increment.samples((0,), ())


@elementwise("sgd_step", results=("p2", "v2"), must={"p2": "p", "v2": "v"}, continuous=True, version=2)
def sgd_step(
    p: Float,
    g: Gradient,
    v: Moment,
    lr: F32,
    momentum: F32,
    weight_decay: F32,
    valid: Valid,
    *,
    nesterov: bool = False,
):
    """v2 = momentum * v + g', p2 = p - lr * v2, where g' = g + weight_decay * p: PyTorch's SGD without dampening.

    With nesterov, p2 = p - lr * (g' + momentum * v2). p and v are written in place, if valid.
    """
    decayed = g + weight_decay * p
    velocity = momentum * v + decayed
    step = decayed + momentum * velocity if nesterov else velocity
    return p - lr * step if valid else p, velocity if valid else v


@sgd_step.reference
def _(p, g, v, lr, momentum, weight_decay, valid, nesterov):
    decayed = g + weight_decay * p
    velocity = momentum * v + decayed
    moved = p - lr * (decayed + momentum * velocity if nesterov else velocity)
    return np.where(valid, moved, p), np.where(valid, velocity, v)


sgd_step.draws(valid=mostly)
_SHAPES = [(4, 7), (1025,), (0, 3), ()]
for _s in _SHAPES:
    sgd_step.samples(_s, _s, _s, (), (), (), ())
sgd_step.samples((4, 7), (4, 7), (4, 7), (), (), (), (7,), nesterov=True)

# --- Adam and AdamW -----------------------------------------------------------------------------------------


@elementwise("adam_correction", result=DType.f32, results=("c1", "c2"))
def adam_correction(step: Index, beta1: F32, beta2: F32):
    """c1 = 1 - beta1^step, c2 = 1 - beta2^step: Adam's bias corrections, with step = 1 for the first update.

    Formed as -expm1(step * log1p(beta - 1)), which keeps full precision where beta^step is close to 1: beta - 1
    is exact for a beta of at least 1/2. A beta of 0 gives 1.
    """
    t = float(step)
    c1 = -math.expm1(t * math.log1p(beta1 - 1.0)) if beta1 > 0.0 else 1.0
    c2 = -math.expm1(t * math.log1p(beta2 - 1.0)) if beta2 > 0.0 else 1.0
    return c1, c2


@adam_correction.reference
def _(step, beta1, beta2):
    wide = step.astype(np.float64)
    return tuple(1 - np.power(beta.astype(np.float64), wide) for beta in (beta1, beta2))


def steps_done(rng, shape, shapes):
    return rng.integers(1, 30, shape)


adam_correction.draws(step=steps_done)
adam_correction.samples((), (), ())


@elementwise(
    "adam_step",
    results=("p2", "m2", "v2"),
    must={"p2": "p", "m2": "m", "v2": "v"},
    continuous=True,
    version=2,
)
def adam_step(
    p: Float,
    g: Gradient,
    m: Moment,
    v: Moment,
    lr: F32,
    beta1: F32,
    beta2: F32,
    eps: F32,
    weight_decay: F32,
    c1: F32,
    c2: F32,
    valid: Valid,
    *,
    decoupled: bool = False,
):
    """p2 = p - lr / c1 * m2 / (sqrt(v2 / c2) + eps), m2 = mix(beta1, m, g), v2 = mix(beta2, v, g^2).

    mix(beta, old, new) = beta * old + (1 - beta) * new. This is PyTorch's Adam, where g stands for
    g + weight_decay * p; or, if decoupled, its AdamW, where p stands for p * (1 - lr * weight_decay) instead.
    c1 and c2 come from adam_correction. p, m and v are written in place, if valid.
    """
    grad = g if decoupled else g + weight_decay * p
    start = p * (1.0 - lr * weight_decay) if decoupled else p
    mean = beta1 * m + (1.0 - beta1) * grad
    square = beta2 * v + (1.0 - beta2) * grad * grad
    moved = start - lr / c1 * mean / (math.sqrt(square) / math.sqrt(c2) + eps)
    return moved if valid else p, mean if valid else m, square if valid else v


@adam_step.reference
def _(p, g, m, v, lr, beta1, beta2, eps, weight_decay, c1, c2, valid, decoupled):
    start = p
    if decoupled:
        start = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    mean = beta1 * m + (1 - beta1) * g
    square = beta2 * v + (1 - beta2) * np.square(g)
    moved = start - lr / c1 * mean / (np.sqrt(square / c2) + eps)
    return np.where(valid, moved, p), np.where(valid, mean, m), np.where(valid, square, v)


adam_step.draws(v=(0, 1), eps=(1e-8, 1e-6), valid=mostly)
for _s in _SHAPES:
    adam_step.samples(_s, _s, _s, _s, *[()] * 8)
adam_step.samples(*[(4, 7)] * 4, *[()] * 7, (7,), decoupled=True)

# --- gradient clipping --------------------------------------------------------------------------------------


@op("sum_of_squares")
def sum_of_squares(*xs: FloatOwn):
    """The squares of all elements of all operands added up, as 0-D f32: of gradients, their squared joint norm. NaN and Inf stay.

    Each operand has a shape and a float type of its own. Added up in one order: equal calls have equal bits.
    """
    return (TensorSpec((), DType.f32, xs[0].device),)


@sum_of_squares.reference
def _(*xs):
    return sum((np.square(x, dtype=x.dtype).sum() for x in xs), start=xs[0].dtype.type(0))


@sum_of_squares.counts
def _(*xs):
    return 2 * sum(x.numel for x in xs)


sum_of_squares.samples((4, 7))
sum_of_squares.samples((4, 7), (1025,), (), (0, 3), (3, 5))
sum_of_squares.samples((0,))


@elementwise("clip_scale", continuous=True)
def clip_scale(norm2: F32, max_norm: F32):
    """min(1, max_norm / (sqrt(norm2) + 1e-6)): what gradients are multiplied by, norm2 being their sum of squares.

    As PyTorch's clip_grad_norm_ does it. A NaN norm gives NaN.
    """
    ratio = max_norm / (math.sqrt(norm2) + 1e-6)
    return 1.0 if ratio > 1.0 else ratio


@clip_scale.reference
def _(norm2, max_norm):
    return np.minimum(1, max_norm / (np.sqrt(norm2) + norm2.dtype.type(1e-6)))


clip_scale.draws(norm2=(0, 4))
clip_scale.samples((), ())


@elementwise("scale_gradient", types=Gradient, result=DType.f32)
def scale_gradient(g: Gradient, scale: F32):
    """g * scale, in f32: a half might lose it."""
    return g * scale


@scale_gradient.reference
def _(g, scale):
    return g * scale


scale_gradient.samples((4, 7), ())
scale_gradient.samples((0, 3), ())

# --- gradients of several runs ------------------------------------------------------------------------------


@elementwise("add_gradient", must={"y": "total"}, continuous=True)
def add_gradient(total: Sum, g: Gradient, valid: Valid):
    """total + g if valid, else total, in place."""
    return total + g if valid else total


@add_gradient.reference
def _(total, g, valid):
    return np.where(valid, total + g, total)


@elementwise("mean_gradient", results=("mean", "rest"), must={"rest": "total"}, continuous=True)
def mean_gradient(total: Sum, g: Gradient, count: Index, valid: Valid):
    """mean = (total + g) / (count + 1): of this gradient and the `count` that total is the sum of.

    rest = 0 if valid, else total, written over it.
    """
    return (total + g) / (float(count) + 1.0), 0.0 if valid else total


@mean_gradient.reference
def _(total, g, count, valid):
    return (total + g) / (count + total.dtype.type(1)), np.where(valid, total.dtype.type(0), total)


@elementwise("restart", must={"y": "count"}, continuous=True)
def restart(count: Int, valid: Valid):
    """0 if valid, else count, in place."""
    return 0 if valid else count


@restart.reference
def _(count, valid):
    return np.where(valid, count.dtype.type(0), count)


for _schema in (add_gradient, mean_gradient, restart):
    _schema.draws(valid=mostly)
mean_gradient.draws(count=steps_done)
add_gradient.samples((4, 7), (4, 7), ())
add_gradient.samples((0, 3), (0, 3), (3,))
mean_gradient.samples((4, 7), (4, 7), (), ())
mean_gradient.samples((0, 3), (0, 3), (), (3,))
restart.samples((), ())
restart.samples((3,), (3,))
restart.samples((0,), ())

# --- learning-rate schedules --------------------------------------------------------------------------------


@elementwise("schedule_step", result=DType.f32, continuous=True)  # in base; step is exact
def schedule_step(step: Index, base: F32, *, every: int, gamma: float):
    """base * gamma^floor(step / every), as PyTorch's StepLR.

    C2  every is at least 1
    C3  gamma is at least 0
    """
    return base * math.pow(gamma, float(math.floor(float(step) / every)))


@schedule_step.checks
def _(step, base, every, gamma):
    require(every >= 1, "C2", f"every is {every}, expected at least 1")
    require(gamma >= 0, "C3", f"gamma is {gamma}, expected at least 0")


@schedule_step.reference
def _(step, base, every, gamma):
    return base * np.power(float(gamma), step // every)


schedule_step.draws(step=steps_done)
schedule_step.samples((), (), every=3, gamma=0.5)


@elementwise("schedule_cosine", result=DType.f32)
def schedule_cosine(step: Index, base: F32, *, warmup: int = 0, total: int, floor: float = 0.0):
    """base * step / warmup while step < warmup, then half a cosine from base to floor at step = total, then floor.

    The cosine is a series that is right to 1e-6 of itself, at its end too: f32, whatever it is computed in.

    C2  0 <= warmup < total
    """
    t = float(step)
    remaining = (total - t) / (total - warmup)
    square = (
        remaining * remaining
    )  # the cosine of the part that is done: nothing cancels; libm's would bring in f64
    sine = remaining * (1.5707963267948966 + square * (-0.6459640975062462 + square * (0.07969262624616704 + square * (
        -0.004681754135318687 + square * (0.00016044118478735982 + square * -3.598843235212085e-06)))))  # fmt: skip
    decayed = floor + (base - floor) * (sine * sine)
    return base * t / warmup if t < warmup else decayed if remaining > 0.0 else floor


@elementwise("schedule_linear", result=DType.f32)
def schedule_linear(step: Index, base: F32, *, warmup: int = 0, total: int, floor: float = 0.0):
    """base * step / warmup while step < warmup, then a line from base to floor at step = total, then floor.

    C2  0 <= warmup < total
    """
    t = float(step)
    remaining = (total - t) / (total - warmup)
    decayed = floor + (base - floor) * remaining
    return base * t / warmup if t < warmup else decayed if remaining > 0.0 else floor


def _check_warmup(step, base, warmup, total, floor):
    require(0 <= warmup < total, "C2", f"warmup is {warmup} and total {total}, expected 0 <= warmup < total")


def _scheduled(step, base, warmup, total, floor, curve):
    t = step.astype(np.float64)
    done = np.clip((t - warmup) / (total - warmup), 0, 1)
    return np.where(t < warmup, base * t / max(warmup, 1), floor + (base - floor) * curve(done))


@schedule_cosine.reference
def _(step, base, warmup, total, floor):
    return _scheduled(step, base, warmup, total, floor, lambda done: (1 + np.cos(np.pi * done)) / 2)


@schedule_linear.reference
def _(step, base, warmup, total, floor):
    return _scheduled(step, base, warmup, total, floor, lambda done: 1 - done)


for _schema in (schedule_cosine, schedule_linear):
    _schema.checks(_check_warmup)
    _schema.draws(step=steps_done)
    _schema.samples((), (), total=10)
    _schema.samples((), (), warmup=4, total=20, floor=0.001)
    _schema.samples((0,), (), warmup=4, total=20, floor=0.001)
    _schema.samples((3,), (), warmup=4, total=20, floor=0.001)
