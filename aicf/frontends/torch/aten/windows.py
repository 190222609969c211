"""Convolutions and pooling. Where windows lie beside each other, such as the patches of a vision transformer, they are rows of a matrix,
and the convolution is one product: aicf takes it. On Hopper it takes those of halves whose kernels are predicted to be no slower than
PyTorch's (peer.py). PyTorch's own are faster for the rest, so that only what has no PyTorch beside it takes those: `from_torch`, and
fallback="error"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from ....graph.emit.autodiff import pulled_back
from ....ir import Value
from ....ops.windows import slices, windows_of
from ....registry.select import Selector
from ....types import DType
from ..peer import OPS, is_faster
from ..rules import Site, rule
from ..types import DTYPES, Unsupported, hinted
from .views import cut


def _each(numbers: Sequence[int] | int, axes: int) -> tuple[int, ...]:
    """One for each spatial axis."""
    listed = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return listed * axes if len(listed) == 1 else listed


# --- convolution ------------------------------------------------------------------------------------------------------


def _of_patches(kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int) -> bool:  # fmt: skip
    """Whether windows of several elements lie beside each other. A kernel of one element is a product, too, but of three sizes on a CPU
    aicf's took 0.4 to 2.1 times PyTorch's time, and in its midst a part ends PyTorch's layout of channels last."""
    axes = len(kernel)
    alone = _each(stride, axes) == tuple(kernel) and not any(_each(padding, axes)) and math.prod(kernel) > 1
    return alone and set(_each(dilation, axes)) == {1} and not transposed and groups == 1


def _slower(node: Node, selector: Selector | None) -> bool:
    backward = len(node.args) == 11
    w, (stride, padding, dilation, transposed, _, groups) = (
        node.args[1 + backward],
        node.args[3 + backward :][:6],
    )
    assert isinstance(w, Node)
    kernel = [hinted(n) for n in w.meta["val"].shape[2:]]
    if _of_patches(kernel, stride, padding, dilation, bool(transposed), groups):
        return False
    x = node.args[int(backward)]
    assert isinstance(x, Node)
    if selector is None or transposed:
        return True
    axes = len(kernel)
    attrs = {
        "strides": _each(stride, axes), "low": _each(padding, axes), "high": _each(padding, axes), "dilation": _each(dilation, axes),
        "groups": groups,
    }  # fmt: skip
    asked = [OPS[0]] if not backward else [op for op, m in zip(OPS[1:], node.args[10]) if m]
    image, weight = ([hinted(n) for n in t.meta["val"].shape] for t in (x, w))
    return not is_faster(selector, image, weight, DTYPES.get(x.meta["val"].dtype), attrs, asked)


def _patches(s: Site, x: Value, kernel: Sequence[int]) -> Value:
    """(N, C, …) as (N windows, C places). What no window reads is cut off."""
    made = [n // k for n, k in zip(x.shape[2:], kernel)]
    whole = (*x.shape[:2], *(n * k for n, k in zip(made, kernel)))
    if whole != x.shape:
        x = s.ctx.slice(x, start=(0,) * x.rank, limit=whole)
    apart = s.reshape(x, (*x.shape[:2], *(n for pair in zip(made, kernel) for n in pair)))
    perm = (0, *range(2, apart.rank, 2), 1, *range(3, apart.rank, 2))
    return s.reshape(
        s.ctx.transpose(apart, perm=perm), (x.shape[0] * math.prod(made), x.shape[1] * math.prod(kernel))
    )


def _from_patches(s: Site, rows: Value, shape: Sequence[int], kernel: Sequence[int]) -> Value:
    """The reverse: (N windows, C places) as (N, C, …), with zeros where no window is."""
    (n, c, *sizes), axes = shape, len(kernel)
    made = [size // k for size, k in zip(sizes, kernel)]
    apart = s.reshape(rows, (n, *made, c, *kernel))
    perm = (0, axes + 1, *(a for axis in range(axes) for a in (1 + axis, axes + 2 + axis)))
    x = s.reshape(s.ctx.transpose(apart, perm=perm), (n, c, *(m * k for m, k in zip(made, kernel))))
    behind = [size - m for size, m in zip(shape, x.shape)]
    return s.ctx.pad(x, value=0.0, low=(0,) * x.rank, high=tuple(behind)) if any(behind) else x


def _points(s: Site, y: Value) -> Value:
    """(N, O, …) as (N points, O)."""
    last = s.ctx.transpose(y, perm=(0, *range(2, y.rank), 1))
    return s.reshape(last, (y.shape[0] * math.prod(y.shape[2:]), y.shape[1]))


def _slid(
    s: Site, x: Value, w: Value, stride: Any, padding: Any, dilation: Any, transposed: bool, more: Any, groups: int
) -> Value:  # fmt: skip
    """Any convolution, by aicf's op."""
    axes = x.rank - 2
    steps, pads, apart = _each(stride, axes), _each(padding, axes), _each(dilation, axes)
    if not transposed:
        return s.ctx.convolution(x, w, strides=steps, low=pads, high=pads, dilation=apart, groups=groups)
    (c, o), kernel = w.shape[:2], w.shape[2:]
    of_groups = s.reshape(w, (groups, c // groups, o, *kernel))
    turned = s.ctx.transpose(of_groups, perm=(0, 2, 1, *range(3, of_groups.rank)))
    turned = s.reshape(turned, (groups * o, c // groups, *kernel))
    low = tuple((k - 1) * by - pad for k, by, pad in zip(kernel, apart, pads))
    return s.ctx.convolution(
        x, s.ctx.reverse(turned, dims=tuple(range(2, x.rank))), low=low, dilation=apart, groups=groups,
        high=tuple(n + beyond for n, beyond in zip(low, _each(more, axes))), input_dilation=steps,
    )  # fmt: skip


@rule("convolution", heavy=True, slower=_slower)
def _convolution(
    s: Site, x: Value, w: Value, bias: Value | None, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Value:  # fmt: skip
    kernel = w.shape[2:]
    if x.spec.numel and _of_patches(kernel, stride, padding, dilation, transposed, groups):
        rows = s.reshape(w, (w.shape[0], math.prod(w.shape[1:])))
        y = s.ctx.gemm(_patches(s, x, kernel), rows, None, bias, trans_b=True)
        n, o, *made = s.out.shape
        return s.ctx.transpose(s.reshape(y, (n, *made, o)), perm=(0, x.rank - 1, *range(1, x.rank - 1)))
    y = _slid(s, x, w, stride, padding, dilation, transposed, output_padding, groups)
    return y if bias is None else s.ctx.add(y, s.reshape(bias, (*bias.shape, *[1] * (x.rank - 2))))


@rule("convolution_backward", heavy=True, slower=_slower)
def _convolution_backward(
    s: Site, dy: Value, x: Value, w: Value, bias_sizes: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    asked, kernel = [m and s.reads(n) for n, m in enumerate(mask)], w.shape[2:]
    dx = dw = dbias = None
    if asked[2]:
        over = (0, *range(2, dy.rank))
        dbias = s.cast(s.ctx.reduce_sum(s.wide(dy), axes=over), dy.dtype)
    if x.spec.numel and _of_patches(kernel, stride, padding, dilation, transposed, groups):
        points = _points(s, dy)
        if asked[0]:
            rows = s.reshape(w, (w.shape[0], math.prod(w.shape[1:])))
            dx = _from_patches(s, s.ctx.gemm(points, rows), x.shape, kernel)
        if asked[1]:
            dw = s.reshape(s.ctx.gemm(points, _patches(s, x, kernel), trans_a=True), w.shape)
    elif asked[0] or asked[1]:
        y = _slid(s, x, w, stride, padding, dilation, transposed, output_padding, groups)
        wrt = [v for v, wanted in zip((x, w), asked) if wanted]
        found = dict(zip([n for n in (0, 1) if asked[n]], pulled_back(s.ctx, y, dy, wrt)))
        dx, dw = found.get(0), found.get(1)
    return dx, dw, dbias


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pooling(x: Value, made: Sequence[int], size: Any, stride: Any, padding: Any, dilation: Any = 1) -> dict[str, Any]:  # fmt: skip
    """Attributes of windows over the last two axes, as many as PyTorch makes; where it rounds up, some end behind the padding."""
    window, low, apart = _each(size, 2), _each(padding, 2), _each(dilation, 2)
    steps = _each(stride, 2) if stride else window
    reach = ((n - 1) * step + (k - 1) * by + 1 for n, step, k, by in zip(made[-2:], steps, window, apart))
    high = tuple(max(end - n - before, 0) for end, n, before in zip(reach, x.shape[-2:], low))
    return {"window": window, "strides": steps, "low": low, "high": high, "dilation": apart}


def _images(s: Site, x: Value) -> Value:
    """One image is a batch of one."""
    return s.reshape(x, (1,) * (4 - x.rank) + x.shape)


@rule("max_pool2d_with_indices", heavy=True, slower=True)
def _max_pool(
    s: Site, x: Value, size: Sequence[int], stride: Sequence[int] = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
) -> Any:  # fmt: skip
    of, shape = _pooling(x, s.outs[0].shape, size, stride, padding, dilation), s.outs[0].shape
    x = _images(s, x)
    if not s.reads(1):
        return s.reshape(s.ctx.max_pool(x, **of), shape), None
    if any(of["low"]) and set(of["dilation"]) != {1}:
        raise Unsupported("places in windows with holes, beyond an edge")
    return tuple(s.reshape(v, shape) for v in _with_places(s, x, of))


def _with_places(s: Site, x: Value, of: dict[str, Any]) -> tuple[Value, Value]:
    """The greatest of each window and where in its plane it is: the first of equal ones, the last NaN."""
    ctx, width = s.ctx, x.shape[3]
    windows = windows_of(of["window"], of["strides"], of["dilation"], of["low"], of["high"])
    made = windows.made(x.shape[2:])
    corner = [
        ctx.sub(ctx.mul(ctx.iota(shape=made, axis=axis, dtype=DType.i64), step), before)
        for axis, (step, before) in enumerate(zip(of["strides"], of["low"]))
    ]
    inside = [ctx.maximum(start, 0) for start in corner]
    best, place = None, ctx.add(ctx.mul(inside[0], width), inside[1])
    start = ctx.add(ctx.mul(corner[0], width), corner[1])
    places = [
        row * of["dilation"][0] * width + column * of["dilation"][1]
        for row in range(of["window"][0])
        for column in range(of["window"][1])
    ]
    least = float("-inf") if x.dtype.kind == "float" else float(-(2 ** (8 * x.dtype.numpy.itemsize - 1)))
    for seen, beyond in zip(slices(ctx, x, windows, least), places):
        if best is None:
            best = ctx.fill(shape=seen.shape, value=least, dtype=x.dtype)
            place = s.spread(place, seen.shape)
        better = ctx.logical_or(ctx.greater(seen, best), ctx.not_equal(seen, seen))
        best = ctx.select(better, seen, best)
        place = ctx.select(better, s.spread(ctx.add(start, beyond), seen.shape), place)
    assert best is not None
    return best, place


@rule("max_pool2d_with_indices_backward", heavy=True, slower=True)
def _max_pool_backward(
    s: Site, dy: Value, x: Value, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, places: Value
) -> Value:  # fmt: skip
    planes, points = math.prod(x.shape[:-2]), math.prod(x.shape[-2:])
    flat = [s.reshape(v, (planes, math.prod(dy.shape[-2:]))) for v in (s.wide(dy), places)]
    return s.cast(s.reshape(s.ctx.scatter_add(*flat, size=points, axis=1, along=True), x.shape), x.dtype)


def _means(
    s: Site, x: Value, made: Sequence[int], size: Any, stride: Any, padding: Any, count_include_pad: bool, divisor: int | None
) -> Value:  # fmt: skip
    of = _pooling(x, made, size, stride, padding)
    del of["dilation"]
    if any(high > low for high, low in zip(of["high"], of["low"])) and divisor is None:
        raise Unsupported("means of windows that end behind the padding")
    y = s.ctx.avg_pool(_images(s, x), **of, count_padding=count_include_pad or divisor is not None)
    return y if divisor is None else s.ctx.mul(y, math.prod(of["window"]) / divisor)


@rule("avg_pool2d", heavy=True, slower=True)
def _avg_pool(
    s: Site, x: Value, size: Sequence[int], stride: Sequence[int] = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    y = _means(s, x, s.out.shape, size, stride, padding, count_include_pad, divisor_override)
    return s.reshape(y, s.out.shape)


@rule("avg_pool2d_backward", heavy=True, slower=True)
def _avg_pool_backward(
    s: Site, dy: Value, x: Value, size: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: int | None
) -> Value:  # fmt: skip
    y = _means(s, x, dy.shape, size, stride, padding, count_include_pad, divisor)
    return pulled_back(s.ctx, y, _images(s, dy), [x])[0]


def _parts(s: Site, shape: Sequence[int], made: Sequence[int]) -> list[int] | None:
    """The shape with both spatial axes as (windows, their elements); None if windows overlap."""
    if any(n == 0 or size % n for size, n in zip(shape[-2:], made[-2:])):
        return None
    each = [size // n for size, n in zip(shape[-2:], made[-2:])]
    return [*shape[:-2], made[-2], each[0], made[-1], each[1]]


MOST_WINDOWS = 16  # along an axis: each is a mean of its own


def _means_of_any(s: Site, x: Value, made: Sequence[int]) -> Value:
    """Windows from floor(i n / m) to ceil((i + 1) n / m), first along the rows, then along the columns."""
    if max(made[-2:]) > MOST_WINDOWS or not min(made[-2:]):
        raise Unsupported(f"adaptive pooling to more than {MOST_WINDOWS} windows that overlap, or to none")
    for axis in (x.rank - 1, x.rank - 2):
        n, m = x.shape[axis], made[axis]
        windows = [cut(s, x, axis, i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        means = [s.ctx.reduce_mean(w, axes=(axis,), keepdims=True) for w in windows]
        x = means[0] if m == 1 else s.ctx.concatenate(*means, axis=axis)
    return x


def _overlaps(node: Node, selector: Selector | None) -> bool:
    """Whether PyTorch's is faster: windows that overlap are many kernels here."""
    backward = len(node.args) == 2 and isinstance(node.args[1], Node)
    x, y = (node.args[1], node.args[0]) if backward else (node.args[0], node)
    assert isinstance(x, Node) and isinstance(y, Node)
    sizes = ([hinted(n) for n in t.meta["val"].shape[-2:]] for t in (x, y))
    return any(m == 0 or n % m for n, m in zip(*sizes))


@rule("_adaptive_avg_pool2d", heavy=True, slower=_overlaps)
def _adaptive_means(s: Site, x: Value, size: Sequence[int]) -> Value:
    apart = _parts(s, x.shape, s.out.shape)
    if apart is None:
        return s.cast(_means_of_any(s, s.wide(x), s.out.shape), x.dtype)
    return s.ctx.reduce_mean(s.reshape(x, apart), axes=(len(apart) - 3, len(apart) - 1))


@rule("_adaptive_avg_pool2d_backward", heavy=True, slower=_overlaps)
def _adaptive_means_backward(s: Site, dy: Value, x: Value) -> Value:
    apart = _parts(s, x.shape, dy.shape)
    if apart is None:
        wide = s.wide(x)
        return s.cast(pulled_back(s.ctx, _means_of_any(s, wide, dy.shape), s.wide(dy), [wide])[0], x.dtype)
    each = s.ctx.mul(s.wide(dy), 1.0 / (apart[-3] * apart[-1]))
    beside = s.reshape(each, (*dy.shape[:-1], 1, dy.shape[-1], 1))
    return s.cast(s.reshape(s.spread(beside, apart), x.shape), x.dtype)
