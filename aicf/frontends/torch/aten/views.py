"""Ops that only say how elements are read: reshapes, permutations, slices, repeats, concatenations, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....ir import Value
from ....types import DType
from ..rules import Site, axes_of, axis_of, plain, rule
from ..types import Unsupported


@rule(
    "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int",
    view=True,
)  # fmt: skip
def _reshape(s: Site, x: Value, *how: Any) -> Value:
    return s.reshape(x, s.out.shape)


@rule("view.dtype", view=True)
def _bits(s: Site, x: Value, dtype: Any) -> Value:
    raise Unsupported("bits seen as another type")


def permuted(s: Site, x: Value, perm: Sequence[int]) -> Value:
    perm = tuple(p % x.rank for p in perm)
    if perm == tuple(range(x.rank)):
        return x
    made = x.producer
    if made is not None and made.kind == "transpose":  # one of one: what both do
        before, first = s.ctx.builder.graph.values[made.inputs[0]], made.attrs["perm"]
        return permuted(s, before, [first[axis] for axis in perm])
    return s.ctx.transpose(x, perm=perm)


rule("permute", view=True)(permuted)


@rule("t", view=True)
def _t(s: Site, x: Value) -> Value:
    return permuted(s, x, range(x.rank)[::-1])


@rule("transpose.int", view=True)
def _transpose(s: Site, x: Value, a: int, b: int) -> Value:
    perm = list(range(x.rank))
    if perm:
        perm[a], perm[b] = perm[b], perm[a]
    return permuted(s, x, perm)


@rule("expand", "broadcast_to", view=True)
def _expand(s: Site, x: Value, size: Any, implicit: bool = False) -> Value:
    return s.spread(x, s.out.shape)


def _with_last(rank: int, *axes: int) -> list[int]:
    """The permutation that moves axes to the end."""
    last = [axis % rank for axis in axes]
    return [axis for axis in range(rank) if axis not in last] + last


@rule("diagonal", view=True)
def _diagonal(s: Site, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    count = s.out.shape[-1]
    if not s.out.numel:
        return s.ctx.fill(shape=s.out.shape, value=0, dtype=x.dtype)
    x = permuted(s, x, _with_last(x.rank, dim1, dim2))
    columns = x.shape[-1]
    flat = s.reshape(x, (*x.shape[:-2], x.shape[-2] * columns))
    start = max(-offset, 0) * columns + max(offset, 0)
    return cut(s, flat, flat.rank - 1, start, start + (count - 1) * (columns + 1) + 1, columns + 1)


@rule("diagonal_scatter")
def _diagonal_scatter(
    s: Site, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    if not source.spec.numel:
        return x
    perm = _with_last(x.rank, dim1, dim2)
    x = permuted(s, x, perm)
    rows, first = x.shape[-2], max(-offset, 0)
    none, after = (0,) * (source.rank - 1), rows - first - source.shape[-1]
    by_row = s.ctx.pad(
        s.cast(source, x.dtype), value=plain(0, x.dtype), low=(*none, first), high=(*none, after)
    )
    row, column = (s.ctx.iota(shape=x.shape, axis=axis, dtype=DType.i32) for axis in (x.rank - 2, x.rank - 1))
    each = s.ctx.broadcast_in_dim(by_row, shape=x.shape, dims=tuple(range(x.rank - 1)))
    y = s.ctx.select(s.ctx.equal(column, s.ctx.add(row, offset)), each, x)
    return permuted(s, y, sorted(range(len(perm)), key=perm.__getitem__))


def cut(s: Site, x: Value, axis: int, start: int, limit: int, step: int = 1) -> Value:
    """Elements start, start + step, … below limit along an axis."""
    if (start, limit, step) == (0, x.shape[axis], 1):
        return x
    first, last, by = [0] * x.rank, list(x.shape), [1] * x.rank
    first[axis], last[axis], by[axis] = start, limit, step
    return s.ctx.slice(x, start=tuple(first), limit=tuple(last), step=tuple(by))


@rule("slice.Tensor", view=True)
def _slice(s: Site, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    axis = axis_of(dim, x.rank)
    first, last, by = slice(start, end, step).indices(x.shape[axis])
    return cut(s, x, axis, first, max(first, last), by)


@rule("select.int", view=True)
def _select(s: Site, x: Value, dim: int, index: int) -> Value:
    axis = axis_of(dim, x.rank)
    at = index % x.shape[axis]
    return s.reshape(cut(s, x, axis, at, at + 1), s.out.shape)


@rule("split_with_sizes", view=True)
def _split(s: Site, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    axis, start, made = axis_of(dim, x.rank), 0, []
    for size in sizes:
        made.append(cut(s, x, axis, start, start + size))
        start += size
    return tuple(made)


@rule("split.Tensor", view=True)
def _split_even(s: Site, x: Value, size: int, dim: int = 0) -> tuple[Value, ...]:
    extent = x.shape[axis_of(dim, x.rank)]
    return _split(s, x, [min(size, extent - at) for at in range(0, extent, size)], dim)


@rule("unbind.int", view=True)
def _unbind(s: Site, x: Value, dim: int = 0) -> tuple[Value, ...]:
    return tuple(_select(_Part(s, n), x, dim, n) for n in range(x.shape[axis_of(dim, x.rank)]))


class _Part(Site):
    """One of several results."""

    def __init__(self, s: Site, n: int) -> None:
        super().__init__(s.ctx, s.outs[n])


@rule("cat")
def _cat(s: Site, tensors: Sequence[Value], dim: int = 0) -> Value:
    # PyTorch leaves out empty tensors of one axis
    kept = [s.cast(x, s.out.dtype) for x in tensors if x.shape != (0,) or s.out.rank == 1]
    if len(kept) == 1:
        return kept[0]
    return s.ctx.concatenate(*kept, axis=axis_of(dim, s.out.rank))


@rule("stack")
def _stack(s: Site, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(dim, s.out.rank)
    parts = [s.reshape(s.cast(x, s.out.dtype), (*x.shape[:axis], 1, *x.shape[axis:])) for x in tensors]
    return parts[0] if len(parts) == 1 else s.ctx.concatenate(*parts, axis=axis)


@rule("constant_pad_nd")
def _pad(s: Site, x: Value, pads: Sequence[int], value: Any = 0) -> Value:
    low, high = [0] * x.rank, [0] * x.rank
    for n, (before, after) in enumerate(zip(pads[::2], pads[1::2])):
        low[x.rank - 1 - n], high[x.rank - 1 - n] = before, after
    return s.ctx.pad(x, value=plain(value, x.dtype), low=tuple(low), high=tuple(high))


@rule("flip")
def _flip(s: Site, x: Value, dims: Sequence[int]) -> Value:
    axes = axes_of(list(dims), x.rank) if dims else ()
    return s.ctx.reverse(x, dims=axes) if axes else x


@rule("repeat")
def _repeat(s: Site, x: Value, repeats: Sequence[int]) -> Value:
    """Each axis beside a new one in front of it, along which it repeats."""
    x = s.reshape(x, (1,) * (len(repeats) - x.rank) + x.shape)
    apart = tuple(n for size in x.shape for n in (1, size))
    spread = tuple(n for times, size in zip(repeats, x.shape) for n in (times, size))
    return s.reshape(s.spread(s.reshape(x, apart), spread), s.out.shape)


# --- the gradients of slices ----------------------------------------------------------------------------------------------


@rule("slice_backward")
def _slice_backward(
    s: Site, dy: Value, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    axis = axis_of(dim, dy.rank)
    first, _, by = slice(start, end, step).indices(sizes[axis])
    return placed(s, dy, axis, first, by, sizes[axis])


def placed(s: Site, x: Value, axis: int, start: int, step: int, extent: int) -> Value:
    """Zeros, with x from `start` on along an axis, every `step`."""
    if x.shape[axis] == 0:
        return s.ctx.fill(shape=s.out.shape, value=0, dtype=s.out.dtype)
    last = start + (x.shape[axis] - 1) * step + 1
    low, high, between = ([0] * x.rank for _ in range(3))
    low[axis], high[axis], between[axis] = start, extent - last, step - 1
    return s.ctx.pad(x, value=plain(0, x.dtype), low=tuple(low), high=tuple(high), interior=tuple(between))


@rule("slice_scatter")
def _slice_scatter(
    s: Site, x: Value, source: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    axis = axis_of(dim, x.rank)
    first, last, by = slice(start, end, step).indices(x.shape[axis])
    if by != 1:
        raise Unsupported("every n-th element written")
    extent = x.shape[axis]
    sides = [cut(s, x, axis, 0, first), s.cast(source, x.dtype), cut(s, x, axis, max(first, last), extent)]
    kept = [part for part in sides if part.shape[axis]]
    return s.ctx.concatenate(*kept, axis=axis) if len(kept) > 1 else kept[0] if kept else x


@rule("select_scatter")
def _select_scatter(s: Site, x: Value, source: Value, dim: int, index: int) -> Value:
    axis = axis_of(dim, x.rank)
    at = index % x.shape[axis]
    return _slice_scatter(
        s, x, s.reshape(source, (*x.shape[:axis], 1, *x.shape[axis + 1 :])), axis, at, at + 1
    )


@rule("select_backward")
def _select_backward(s: Site, dy: Value, sizes: Sequence[int], dim: int, index: int) -> Value:
    axis = axis_of(dim, len(sizes))
    x = s.reshape(dy, (*dy.shape[:axis], 1, *dy.shape[axis:]))
    return placed(s, x, axis, index % sizes[axis], 1, sizes[axis])
