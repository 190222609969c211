"""Steps of Lion, RMSprop, Adagrad, AMSGrad and LAMB. As in optimizers.py: rates are operands, moments are f32, all is written in place, if
`valid`."""

from __future__ import annotations

import math

import numpy as np

from ..types import DType
from .optimizers import mostly, steps_done
from .schema import F32, Float, Gradient, Index, Moment, Sum, Valid, elementwise

# --- Lion ---------------------------------------------------------------------------------------------------


@elementwise("lion_step", results=("p2", "m2"), must={"p2": "p", "m2": "m"})
def lion_step(
    p: Float, g: Gradient, m: Moment, lr: F32, beta1: F32, beta2: F32, weight_decay: F32, valid: Valid
):
    """p2 = p * (1 - lr * weight_decay) - lr * sign(mix(beta1, m, g)), m2 = mix(beta2, m, g).

    mix(beta, old, new) = beta * old + (1 - beta) * new, and the sign of 0 is 0, of NaN NaN. This is algorithm 2 of Chen et al. 2023. p
    and m are written in place, if valid.
    """
    ahead = beta1 * m + (1.0 - beta1) * g
    sign = 1.0 if ahead > 0.0 else -1.0 if ahead < 0.0 else ahead
    moved = p * (1.0 - lr * weight_decay) - lr * sign
    return moved if valid else p, beta2 * m + (1.0 - beta2) * g if valid else m


@lion_step.reference
def _(p, g, m, lr, beta1, beta2, weight_decay, valid):
    moved = p * (1 - lr * weight_decay) - lr * np.sign(beta1 * m + (1 - beta1) * g)
    return np.where(valid, moved, p), np.where(valid, beta2 * m + (1 - beta2) * g, m)


# --- RMSprop ------------------------------------------------------------------------------------------------


@elementwise(
    "rmsprop_step", results=("p2", "v2", "b2"), must={"p2": "p", "v2": "v", "b2": "b"}, continuous=True
)
def rmsprop_step(
    p: Float,
    g: Gradient,
    v: Moment,
    b: Moment,
    lr: F32,
    alpha: F32,
    eps: F32,
    weight_decay: F32,
    momentum: F32,
    valid: Valid,
):
    """p2 = p - lr * b2, b2 = momentum * b + g' / (sqrt(v2) + eps), v2 = alpha * v + (1 - alpha) * g'^2.

    g' = g + weight_decay * p. This is PyTorch's RMSprop. p, v and b are written in place, if valid.
    """
    grad = g + weight_decay * p
    square = alpha * v + (1.0 - alpha) * grad * grad
    buffer = momentum * b + grad / (math.sqrt(square) + eps)
    return p - lr * buffer if valid else p, square if valid else v, buffer if valid else b


@rmsprop_step.reference
def _(p, g, v, b, lr, alpha, eps, weight_decay, momentum, valid):
    grad = g + weight_decay * p
    square = alpha * v + (1 - alpha) * np.square(grad)
    buffer = momentum * b + grad / (np.sqrt(square) + eps)
    return np.where(valid, p - lr * buffer, p), np.where(valid, square, v), np.where(valid, buffer, b)


@elementwise(
    "rmsprop_centered_step",
    results=("p2", "v2", "a2", "b2"),
    must={"p2": "p", "v2": "v", "a2": "a", "b2": "b"},
    continuous=True,
)
def rmsprop_centered_step(
    p: Float,
    g: Gradient,
    v: Moment,
    a: Moment,
    b: Moment,
    lr: F32,
    alpha: F32,
    eps: F32,
    weight_decay: F32,
    momentum: F32,
    valid: Valid,
):
    """p2 = p - lr * b2, b2 = momentum * b + g' / (sqrt(v2 - a2^2) + eps), a2 = alpha * a + (1 - alpha) * g'.

    g' and v2 are those of rmsprop_step. v2 - a2^2 is a variance: below 0, which rounding alone makes it, it counts as 0, where PyTorch's
    RMSprop has a NaN. p, v, a and b are written in place, if valid.
    """
    grad = g + weight_decay * p
    square = alpha * v + (1.0 - alpha) * grad * grad
    mean = alpha * a + (1.0 - alpha) * grad
    variance = square - mean * mean
    buffer = momentum * b + grad / (math.sqrt(0.0 if variance < 0.0 else variance) + eps)
    moved = p - lr * buffer
    return moved if valid else p, square if valid else v, mean if valid else a, buffer if valid else b


@rmsprop_centered_step.reference
def _(p, g, v, a, b, lr, alpha, eps, weight_decay, momentum, valid):
    grad = g + weight_decay * p
    square = alpha * v + (1 - alpha) * np.square(grad)
    mean = alpha * a + (1 - alpha) * grad
    deviation = np.sqrt(np.maximum(square - np.square(mean), 0))
    buffer = momentum * b + grad / (deviation + eps)
    made = (p - lr * buffer, square, mean, buffer)
    return tuple(np.where(valid, new, old) for new, old in zip(made, (p, v, a, b)))


# --- Adagrad ------------------------------------------------------------------------------------------------


@elementwise("adagrad_slowing", result=DType.f32, continuous=True)
def adagrad_slowing(step: Index, lr_decay: F32):
    """1 + (step - 1) * lr_decay: what divides Adagrad's learning rate, with step = 1 for the first update."""
    return 1.0 + (float(step) - 1.0) * lr_decay


@adagrad_slowing.reference
def _(step, lr_decay):
    return 1 + (step - 1) * lr_decay.astype(np.float64)


@elementwise("adagrad_step", results=("p2", "s2"), must={"p2": "p", "s2": "s"}, continuous=True)
def adagrad_step(
    p: Float, g: Gradient, s: Moment, lr: F32, eps: F32, weight_decay: F32, slowing: F32, valid: Valid
):
    """p2 = p - lr / slowing * g' / (sqrt(s2) + eps), s2 = s + g'^2, where g' = g + weight_decay * p: PyTorch's Adagrad.

    slowing comes from adagrad_slowing. p and s are written in place, if valid.
    """
    grad = g + weight_decay * p
    total = s + grad * grad
    moved = p - lr / slowing * grad / (math.sqrt(total) + eps)
    return moved if valid else p, total if valid else s


@adagrad_step.reference
def _(p, g, s, lr, eps, weight_decay, slowing, valid):
    grad = g + weight_decay * p
    total = s + np.square(grad)
    return np.where(valid, p - lr / slowing * grad / (np.sqrt(total) + eps), p), np.where(valid, total, s)


# --- AMSGrad ------------------------------------------------------------------------------------------------


@elementwise(
    "amsgrad_step",
    results=("p2", "m2", "v2", "x2"),
    must={"p2": "p", "m2": "m", "v2": "v", "x2": "x"},
    continuous=True,
)
def amsgrad_step(
    p: Float,
    g: Gradient,
    m: Moment,
    v: Moment,
    x: Moment,
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
    """adam_step with x2 = max(x, v2), the largest v2 so far, in the place of v2 below the root: PyTorch's Adam with amsgrad.

    p, m, v and x are written in place, if valid.
    """
    grad = g if decoupled else g + weight_decay * p
    start = p * (1.0 - lr * weight_decay) if decoupled else p
    mean = beta1 * m + (1.0 - beta1) * grad
    square = beta2 * v + (1.0 - beta2) * grad * grad
    largest = x if x >= square or x != x else square
    moved = start - lr / c1 * mean / (math.sqrt(largest) / math.sqrt(c2) + eps)
    return moved if valid else p, mean if valid else m, square if valid else v, largest if valid else x


@amsgrad_step.reference
def _(p, g, m, v, x, lr, beta1, beta2, eps, weight_decay, c1, c2, valid, decoupled):
    start = p
    if decoupled:
        start = p * (1 - lr * weight_decay)
    else:
        g = g + weight_decay * p
    mean = beta1 * m + (1 - beta1) * g
    square = beta2 * v + (1 - beta2) * np.square(g)
    largest = np.maximum(x, square)
    made = (start - lr / c1 * mean / (np.sqrt(largest / c2) + eps), mean, square, largest)
    return tuple(np.where(valid, new, old) for new, old in zip(made, (p, m, v, x)))


# --- LAMB ---------------------------------------------------------------------------------------------------


@elementwise(
    "lamb_update", result=DType.f32, results=("u", "m2", "v2"), must={"m2": "m", "v2": "v"}, continuous=True
)
def lamb_update(
    p: Float,
    g: Gradient,
    m: Moment,
    v: Moment,
    beta1: F32,
    beta2: F32,
    eps: F32,
    weight_decay: F32,
    c1: F32,
    c2: F32,
    valid: Valid,
):
    """u = m2 / c1 / (sqrt(v2 / c2) + eps) + weight_decay * p, with the m2, v2, c1 and c2 of adam_step.

    What LAMB steps by, before its length is fitted to that of p. m and v are written in place, if valid.
    """
    mean = beta1 * m + (1.0 - beta1) * g
    square = beta2 * v + (1.0 - beta2) * g * g
    update = mean / c1 / (math.sqrt(square) / math.sqrt(c2) + eps) + weight_decay * p
    return update, mean if valid else m, square if valid else v


@lamb_update.reference
def _(p, g, m, v, beta1, beta2, eps, weight_decay, c1, c2, valid):
    mean = beta1 * m + (1 - beta1) * g
    square = beta2 * v + (1 - beta2) * np.square(g)
    update = mean / c1 / (np.sqrt(square / c2) + eps) + weight_decay * p
    return update, np.where(valid, mean, m), np.where(valid, square, v)


@elementwise("lamb_trust", result=DType.f32)
def lamb_trust(p2: F32, u2: F32):
    """sqrt(p2 / u2), the ratio of two norms, by their sums of squares; 1 where either is 0, as of a bias that starts at 0."""
    return math.sqrt(p2) / math.sqrt(u2) if p2 > 0.0 and u2 > 0.0 else 1.0


@lamb_trust.reference
def _(p2, u2):
    some = (p2 > 0) & (u2 > 0)
    return np.where(some, np.sqrt(p2) / np.sqrt(np.where(some, u2, 1)), 1)


@elementwise("lamb_step", results=("p2",), must={"p2": "p"}, continuous=True)
def lamb_step(p: Float, u: Sum, trust: F32, lr: F32, valid: Valid):
    """p2 = p - lr * trust * u: algorithm 2 of You et al. 2020, with u from lamb_update and trust from lamb_trust.

    p is written in place, if valid.
    """
    return p - lr * trust * u if valid else p


@lamb_step.reference
def _(p, u, trust, lr, valid):
    return np.where(valid, p - lr * trust * u, p)


# --- samples: (tensors, numbers) ----------------------------------------------------------------------------

_UNIT, _EPS = (0, 1), (1e-8, 1e-6)
lion_step.draws(valid=mostly)
rmsprop_step.draws(v=_UNIT, alpha=_UNIT, eps=_EPS, valid=mostly)
rmsprop_centered_step.draws(v=(4, 5), a=_UNIT, alpha=(0.9, 1), eps=_EPS, valid=mostly)
adagrad_slowing.draws(step=steps_done, lr_decay=_UNIT)
adagrad_step.draws(s=_UNIT, eps=_EPS, slowing=(1, 2), valid=mostly)
amsgrad_step.draws(v=_UNIT, x=_UNIT, beta2=_UNIT, eps=_EPS, valid=mostly)
lamb_update.draws(v=_UNIT, eps=_EPS, valid=mostly)
lamb_step.draws(valid=mostly)

adagrad_slowing.samples((), ())
lamb_trust.samples((), ())
for _schema, _tensors in (
    (lion_step, 3),
    (rmsprop_step, 4),
    (rmsprop_centered_step, 5),
    (adagrad_step, 3),
    (amsgrad_step, 5),
    (lamb_update, 4),
    (lamb_step, 2),
):
    _numbers = [()] * (len(_schema.operands) - _tensors)
    for _s in [(4, 7), (1025,), (0, 3), ()]:
        _schema.samples(*[_s] * _tensors, *_numbers)
    _schema.samples(*[(4, 7)] * _tensors, *_numbers[1:], (7,))
amsgrad_step.samples(*[(4, 7)] * 5, *[()] * 8, decoupled=True)
