"""gather and scatter: any form becomes one index into the rows of the operand, its indexed axes brought to the front and merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ....ir import Value
from ....ops.scattering import Scatter
from ....types import DType
from ..emission import Emission
from ..nodes import Operation
from ..table import UnsupportedForm, rule
from .movement import as_index, permuted
from .reductions import combiner


@dataclass(frozen=True)
class _Place:
    """Where the windows of a gather or scatter lie: an index for each element along the indexed axes.

    axes     of the operand: those with indices or batches, in the order of the operand; they come first, merged
    starts   for each of them its index, of shape `batch + windows`, each axis of which it has or has 1 of
    batch    the shape of the indices without their vectors
    windows  for each of `axes`, how many elements of it a window has
    """

    axes: tuple[int, ...]
    starts: tuple[Value, ...]
    batch: tuple[int, ...]
    windows: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.batch, *self.windows)


def _place(
    e: Emission, shape: tuple[int, ...], indices: Value, vector: int, mapped: tuple[int, ...], own: tuple[int, ...],
    theirs: tuple[int, ...], window: Mapping[int, int], clamped: bool,
) -> _Place:  # fmt: skip
    """The indexed axes of an operand of this shape. Those of `mapped` have a component of the index vectors, which lie along axis `vector` of
    the indices; those of `own` go along with the axes `theirs` of the indices."""
    ctx = e.ctx
    indices = as_index(e, indices)
    batch = tuple(n for a, n in enumerate(indices.shape) if a != vector)
    axes = tuple(sorted((*mapped, *own)))
    windows = tuple(window[a] for a in axes)
    rank = len(batch) + len(axes)
    starts = []
    for n, axis in enumerate(axes):
        if axis in own:
            along = theirs[own.index(axis)]
            along -= along > vector
            start = ctx.iota(shape=(batch[along],), axis=0, dtype=indices.dtype)
            start = _axes_added(e, start, rank, (along,))
        else:
            start = _component(e, indices, vector, mapped.index(axis))
            if clamped:
                start = ctx.minimum(ctx.maximum(start, 0), shape[axis] - window[axis])
            start = _axes_added(e, start, rank, tuple(range(len(batch))))
        if window[axis] > 1:
            inner = ctx.iota(shape=(window[axis],), axis=0, dtype=indices.dtype)
            start = ctx.add(start, _axes_added(e, inner, rank, (len(batch) + n,)))
        starts.append(start)
    return _Place(axes, tuple(starts), batch, windows)


def _axes_added(e: Emission, x: Value, rank: int, dims: tuple[int, ...]) -> Value:
    """x with axes of size 1, its own at dims."""
    shape = [1] * rank
    for n, d in zip(x.shape, dims):
        shape[d] = n
    return x if x.shape == tuple(shape) else e.ctx.reshape(x, shape=tuple(shape))


def _component(e: Emission, indices: Value, vector: int, n: int) -> Value:
    if vector == indices.rank:
        return indices
    batch = tuple(d for a, d in enumerate(indices.shape) if a != vector)
    if indices.shape[vector] > 1:
        start = tuple(n if a == vector else 0 for a in range(indices.rank))
        limit = tuple(n + 1 if a == vector else d for a, d in enumerate(indices.shape))
        indices = e.ctx.slice(indices, start=start, limit=limit)
    return e.ctx.reshape(indices, shape=batch)


def _linear(e: Emission, place: _Place, shape: tuple[int, ...]) -> Value:
    """The index of each element among the rows of the operand, its indexed axes merged; of shape `place.shape`, flat."""
    sizes = [shape[a] for a in place.axes]
    if prod(sizes) >= 2**31:
        raise UnsupportedForm(f"into {prod(sizes)} rows")
    total: Value | None = None
    for n, start in enumerate(place.starts):
        stride = prod(sizes[n + 1 :])
        part = start if stride == 1 else e.ctx.mul(start, stride)
        total = part if total is None else e.ctx.add(total, part)
    assert total is not None
    return e.ctx.reshape(e.spread(total, place.shape), shape=(prod(place.shape),))


@rule("stablehlo.gather")
def _(e: Emission, node: Operation, x: Value, indices: Value) -> Value:
    numbers, sizes, result = node.attrs["dimension_numbers"], node.attrs["slice_sizes"], node.types[0].shape
    if 0 in result:
        return e.spread(e.number(0, x.dtype), result)
    mapped, own = numbers["start_index_map"], numbers["operand_batching_dims"]
    window = dict(enumerate(sizes))
    place = _place(
        e,
        x.shape,
        indices,
        numbers["index_vector_dim"],
        mapped,
        own,
        numbers["start_indices_batching_dims"],
        window,
        True,
    )
    rest = tuple(a for a in range(x.rank) if a not in place.axes)
    if any(sizes[a] < x.shape[a] for a in rest):  # without an index, a window begins at 0
        x = e.ctx.slice(
            x, start=(0,) * x.rank, limit=tuple(sizes[a] if a in rest else n for a, n in enumerate(x.shape))
        )
    if place.axes:
        if len(place.axes) == 1 and place.windows == (1,):
            rows, flat, axis = x, place.starts[0], place.axes[0]
            taken = e.ctx.gather(rows, e.ctx.reshape(flat, shape=(prod(place.shape),)), axis=axis)
            taken = permuted(e, taken, (axis, *(a for a in range(taken.rank) if a != axis)))
        else:
            taken = e.ctx.gather(_merged(e, x, place.axes, rest), _linear(e, place, x.shape), axis=0)
    else:
        taken = e.spread(x, (prod(place.batch), *x.shape)) if place.batch else x
    # batch, windows of indexed axes, the rest: to the order that the dimension numbers say
    dropped = {*numbers["collapsed_slice_dims"], *own}
    offsets = [a for a in range(x.rank) if a not in dropped]
    kept = [(a, n) for a, n in zip(place.axes, place.windows) if a in offsets]
    taken = e.ctx.reshape(taken, shape=(*place.batch, *(n for _, n in kept), *(x.shape[a] for a in rest)))
    now = [*(a for a, _ in kept), *rest]
    positions, batch = iter(range(len(place.batch))), len(place.batch)
    offset = iter(offsets)
    perm = [
        batch + now.index(next(offset)) if d in numbers["offset_dims"] else next(positions)
        for d in range(len(result))
    ]
    return permuted(e, taken, tuple(perm))


def _merged(e: Emission, x: Value, axes: tuple[int, ...], rest: tuple[int, ...]) -> Value:
    """x as rows: its axes `axes` first, merged, the rest behind them."""
    x = permuted(e, x, (*axes, *rest))
    return e.ctx.reshape(x, shape=(prod(x.shape[: len(axes)]), *x.shape[len(axes) :]))


@rule("stablehlo.scatter")
def _(e: Emission, node: Operation, *operands: Value, outer: Mapping[int, Value]) -> Value:
    if len(operands) != 3:
        raise UnsupportedForm(f"of {len(operands) // 2} operands")
    x, indices, updates = operands
    body, numbers, ctx = node.bodies[0], node.attrs["scatter_dimension_numbers"], e.ctx
    kind = "set" if not body.nodes and body.returned == body.arguments[1:] else combiner(body)
    if kind not in _JOINED:
        raise UnsupportedForm(f"by {kind or 'a body of its own'}")
    if kind not in ("set", "add") and ctx.device == "cuda":
        raise UnsupportedForm(f"by {kind} on a GPU")
    if 0 in updates.shape or 0 in x.shape:
        return x
    own, inserted = (
        numbers["input_batching_dims"],
        {*numbers["inserted_window_dims"], *numbers["input_batching_dims"]},
    )
    windowed = [a for a in range(x.rank) if a not in inserted]
    window = dict.fromkeys(inserted, 1) | {
        a: updates.shape[d] for a, d in zip(windowed, numbers["update_window_dims"])
    }
    mapped = numbers["scattered_dims_to_operand_dims"]
    place = _place(
        e,
        x.shape,
        indices,
        numbers["index_vector_dim"],
        mapped,
        own,
        numbers["scatter_indices_batching_dims"],
        window,
        False,
    )
    rest = tuple(a for a in range(x.rank) if a not in place.axes)
    # updates as batch, windows of indexed axes, the rest
    batch = [d for d in range(updates.rank) if d not in numbers["update_window_dims"]]
    of_axis = dict(zip(windowed, numbers["update_window_dims"]))
    order = (*batch, *(of_axis[a] for a in place.axes if a in of_axis), *(of_axis[a] for a in rest))
    updates = permuted(e, updates, tuple(order))
    updates = ctx.reshape(updates, shape=(prod(place.shape), *(window[a] for a in rest)))
    if any(window[a] < x.shape[a] for a in rest):
        raise UnsupportedForm("of windows narrower than the operand along axes without indices")
    if not place.axes:
        place = _Place((), (), place.batch, ())
    flat, inside = _checked(e, place, x.shape)
    rows = prod(x.shape[a] for a in place.axes)
    unique = kind != "set" or node.attrs.get("unique_indices") or _are_unique(e, flat)
    if kind not in ("set", "add") or not unique:
        return _row_by_row(e, x, place, rest, flat, inside, updates, _JOINED[kind])
    if inside is not None:
        flat = ctx.select(inside, flat, 0)
        column = ctx.reshape(inside, shape=(*inside.shape, *[1] * len(rest)))
        updates = ctx.select(column, updates, e.number(0, updates.dtype))
    added = _unmerged(e, ctx.scatter_add(updates, flat, size=rows), x, place.axes, rest)
    if kind == "add":
        known = e.known(e.bare(x))
        return added if known is not None and not np.any(known) else ctx.add(x, added)
    ones = e.spread(e.number(1, DType.i32), flat.shape)
    if inside is not None:
        ones = ctx.select(inside, ones, 0)
    hit = ctx.greater(ctx.scatter_add(ones, flat, size=rows), 0)
    hit = _unmerged(e, ctx.reshape(hit, shape=(rows, *[1] * len(rest))), x, place.axes, rest)
    return ctx.select(hit, added, x)


_JOINED = {
    "set": Scatter.set, "add": Scatter.add, "mul": Scatter.mul, "minimum": Scatter.min, "maximum": Scatter.max,
}  # fmt: skip


def _row_by_row(
    e: Emission, x: Value, place: _Place, rest: tuple[int, ...], flat: Value, inside: Value | None,
    updates: Value, how: Scatter,
) -> Value:  # fmt: skip
    """Updates one after the other: of several that are set at one place the last one stays, as XLA has it on a CPU. Those for no place go to
    a row that is cut off."""
    ctx, rows = e.ctx, _merged(e, x, place.axes, rest)
    if inside is None:
        return _unmerged(e, ctx.scatter(rows, flat, updates, axis=0, how=how), x, place.axes, rest)
    longer = ctx.pad(rows, value=0, low=(0,) * rows.rank, high=(1, *[0] * (rows.rank - 1)))
    made = ctx.scatter(longer, ctx.select(inside, flat, rows.shape[0]), updates, axis=0, how=how)
    return _unmerged(e, ctx.slice(made, start=(0,) * rows.rank, limit=rows.shape), x, place.axes, rest)


def _checked(e: Emission, place: _Place, shape: tuple[int, ...]) -> tuple[Value, Value | None]:
    """(the row of each update; which of them lie in the operand, None if all surely do): StableHLO leaves out what does not."""
    inside: Value | None = None
    for axis, start in zip(place.axes, place.starts):
        known = e.known(start)
        if known is not None and known.size and known.min() >= 0 and known.max() < shape[axis]:
            continue
        here = e.ctx.select(e.ctx.greater_equal(start, 0), e.ctx.less(start, shape[axis]), False)
        inside = here if inside is None else e.ctx.select(inside, here, False)
    if inside is not None:
        inside = e.ctx.reshape(e.spread(inside, place.shape), shape=(prod(place.shape),))
    if not place.axes:
        return e.spread(e.number(0, DType.i32), (prod(place.shape),)), inside
    return _linear(e, place, shape), inside


def _are_unique(e: Emission, flat: Value) -> bool:
    known = e.known(flat)
    return flat.shape == (1,) or (known is not None and len(np.unique(known)) == known.size)


def _unmerged(e: Emission, rows: Value, x: Value, axes: tuple[int, ...], rest: tuple[int, ...]) -> Value:
    """The contrary of `_merged`, for rows whose other axes are those of x, or 1."""
    y = e.ctx.reshape(rows, shape=(*(x.shape[a] for a in axes), *rows.shape[1:]))
    order = (*axes, *rest)
    return permuted(e, y, tuple(order.index(a) for a in range(x.rank)))
