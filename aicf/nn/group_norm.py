"""Norms of an example's own channels: they depend on no batch."""

from __future__ import annotations

import math
from typing import Any

from ..errors import TypeInferenceError, VerifyError
from ..ir import Value
from ..types import f32
from . import checks, init
from .layer import Layer
from .spatial import check_channels


def _normal_rows(ctx: Any, x: Value, rows: int, eps: float) -> Value:
    """x (N, C, …) with its elements as so many rows, each of mean 0 and variance 1, in f32."""
    wide = _wide(ctx, x)
    y: Value = ctx.layer_norm(wide.reshape(rows, math.prod(x.shape) // max(rows, 1)), None, None, eps=eps)
    return y.reshape(*x.shape)


def _wide(ctx: Any, x: Value) -> Value:
    made: Value = x if x.dtype is f32 else ctx.convert(x, dtype=f32)
    return made


def _narrow(ctx: Any, y: Value, x: Value) -> Value:
    made: Value = y if x.dtype is f32 else ctx.convert(y, dtype=x.dtype)
    return made


def _affine(ctx: Any, y: Value, channels: int, dtype: Any) -> Value:
    """By a weight and a bias for each channel."""
    weight = _wide(ctx, ctx.param("weight", (channels,), init.ones, dtype, "norm"))
    bias = _wide(ctx, ctx.param("bias", (channels,), init.zeros, dtype, "norm"))
    zero = ctx.fill(shape=(channels,), value=0.0, dtype=f32)
    made: Value = ctx.channel_affine(y, zero, weight, bias)
    return made


class GroupNorm(Layer):
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance of each example's groups of channels (Wu and He 2018).

    Shapes: x and y (N, C, …), weight and bias (C,) with C = num_channels; num_groups divides it. Statistics are f32.

    affine  whether there are a weight, which starts at 1, and a bias, which starts at 0
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        self.num_groups = checks.whole("GroupNorm: num_groups", num_groups, 1)
        self.num_channels = checks.whole("GroupNorm: num_channels", num_channels)
        if self.num_channels % self.num_groups:
            raise VerifyError(
                f"GroupNorm: num_channels={num_channels} in {num_groups} groups", expected=f"a multiple of num_groups={num_groups}"
            )  # fmt: skip
        self.eps = checks.not_negative("GroupNorm: eps", eps)
        self.affine = checks.yes_or_no("GroupNorm: affine", affine)

    def emit(self, ctx: Any, x: Value) -> Value:
        if x.rank < 2:
            raise TypeInferenceError(
                f"GroupNorm: x has rank {x.rank}", expected=f"shape (N, {self.num_channels}, …)", got=str(x.spec), where=ctx.here()
            )  # fmt: skip
        hint = None if x.shape[1] % self.num_groups else f"nn.GroupNorm({self.num_groups}, {x.shape[1]})"
        check_channels(ctx, "GroupNorm", x, self.num_channels, hint)
        x = ctx.computed(x)
        y = _normal_rows(ctx, x, x.shape[0] * self.num_groups, self.eps)
        return _narrow(ctx, _affine(ctx, y, self.num_channels, x.dtype) if self.affine else y, x)


class _InstanceNorm(Layer):
    axes = 0

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False, track_running_stats: bool = False
    ) -> None:  # fmt: skip
        kind = type(self).__name__
        self.num_features = checks.whole(f"{kind}: num_features", num_features)
        self.eps = checks.not_negative(f"{kind}: eps", eps)
        self.momentum = checks.Range(low=0, high=1)(f"{kind}: momentum", momentum)
        self.affine = checks.yes_or_no(f"{kind}: affine", affine)
        self.track_running_stats = checks.yes_or_no(f"{kind}: track_running_stats", track_running_stats)

    def emit(self, ctx: Any, x: Value) -> Value:
        kind = type(self).__name__
        if x.rank != self.axes + 2:
            raise TypeInferenceError(
                f"{kind}: x has rank {x.rank}", expected=f"shape (N, {self.num_features}, {self.axes} spatial axes)",
                got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        check_channels(ctx, kind, x, self.num_features, f"nn.{kind}({x.shape[1]})")
        x = ctx.computed(x)
        points = math.prod(x.shape[2:])
        if self.track_running_stats:
            shape = (self.num_features,)
            kept = ctx.state("running_mean", shape, 0.0), ctx.state("running_var", shape, 1.0)
            if not ctx.training:
                return self._by(ctx, x, *kept)
            self._follow(ctx, x, *kept)
        if points < 2 and ctx.training:
            raise TypeInferenceError(
                f"{kind}: a channel has {points} elements, and its variance needs two", expected="larger spatial axes",
                got=str(x.spec), where=ctx.here(),
            )  # fmt: skip
        y = _normal_rows(ctx, x, x.shape[0] * self.num_features, self.eps)
        return _narrow(ctx, _affine(ctx, y, self.num_features, x.dtype) if self.affine else y, x)

    def _by(self, ctx: Any, x: Value, mean: Value, var: Value) -> Value:
        scale = ctx.div(1.0, ctx.sqrt(ctx.add(var, self.eps)))
        zero = ctx.fill(shape=mean.shape, value=0.0, dtype=f32)
        y = ctx.channel_affine(_wide(ctx, x), mean, scale, zero)
        return _narrow(ctx, _affine(ctx, y, self.num_features, x.dtype) if self.affine else y, x)

    def _follow(self, ctx: Any, x: Value, mean: Value, var: Value) -> None:
        over = tuple(range(2, x.rank))
        wide = ctx.stop_gradient(_wide(ctx, x))
        fresh = ctx.reduce_mean(wide, axes=over), ctx.reduce_var(wide, axes=over, correction=1.0)
        for old, new in zip((mean, var), fresh):
            moved = ctx.mul(ctx.reduce_mean(new, axes=(0,)), self.momentum)
            ctx.update(old, ctx.add(ctx.mul(ctx.latest(old), 1.0 - self.momentum), moved), again=True)


class InstanceNorm1d(_InstanceNorm):
    """(x - mean) / sqrt(var + eps), with the mean and variance of each channel of each example (Ulyanov et al. 2016).

    Shapes: x and y (N, C, L), weight and bias, if there are, (C,) with C = num_features. Statistics are f32.

    affine               whether there are a weight, which starts at 1, and a bias, which starts at 0
    track_running_stats  whether inference uses running statistics, the means of those of all examples; as BatchNorm1d's, with `momentum`
    """

    axes = 1


class InstanceNorm2d(_InstanceNorm):
    """InstanceNorm1d of images: x and y (N, C, H, W)."""

    axes = 2


class InstanceNorm3d(_InstanceNorm):
    """InstanceNorm1d of volumes: x and y (N, C, D, H, W)."""

    axes = 3
