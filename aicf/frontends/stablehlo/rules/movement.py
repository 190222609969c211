"""Ops that move elements: shapes, slices, pads, joins."""

from __future__ import annotations

from ....ir import Value
from ....types import DType
from ..emission import Emission
from ..nodes import Operation
from ..table import UnsupportedForm, rule


@rule("stablehlo.reshape")
def _(e: Emission, node: Operation, x: Value) -> Value:
    shape = node.types[0].shape
    return x if x.shape == shape else e.ctx.reshape(x, shape=shape)


@rule("stablehlo.broadcast_in_dim")
def _(e: Emission, node: Operation, x: Value) -> Value:
    dims, shape = node.attrs["broadcast_dimensions"], node.types[0].shape
    if list(dims) != sorted(dims):  # aicf's transposes nothing
        order = sorted(range(x.rank), key=dims.__getitem__)
        x, dims = e.ctx.transpose(x, perm=tuple(order)), tuple(sorted(dims))
    return e.spread(x, shape, tuple(dims))


@rule("stablehlo.transpose")
def _(e: Emission, node: Operation, x: Value) -> Value:
    return permuted(e, x, node.attrs["permutation"])


def permuted(e: Emission, x: Value, perm: tuple[int, ...]) -> Value:
    return x if tuple(perm) == tuple(range(x.rank)) else e.ctx.transpose(x, perm=tuple(perm))


@rule("stablehlo.reverse")
def _(e: Emission, node: Operation, x: Value) -> Value:
    return e.ctx.reverse(x, dims=node.attrs["dimensions"])


@rule("stablehlo.slice")
def _(e: Emission, node: Operation, x: Value) -> Value:
    attrs = node.attrs
    return e.ctx.slice(x, start=attrs["start_indices"], limit=attrs["limit_indices"], step=attrs["strides"])


@rule("stablehlo.concatenate")
def _(e: Emission, node: Operation, *xs: Value) -> Value:
    return xs[0] if len(xs) == 1 else e.ctx.concatenate(*xs, axis=node.attrs["dimension"])


@rule("stablehlo.pad")
def _(e: Emission, node: Operation, x: Value, value: Value) -> Value:
    attrs = node.attrs
    where = {
        "low": attrs["edge_padding_low"],
        "high": attrs["edge_padding_high"],
        "interior": attrs["interior_padding"],
    }
    known = e.known(value)
    if known is not None and (x.dtype.kind != "int" or abs(int(known)) <= 2**53):
        plain = float if x.dtype.kind == "float" else int
        return e.ctx.pad(x, value=plain(known), **where)
    padded, own = e.ctx.pad(x, value=0.0, **where), e.spread(e.number(True, DType.bool), x.shape)
    return e.ctx.select(e.ctx.pad(own, value=0.0, **where), padded, value)


@rule("stablehlo.dynamic_slice")
def _(e: Emission, node: Operation, x: Value, *starts: Value) -> Value:
    """Starts are moved so that the slice lies inside, as StableHLO says. Those that are known make a slice, others a gather."""
    sizes = node.attrs["slice_sizes"]
    if e.loops and (row := e.loops[-1].row(x, starts, sizes)) is not None:
        return row
    for axis, (start, size) in enumerate(zip(starts, sizes)):
        if size == x.shape[axis]:
            continue
        known = e.known(start)
        if known is not None:
            first = min(max(int(known), 0), x.shape[axis] - size)
            begin = tuple(first if a == axis else 0 for a in range(x.rank))
            end = tuple(first + size if a == axis else n for a, n in enumerate(x.shape))
            x = e.ctx.slice(x, start=begin, limit=end)
        else:
            x = e.ctx.gather(x, _window(e, start, size, x.shape[axis]), axis=axis)
    return x


@rule("stablehlo.dynamic_update_slice")
def _(e: Emission, node: Operation, x: Value, update: Value, *starts: Value) -> Value:
    """Along one axis from a known start, a join; else each element of the result is the update's where the update lies, else x's: the update,
    moved to its place by a gather along each axis, and a mask."""
    ctx, mask = e.ctx, None
    if x.shape == update.shape:
        return update
    if 0 in update.shape:
        return x
    if e.loops and (written := e.loops[-1].write(x, update, starts)) is not None:
        return written
    narrow = [axis for axis in range(x.rank) if update.shape[axis] < x.shape[axis]]
    if len(narrow) == 1 and (known := e.known(starts[narrow[0]])) is not None:
        return _joined(e, x, update, narrow[0], int(known))
    for axis in narrow:
        size, whole, start = update.shape[axis], x.shape[axis], starts[axis]
        place = ctx.sub(ctx.iota(shape=(whole,), axis=0, dtype=DType.i32), _inside(e, start, size, whole))
        update = ctx.gather(update, ctx.minimum(ctx.maximum(place, 0), size - 1), axis=axis)
        here = ctx.select(ctx.greater_equal(place, 0), ctx.less(place, size), False)
        here = e.spread(here, x.shape, (axis,))
        mask = here if mask is None else ctx.select(mask, here, False)
    return ctx.select(mask, update, x)


def _joined(e: Emission, x: Value, update: Value, axis: int, start: int) -> Value:
    """What is before the update along an axis, the update, what is behind it."""
    size, whole = update.shape[axis], x.shape[axis]
    first = min(max(start, 0), whole - size)
    parts = []
    for begin, end in ((0, first), (first + size, whole)):
        low = tuple(begin if a == axis else 0 for a in range(x.rank))
        high = tuple(end if a == axis else n for a, n in enumerate(x.shape))
        parts.append([e.ctx.slice(x, start=low, limit=high)] if begin < end else [])
    return e.ctx.concatenate(*parts[0], update, *parts[1], axis=axis)


def as_index(e: Emission, x: Value) -> Value:
    """Indices as i32 or i64: what is narrower, or unsigned, is widened."""
    if x.dtype in (DType.i32, DType.i64):
        return x
    return e.ctx.convert(x, dtype=DType.i64 if x.dtype in (DType.u32, DType.u64) else DType.i32)


def _inside(e: Emission, start: Value, size: int, whole: int) -> Value:
    """A start, moved so that `size` elements from it on lie in `whole`, in i32."""
    if whole >= 2**31:
        raise UnsupportedForm(f"along an axis of {whole}")
    moved = e.ctx.minimum(e.ctx.maximum(as_index(e, start), 0), whole - size)
    return moved if moved.dtype is DType.i32 else e.ctx.convert(moved, dtype=DType.i32)


def _window(e: Emission, start: Value, size: int, whole: int) -> Value:
    return e.ctx.add(e.ctx.iota(shape=(size,), axis=0, dtype=DType.i32), _inside(e, start, size, whole))
