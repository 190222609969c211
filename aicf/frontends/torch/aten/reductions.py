"""Sums, means and extremes; softmaxes; norms, with what their gradients read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....ir import Value
from ....types import bool_, f32
from ..rules import Site, axes_of, axis_of, rule
from ..types import Unsupported
from .elementwise import truth


def reduced(s: Site, kind: str, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    axes = axes_of(dim, x.rank)
    if not axes:
        return x
    return s.ctx.op(kind, x, axes=axes, keepdims=keepdim)


@rule("sum.dim_IntList", "sum", heavy=True)
def _sum(s: Site, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduced(s, "reduce_sum", s.cast(x, s.out.dtype), dim, keepdim)


@rule("mean.dim", "mean", heavy=True)
def _mean(s: Site, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduced(s, "reduce_mean", s.cast(x, s.out.dtype), dim, keepdim)


def _extreme(name: str, kind: str) -> None:
    @rule(name, heavy=True)
    def _(s: Site, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if x.dtype is bool_:
            raise Unsupported("extremes of bools")
        return reduced(s, kind, x, dim, keepdim)


for _name, _kind in {
    "amax": "reduce_max",
    "amin": "reduce_min",
    "max": "reduce_max",
    "min": "reduce_min",
}.items():
    _extreme(_name, _kind)


def _logical(name: str) -> None:
    @rule(f"{name}.dim", f"{name}.dims", name)
    def _(s: Site, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        return s.cast(reduced(s, f"reduce_{name}", truth(s, x), dim, keepdim), s.out.dtype)


_logical("any")
_logical("all")


@rule("prod", "prod.dim_int", heavy=True)
def _prod(s: Site, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduced(s, "reduce_prod", s.cast(x, s.out.dtype), dim, keepdim)


def _index(name: str) -> None:
    @rule(name)
    def _(s: Site, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if dim is None:
            x, axis = s.reshape(x, (math.prod(x.shape),)), 0
            y = s.ctx.op(name, x, axis=0, keepdims=False)
        else:
            axis = axis_of(dim, x.rank)
            y = s.ctx.op(name, x, axis=axis, keepdims=keepdim)
        return s.reshape(s.cast(y, s.out.dtype), s.out.shape)


for _name in ("argmax", "argmin"):
    _index(_name)


def _extreme_with_index(name: str) -> None:
    @rule(f"{name}.dim", heavy=True)
    def _(s: Site, x: Value, dim: int, keepdim: bool = False) -> tuple[Value | None, Value | None]:
        """(the extreme along an axis, the index of the first element that is one)"""
        if x.dtype is bool_:
            raise Unsupported("extremes of bools")
        values, indices = s.outs
        if not x.rank:
            return x, s.ctx.fill(shape=(), value=0, dtype=indices.dtype)
        axis = axis_of(dim, x.rank)
        found = s.ctx.op(f"arg{name}", x, axis=axis, keepdims=keepdim) if s.reads(1) else None
        return (
            s.reshape(reduced(s, f"reduce_{name}", x, axis, keepdim), values.shape) if s.reads(0) else None,
            None if found is None else s.reshape(s.cast(found, indices.dtype), indices.shape),
        )


for _name in ("max", "min"):
    _extreme_with_index(_name)


def spread_of(s: Site, x: Value, dim: Any, correction: Any, keepdim: bool) -> tuple[Value, Value]:
    """(variance, mean), in f32 or wider."""
    axes = axes_of(dim, x.rank)
    wide = s.wide(x)
    count = math.prod(x.shape[a] for a in axes)
    mean = s.ctx.reduce_mean(wide, axes=axes, keepdims=True)
    squares = s.ctx.reduce_sum(s.ctx.square(s.ctx.sub(wide, mean)), axes=axes, keepdims=keepdim)
    left = count - (1 if correction is None else correction)
    if left <= 0:
        raise Unsupported("a variance of too few elements")
    return s.ctx.mul(squares, 1.0 / left), mean


@rule("var.correction", heavy=True)
def _var(s: Site, x: Value, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Value:
    return s.cast(spread_of(s, x, dim, correction, keepdim)[0], s.out.dtype)


@rule("std.correction", heavy=True)
def _std(s: Site, x: Value, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Value:
    return s.cast(s.ctx.sqrt(spread_of(s, x, dim, correction, keepdim)[0]), s.out.dtype)


@rule("var_mean.correction", heavy=True)
def _var_mean(
    s: Site, x: Value, dim: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    variance, mean = spread_of(s, x, dim, correction, keepdim)
    return tuple(s.reshape(s.cast(y, spec.dtype), spec.shape) for y, spec in zip((variance, mean), s.outs))  # type: ignore[return-value]


@rule("linalg_vector_norm", heavy=True)
def _vector_norm(
    s: Site, x: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    ctx, power = s.ctx, float(ord)
    wide = s.wide(s.cast(x, s.out.dtype) if dtype is not None else x)
    if power == 2:
        y = ctx.sqrt(reduced(s, "reduce_sum", ctx.square(wide), dim, keepdim))
    elif power == 0:
        y = reduced(s, "reduce_sum", s.cast(ctx.not_equal(wide, 0), wide.dtype), dim, keepdim)
    elif math.isinf(power):
        y = reduced(s, "reduce_max" if power > 0 else "reduce_min", ctx.abs(wide), dim, keepdim)
    else:
        each = ctx.abs(wide) if power == 1 else ctx.power(ctx.abs(wide), s.value(power, wide.dtype))
        y = reduced(s, "reduce_sum", each, dim, keepdim)
        y = y if power == 1 else ctx.power(y, s.value(1 / power, wide.dtype))
    return s.cast(y, s.out.dtype)


# --- softmax ----------------------------------------------------------------------------------------------------------


def _softmax(name: str, kind: str) -> None:
    @rule(name, heavy=True)
    def _(s: Site, x: Value, dim: int, half_to_float: bool) -> Value:
        if x.rank == 0:
            raise Unsupported("a softmax of one number")
        return s.ctx.op(kind, s.cast(x, s.out.dtype), axis=axis_of(dim, x.rank))

    @rule(f"{name}_backward_data", heavy=True)
    def _(s: Site, dy: Value, y: Value, dim: int, dtype: Any) -> Value:
        if y.rank == 0:
            raise Unsupported("a softmax of one number")
        return s.cast(s.ctx.op(f"{kind}_grad", dy, y, axis=axis_of(dim, y.rank)), s.out.dtype)


_softmax("_softmax", "softmax")
_softmax("_log_softmax", "log_softmax")


@rule("logsumexp", heavy=True)
def _logsumexp(s: Site, x: Value, dim: Sequence[int], keepdim: bool = False) -> Value:
    axes = axes_of(list(dim), x.rank)
    if len(axes) != 1:
        raise Unsupported("logsumexp along several axes")
    return s.reshape(s.ctx.logsumexp(x, axis=axes[0]), s.out.shape)


# --- norms ------------------------------------------------------------------------------------------------------------


def _rows(s: Site, x: Value, shape: Sequence[int]) -> Value:
    """What is normalised together as the last axis."""
    size = math.prod(shape)
    return s.reshape(x, (*x.shape[: x.rank - len(shape)], size))


@rule("native_layer_norm", heavy=True)
def _layer_norm(
    s: Site, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> Any:
    flat = [None if p is None else s.reshape(p, (math.prod(shape),)) for p in (weight, bias)]
    y, mean, rstd = s.results(s.ctx.layer_norm(_rows(s, x, shape), *flat, eps=float(eps)))
    return tuple(
        None if spec is None else s.cast(s.reshape(v, spec.shape), spec.dtype)
        for v, spec in zip((y, mean, rstd), s.outs)
    )


@rule("native_layer_norm_backward", heavy=True)
def _layer_norm_backward(
    s: Site, dy: Value, x: Value, shape: Sequence[int], mean: Value, rstd: Value, weight: Value | None, bias: Value | None,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    ctx, size = s.ctx, math.prod(shape)
    dy2, x2 = _rows(s, dy, shape), _rows(s, x, shape)
    stats = [s.cast(s.reshape(v, (*x2.shape[:-1], 1)), f32) for v in (mean, rstd)]
    flat = None if weight is None else s.reshape(weight, (size,))
    dx = dweight = dbias = None
    if mask[0] and s.reads(0):
        dx = s.reshape(ctx.layer_norm_grad(dy2, x2, *stats, flat), x.shape)
    over = tuple(range(x2.rank - 1))
    wide = s.wide(dy2)
    if mask[1] and weight is not None and s.reads(1):
        normal = ctx.mul(ctx.sub(s.wide(x2), stats[0]), stats[1])
        dweight = _total(s, ctx.mul(wide, normal), over, weight)
    if mask[2] and bias is not None and s.reads(2):
        dbias = _total(s, wide, over, bias)
    return dx, dweight, dbias


def _total(s: Site, x: Value, over: tuple[int, ...], like: Value) -> Value:
    total = s.ctx.reduce_sum(x, axes=over) if over else x
    return s.cast(s.reshape(total, like.shape), like.dtype)


@rule("_fused_rms_norm", heavy=True)
def _rms_norm(s: Site, x: Value, shape: Sequence[int], weight: Value | None, eps: float | None) -> Any:
    if eps is None:
        raise Unsupported("an RMS norm without eps")
    flat = None if weight is None else s.reshape(weight, (math.prod(shape),))
    y, rstd = s.results(s.ctx.rms_norm(_rows(s, x, shape), flat, eps=float(eps)))
    return tuple(
        None if spec is None else s.cast(s.reshape(v, spec.shape), spec.dtype)
        for v, spec in zip((y, rstd), s.outs)
    )


@rule("native_group_norm", heavy=True)
def _group_norm(
    s: Site, x: Value, weight: Value | None, bias: Value | None, n: int, channels: int, points: int, groups: int, eps: float
) -> Any:  # fmt: skip
    rows = s.reshape(s.wide(x), (n * groups, channels // groups * points))
    y, mean, rstd = s.results(s.ctx.layer_norm(rows, None, None, eps=float(eps)))
    y = s.reshape(y, x.shape)
    for kind, of in (("mul", weight), ("add", bias)):
        y = y if of is None else s.ctx.op(kind, y, _per_channel(s, x, of))
    return s.cast(y, x.dtype), *(
        s.cast(s.reshape(v, spec.shape), spec.dtype) for v, spec in zip((mean, rstd), s.outs[1:])
    )


# --- batch norm -------------------------------------------------------------------------------------------------------


def _per_channel(s: Site, x: Value, of: Value | None) -> Value | None:
    """A channel's number beside all of its elements, in f32."""
    return None if of is None else s.reshape(s.wide(of), (of.spec.numel, *[1] * (x.rank - 2)))


def _normalised(
    s: Site, x: Value, mean: Value, rstd: Value, weight: Value | None, bias: Value | None
) -> Value:
    y = s.ctx.mul(s.ctx.sub(s.wide(x), mean), rstd)
    scale, shift = _per_channel(s, x, weight), _per_channel(s, x, bias)
    y = y if scale is None else s.ctx.mul(y, scale)
    y = y if shift is None else s.ctx.add(y, shift)
    return s.cast(y, x.dtype)


@rule("_native_batch_norm_legit_no_training", heavy=True)
def _batch_norm(
    s: Site,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    eps: float,
) -> Any:
    rstd = s.ctx.div(1.0, s.ctx.sqrt(s.ctx.add(s.wide(var), float(eps))))
    at, by = _per_channel(s, x, mean), _per_channel(s, x, rstd)
    assert at is not None and by is not None
    # on the CPU PyTorch's trace has nothing in their place
    statistics = [
        s.cast(v, spec.dtype) if spec.numel else s.ctx.fill(shape=spec.shape, value=0.0, dtype=spec.dtype)
        for v, spec in zip((mean, rstd), s.outs[1:3])
    ]
    return _normalised(s, x, at, by, weight, bias), *statistics


@rule("_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats", heavy=True)
def _batch_norm_training(s: Site, x: Value, weight: Value | None, bias: Value | None, *rest: Any) -> Any:
    """(y, mean, 1/std, new running mean, new running variance); the last two where there were old ones."""
    running, (training, momentum, eps) = rest[:-3], rest[-3:]
    if not training:
        mean, var = running
        made = _batch_norm(s, x, weight, bias, mean, var, momentum, eps)
        return *made, *(s.cast(v, spec.dtype) for v, spec in zip(running, s.outs[3:]))
    axes = tuple(a for a in range(x.rank) if a != 1)
    count = math.prod(x.shape[a] for a in axes)
    if count < 2:
        raise Unsupported("a batch norm of one element")
    wide = s.wide(x)
    mean = s.ctx.reduce_mean(wide, axes=axes, keepdims=True)
    squares = s.ctx.reduce_sum(s.ctx.square(s.ctx.sub(wide, mean)), axes=axes, keepdims=True)
    rstd = s.ctx.div(1.0, s.ctx.sqrt(s.ctx.add(s.ctx.mul(squares, 1.0 / count), float(eps))))
    y = _normalised(s, x, mean, rstd, weight, bias)
    made = [
        y,
        *(s.cast(s.reshape(v, (x.shape[1],)), spec.dtype) for v, spec in zip((mean, rstd), s.outs[1:])),
    ]
    for old, new, spec in zip(running, (mean, s.ctx.mul(squares, 1.0 / (count - 1))), s.outs[3:]):
        fresh = s.ctx.mul(s.reshape(new, old.shape), float(momentum))
        # in f32 for statistics in halves, too: PyTorch's graph rounds them
        made.append(s.cast(s.ctx.add(s.ctx.mul(s.wide(old), 1.0 - float(momentum)), fresh), spec.dtype))
    return tuple(made)
