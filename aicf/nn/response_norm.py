"""Local response norm, and pools of p-norms."""

from __future__ import annotations

import math
from typing import Any

from ..errors import TypeInferenceError
from ..ir import Value
from . import checks
from .layer import Layer
from .pooling import Size, _Pool


class LocalResponseNorm(Layer):
    """x / (k + alpha / size * sum of x^2 over `size` neighbouring channels)^beta (Krizhevsky et al. 2012). Shapes: x and y (N, C, …)."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        self.size = checks.whole("LocalResponseNorm: size", size, 1)
        given = {"alpha": alpha, "beta": beta, "k": k}
        self.alpha, self.beta, self.k = (
            checks.anything(f"LocalResponseNorm: {n}", v) for n, v in given.items()
        )

    def emit(self, ctx: Any, x: Value) -> Value:
        if x.rank < 3:
            raise TypeInferenceError(
                f"LocalResponseNorm: x has rank {x.rank}",
                expected="shape (N, C, …)",
                got=str(x.spec),
                where=ctx.here(),
            )
        y: Value = ctx.local_response_norm(x, size=self.size, alpha=self.alpha, beta=self.beta, k=self.k)
        return y


class _LPPool(_Pool):
    def __init__(
        self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__(kernel_size, stride, 0, ceil_mode)
        self.norm_type = checks.positive(f"{type(self).__name__}: norm_type", norm_type)

    def _pooled(self, ctx: Any, x: Value, high: tuple[int, ...]) -> Value:
        powers = x * x if self.norm_type == 2 else ctx.power(x, self.norm_type)
        total = ctx.mul(
            ctx.avg_pool(powers, window=self.kernel_size, strides=self.stride, high=high),
            float(math.prod(self.kernel_size)),
        )
        y: Value = ctx.power(ctx.relu(total), 1.0 / self.norm_type)
        return y


class LPPool1d(_LPPool):
    """The p-norm of each window along an axis, with p = norm_type: the p-th root of the sum of p-th powers. Shapes: x (N, C, L) or (C, L).

    stride, ceil_mode   as MaxPool1d's. Where all elements of a window are 0 the gradient is no number, as PyTorch's
    """

    axes = 1


class LPPool2d(_LPPool):
    """The p-norm of each window of an image, as LPPool1d: x (N, C, H, W) or (C, H, W)."""

    axes = 2


class LPPool3d(_LPPool):
    """The p-norm of each window of a volume, as LPPool1d: x (N, C, D, H, W) or (C, D, H, W)."""

    axes = 3
