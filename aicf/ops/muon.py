"""What Muon's step is made of beside products."""

from __future__ import annotations

import math

import numpy as np

from ..types import DType
from .optimizers import mostly
from .schema import F32, Float, Gradient, Moment, Valid, elementwise


@elementwise("muon_momentum", result=DType.f32, results=("u", "m2"), must={"m2": "m"}, continuous=True)
def muon_momentum(g: Gradient, m: Moment, momentum: F32, valid: Valid, *, nesterov: bool = True):
    """m2 = mix(momentum, m, g), u = m2, or with nesterov mix(momentum, m2, g); mix(beta, old, new) = beta * old + (1 - beta) * new.

    As PyTorch's Muon, before the matrix is made orthogonal. m is written in place, if valid.
    """
    moved = momentum * m + (1.0 - momentum) * g
    ahead = momentum * moved + (1.0 - momentum) * g if nesterov else moved
    return ahead, moved if valid else m


@muon_momentum.reference
def _(g, m, momentum, valid, nesterov):
    moved = momentum * m + (1 - momentum) * g
    ahead = momentum * moved + (1 - momentum) * g if nesterov else moved
    return ahead, np.where(valid, moved, m)


@elementwise("muon_norm", result=DType.f32, continuous=True)
def muon_norm(square: F32):
    """1 / max(sqrt(square), 1e-7): by what a matrix of this sum of squares is divided. A NaN gives NaN."""
    norm = math.sqrt(square)
    return 1.0 / (1e-7 if norm < 1e-7 else norm)


@muon_norm.reference
def _(square):
    return 1 / np.maximum(np.sqrt(square), square.dtype.type(1e-7))


@elementwise("muon_step", results=("p2",), must={"p2": "p"}, continuous=True)
def muon_step(p: Float, o: Gradient, rate: F32, lr: F32, weight_decay: F32, valid: Valid):
    """p2 = p * (1 - lr * weight_decay) - rate * o: Muon's step along a matrix that is nearly orthogonal.

    p is written in place, if valid.
    """
    return p * (1.0 - lr * weight_decay) - rate * o if valid else p


@muon_step.reference
def _(p, o, rate, lr, weight_decay, valid):
    return np.where(valid, p * (1 - lr * weight_decay) - rate * o, p)


muon_momentum.draws(valid=mostly)
muon_norm.draws(square=(0, 4))
muon_step.draws(valid=mostly)
muon_norm.samples(())
for _s in [(4, 7), (1025,), (0, 3), ()]:
    muon_momentum.samples(_s, _s, (), ())
    muon_step.samples(_s, _s, (), (), (), ())
muon_momentum.samples((4, 7), (4, 7), (), (7,), nesterov=False)
muon_step.samples((4, 7), (4, 7), (), (), (), (7,))
