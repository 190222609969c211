"""Batch norm, with running statistics that are part of the model's state."""

from __future__ import annotations

from typing import Any

from ..errors import TypeInferenceError, VerifyError
from ..ir import Value
from ..types import f32, i64
from . import checks, init
from .layer import Layer
from .spatial import check_channels


class _BatchNorm(Layer):
    ranks: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        frozen: bool = False,
    ) -> None:
        kind = type(self).__name__
        self.num_features = checks.whole(f"{kind}: num_features", num_features)
        self.eps = checks.not_negative(f"{kind}: eps", eps)
        unit = checks.Range(low=0, high=1)
        self.momentum = None if momentum is None else unit(f"{kind}: momentum", momentum)
        self.affine = checks.yes_or_no(f"{kind}: affine", affine)
        self.track_running_stats = checks.yes_or_no(f"{kind}: track_running_stats", track_running_stats)
        self.frozen = checks.yes_or_no(f"{kind}: frozen", frozen)
        if frozen and not track_running_stats:
            raise VerifyError(
                f"{kind}: frozen=True with track_running_stats=False", expected="running statistics, which are what is frozen"
            )  # fmt: skip

    def emit(self, ctx: Any, x: Value) -> Value:
        kind = type(self).__name__
        if x.rank not in self.ranks:
            shapes = " or ".join(f"rank {n}" for n in self.ranks)
            raise TypeInferenceError(
                f"{kind}: x has rank {x.rank}",
                expected=f"(N, C, …) of {shapes}",
                got=str(x.spec),
                where=ctx.here(),
            )
        check_channels(ctx, kind, x, self.num_features, f"nn.{kind}({x.shape[1]})")
        x = ctx.computed(x)
        mean, var = self._statistics(ctx, x)
        scale = ctx.div(1.0, ctx.sqrt(ctx.add(var, self.eps)))
        if not self.affine:
            return ctx.channel_affine(x, mean, scale, ctx.fill(shape=mean.shape, value=0.0, dtype=f32))
        weight, bias = (
            _wide(ctx, ctx.param(name, (self.num_features,), start, x.dtype, "norm"))
            for name, start in (("weight", init.ones), ("bias", init.zeros))
        )
        return ctx.channel_affine(x, mean, ctx.mul(weight, scale), bias)

    def _statistics(self, ctx: Any, x: Value) -> tuple[Value, Value]:
        kept = self._kept(ctx) if self.track_running_stats else None
        if kept is not None and (self.frozen or not ctx.training):
            return kept
        count = x.spec.numel // max(self.num_features, 1)
        if count < 2 and self.num_features:
            raise TypeInferenceError(
                f"{type(self).__name__}: a channel has {count} elements, and its variance needs two", expected="a larger batch, or larger spatial axes",
                got=str(x.spec), where=ctx.here(), hint="frozen=True trains by running statistics; nn.GroupNorm has none of a batch",
            )  # fmt: skip
        mean, var = ctx.moments(x)
        if kept is not None:
            self._follow(ctx, kept, mean, ctx.mul(var, count / (count - 1)))
        return mean, var

    def _kept(self, ctx: Any) -> tuple[Value, Value]:
        shape = (self.num_features,)
        return ctx.state("running_mean", shape, 0.0), ctx.state("running_var", shape, 1.0)

    def _follow(self, ctx: Any, kept: tuple[Value, Value], *fresh: Value) -> None:
        """(1 - momentum) of what was, momentum of what is; or the mean of all so far."""
        share: Any = self.momentum
        if share is None:
            tracked = ctx.state("num_batches_tracked", (), 0, i64)
            count = ctx.add(ctx.latest(tracked), 1)
            ctx.update(tracked, count, again=True)
            share = ctx.div(1.0, ctx.convert(count, dtype=f32))
        for old, new in zip(kept, fresh):
            before = ctx.latest(old)
            rest = 1.0 - share if isinstance(share, float) else ctx.sub(1.0, share)
            ctx.update(old, ctx.add(ctx.mul(before, rest), ctx.mul(new, share)), again=True)


def _wide(ctx: Any, value: Value) -> Value:
    made: Value = value if value.dtype is f32 else ctx.convert(value, dtype=f32)
    return made


class BatchNorm1d(_BatchNorm):
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance of each channel (Ioffe and Szegedy 2015).

    Shapes: x and y (N, C) or (N, C, L), weight, bias, running_mean and running_var (C,) with C = num_features. Statistics are f32.

    In training they are the batch's, which needs two elements of a channel; the gradient passes through them. In inference they are the
    running ones. Those are in the model's state dict, as "running_mean", which starts at 0, and "running_var", at 1: each run of a program
    that differentiates a loss makes them (1 - momentum) of what they were and momentum of the batch's, whose variance is divided by the
    count less 1. A run that is not kept, for an overflow or a bad label, leaves them as they are. Whoever uses a layer twice in a run moves
    them twice.

    momentum             None makes them the mean over all runs, which "num_batches_tracked" in the state dict counts
    affine               whether there are a weight, which starts at 1, and a bias, which starts at 0
    track_running_stats  without them the batch's statistics are used in inference, too
    frozen               training uses running statistics, as inference does, and does not move them
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """BatchNorm1d of images: x and y (N, C, H, W), with the mean and variance of each channel over the batch and both axes."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """BatchNorm1d of volumes: x and y (N, C, D, H, W), with the mean and variance of each channel over the batch and three axes."""

    ranks = (5,)
