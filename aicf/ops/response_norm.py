"""Local response norm: each element by the energy of its neighbours among the channels."""

from __future__ import annotations

import math

import numpy as np

from .arranging import part
from .row_steps import narrow, wide
from .schema import Float, op, require


@op("local_response_norm", flops=12)
def local_response_norm(x: Float, *, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
    """x / (k + alpha / size * sum of x^2 over size neighbouring channels)^beta (Krizhevsky et al. 2012), as PyTorch's and ONNX's.

    Shapes: x and y (N, C, …). The neighbours of a channel are size // 2 before it, itself, and the rest behind; beyond the ends are zeros.

    C1  x has rank 2 or more
    C2  size >= 1
    C3  alpha, beta and k are finite
    """
    require(x.rank >= 2, "C1", f"x has rank {x.rank}, expected 2 or more")
    require(size >= 1, "C2", f"size is {size}, expected 1 or more")
    for name, number in (("alpha", alpha), ("beta", beta), ("k", k)):
        require(math.isfinite(number), "C3", f"{name} is {number}, expected a finite number")
    return x


@local_response_norm.replaced_by
def _(emit, x, size, alpha, beta, k):
    x32, channels = wide(emit, x), x.shape[1]
    around = [0] * x.rank
    low, high = ([n if a == 1 else 0 for a in range(x.rank)] for n in (size // 2, (size - 1) // 2))
    squares = emit.square(x32)
    squares = (
        emit.pad(squares, low=tuple(low), high=tuple(high), interior=tuple(around)) if size > 1 else squares
    )
    total = None
    for n in range(size):
        some = part(emit, squares, 1, n, n + channels) if size > 1 else squares
        total = some if total is None else emit.add(total, some)
    base = emit.add(emit.scale(total, factor=alpha / size), k)
    return narrow(emit, emit.div(x32, emit.power(base, beta)), x)


@local_response_norm.reference
def _(x, size, alpha, beta, k):
    around = [(0, 0)] * x.ndim
    around[1] = (size // 2, (size - 1) // 2)
    squares = np.pad(np.square(x), around)
    total = sum(squares[:, n : n + x.shape[1]] for n in range(size))
    return x / (k + alpha / size * total) ** beta


local_response_norm.samples((2, 7, 3), size=5, alpha=0.1)
local_response_norm.samples((2, 3), size=4, alpha=1.0, beta=0.5, k=2.0)
local_response_norm.samples((1, 4, 2, 2), size=1)
local_response_norm.samples((0, 4, 2), size=3)
