"""Ops that read or add at indices: an embedding is `gather(table, ids)`, and scatter_add its gradient.

An index counts from the end if it is negative, as in NumPy: of an axis of `size` elements, those from -size to size - 1 are
indices. Any other reads no memory. In a graph it makes the run invalid, and is told: see check_indices.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..device.faults import INDEX, INDEX_FROM_ZERO, RECORD
from ..types import DType, TensorSpec
from .schema import I64, MASKED, Access, Any_, Index, Number, is_integer, op, refuse_gradient, require


def _check_axis(axis: int, rank: int, constraint: str = "C1") -> None:
    require(
        0 <= axis < rank,
        constraint,
        f"axis is {axis}, expected 0 to {rank - 1}" if rank else "a number has no axis",
    )


def _without(shape: tuple, axis: int) -> tuple:
    return (*shape[:axis], *shape[axis + 1 :])


def axis_from_the_end(operands, attrs):
    axis = attrs.get("axis", 0)
    return {**attrs, "axis": axis + operands[0].rank if is_integer(axis) and axis < 0 else axis}


@lru_cache(maxsize=64)
def _picking(dtype: DType):
    """What is read, or what stands for no element: NaN, of integers the least, of bools False."""
    compute = dtype.compute
    nothing = np.float32(np.nan) if compute.kind == "float" else _least(compute)

    def pick(x, inside, index):
        return x if inside else nothing

    return pick


def _least(dtype: DType):
    return np.bool_(False) if dtype.kind == "bool" else dtype.numpy.type(np.iinfo(dtype.numpy).min)


def _special(operands, attrs):
    return _picking(operands[0])


def _nothing(x: np.ndarray):
    dtype = DType.f32 if x.dtype == np.float64 else DType.of(x.dtype)
    return np.nan if dtype.kind == "float" else _least(dtype)


def wrapped(indices: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(indices from 0 on, 0 for what is none; which are indices)."""
    indices = indices.astype(np.int64)
    indices = np.where(indices < 0, indices + size, indices)
    valid = (indices >= 0) & (indices < size)
    return np.where(valid, indices, 0), valid


def accumulator(dtype: np.dtype) -> np.dtype:
    """The element type in which NumPy joins many elements at one place, one after the other: f64 for floats."""
    return np.dtype(np.float64) if dtype.kind == "f" else dtype


# --- gather -----------------------------------------------------------------------------------------------------------


@op("gather", traits=(MASKED,))
def gather(x: Any_, indices: Index, *, axis: int = 0):
    """Slices of x along an axis, picked by indices of any shape: y[..., i, j, ...] = x[..., indices[i, j], ...].

    As numpy.take and jax.numpy.take; an embedding is gather(table, ids). A negative axis or index counts from the end. Where an index
    is none, from -size to size - 1, y is NaN, of integers the least, of bools False.

    C1  axis is one of x
    """
    _check_axis(axis, x.rank)
    return TensorSpec((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype, x.device)


def _gather_access(x, indices, axis):
    many = len(indices)
    axes = tuple([a if a < axis else -1 if a == axis else a + many - 1 for a in range(len(x))])
    return [Access(0, axes, index=((axis, 1),)), Access(1, tuple(range(axis, axis + many)))]


gather.normalizer(axis_from_the_end)
gather.specialised(_special)


@gather.maps(_gather_access, continuous=True)
def _(x, inside, index):
    return x if inside else float("nan")


@gather.replaced_by
def _(emit, x, indices, axis):
    """Indices that count up, such as the places of a sequence, and are all inside, take a slice: it needs no check, and its gradient is
    no scatter_add."""
    first = emit.first_of_count(indices)
    if first is None or first < 0 or first + indices.shape[0] > x.shape[axis]:
        return None
    start = tuple([first if a == axis else 0 for a in range(x.rank)])
    limit = tuple([first + indices.shape[0] if a == axis else n for a, n in enumerate(x.shape)])
    return emit.slice(x, start=start, limit=limit)


@gather.guards
def _(emit, x, indices, axis):
    emit.check_indices(indices, size=x.shape[axis], of="gather: index")


@gather.reference
def _(x, indices, axis):
    places, valid = wrapped(indices, x.shape[axis])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if not valid.any():
        return np.full(shape, _nothing(x), x.dtype)
    valid = valid.reshape((*valid.shape, *[1] * (x.ndim - axis - 1)))
    return np.where(valid, np.take(x, places, axis), x.dtype.type(_nothing(x)))


@gather.gradient
def _(emit, dy, x, indices, axis):
    refuse_gradient("gather", x=x.dtype)
    return emit.scatter_add(dy, indices, size=x.shape[axis], axis=axis), None


# --- take_along_axis --------------------------------------------------------------------------------------------------


@op("take_along_axis", traits=(MASKED,))
def take_along_axis(x: Any_, indices: Index, *, axis: int):
    """Elements of x along an axis, each picked by an index of its own: y[..., i, ...] = x[..., indices[..., i, ...], ...].

    As numpy.take_along_axis, torch.gather. A negative axis or index counts from the end. Where an index is none, y is as gather's.

    C1  axis is one of x
    C2  indices have the rank of x, and its size along every other axis
    """
    _check_axis(axis, x.rank)
    require(
        x.rank == indices.rank and _without(x.shape, axis) == _without(indices.shape, axis),
        "C2",
        f"indices have shape {indices.shape}, x has {x.shape}: they may differ along axis {axis} alone",
    )
    return TensorSpec(indices.shape, x.dtype, x.device)


def _along_access(x, indices, axis):
    whole = tuple(range(len(x)))
    return [Access(0, tuple([-1 if a == axis else a for a in whole]), index=((axis, 1),)), Access(1, whole)]


take_along_axis.normalizer(axis_from_the_end)
take_along_axis.specialised(_special)


@take_along_axis.maps(_along_access, continuous=True)
def _(x, inside, index):
    return x if inside else float("nan")


@take_along_axis.guards
def _(emit, x, indices, axis):
    emit.check_indices(indices, size=x.shape[axis], of="take_along_axis: index")


@take_along_axis.reference
def _(x, indices, axis):
    places, valid = wrapped(indices, x.shape[axis])
    if not valid.any():
        return np.full(indices.shape, _nothing(x), x.dtype)
    return np.where(valid, np.take_along_axis(x, places, axis), x.dtype.type(_nothing(x)))


@take_along_axis.gradient
def _(emit, dy, x, indices, axis):
    refuse_gradient("take_along_axis", x=x.dtype)
    return emit.scatter_add(dy, indices, size=x.shape[axis], axis=axis, along=True), None


# --- scatter_add ------------------------------------------------------------------------------------------------------


@op("scatter_add")
def scatter_add(updates: Number, indices: Index, *, size: int, axis: int = 0, along: bool = False):
    """Zeros of `size` along an axis, with updates added at indices: y[..., indices[i, j], ...] += updates[..., i, j, ...].

    The gradient of gather: indices of any shape stand in the updates' shape where the axis was, and y has the axis in their place. With
    `along`, that of take_along_axis: each update has an index of its own. Updates to one place are added in their order, or by stretches
    of it, halves in f32, so equal runs give equal bits. A negative axis or index counts from the end; what an index beyond is for is left out.

    C1  axis is one of the result
    C2  size >= 0
    C3  the updates' shape has the indices' in it, from the axis on
    C4  along: indices have the updates' shape
    """
    require(size >= 0, "C2", f"size is {size}, expected at least 0")
    if along:
        require(
            indices.shape == updates.shape,
            "C4",
            f"indices have shape {indices.shape}, updates {updates.shape}",
        )
        _check_axis(axis, updates.rank)
        return TensorSpec(
            (*updates.shape[:axis], size, *updates.shape[axis + 1 :]), updates.dtype, updates.device
        )
    _check_axis(axis, updates.rank - indices.rank + 1)
    behind = axis + indices.rank
    require(
        updates.shape[axis:behind] == indices.shape,
        "C3",
        f"updates have shape {updates.shape}, with {updates.shape[axis:behind]} from axis {axis} on; indices have {indices.shape}",
    )
    return TensorSpec((*updates.shape[:axis], size, *updates.shape[behind:]), updates.dtype, updates.device)


@scatter_add.normalizer
def _(operands, attrs):
    updates, indices = operands
    axis = attrs.get("axis", 0)
    rank = updates.rank if attrs.get("along") else updates.rank - indices.rank + 1
    return {**attrs, "axis": axis + rank if is_integer(axis) and axis < 0 else axis}


@scatter_add.guards
def _(emit, updates, indices, size, axis, along):
    emit.check_indices(indices, size=size, of="scatter_add: index")


@scatter_add.reference
def _(updates, indices, size, axis, along):
    places, valid = wrapped(indices, size)
    if along:  # np.add.at adds one after the other
        y = np.zeros((*updates.shape[:axis], size, *updates.shape[axis + 1 :]), accumulator(updates.dtype))
        at = list(np.indices(places.shape))
        at[axis] = places
        np.add.at(y, tuple([index[valid] for index in at]), updates[valid].astype(y.dtype))
        return y
    behind = axis + indices.ndim
    before, after = updates.shape[:axis], updates.shape[behind:]
    rows = np.moveaxis(updates.reshape(*before, indices.size, *after), axis, 0)[valid.reshape(-1)]
    y = np.zeros((size, *before, *after), updates.dtype)
    places = places.reshape(-1)[valid.reshape(-1)]
    order = np.argsort(places, kind="stable")  # rows of one place next to each other, in their order
    if order.size:
        found, starts = np.unique(places[order], return_index=True)
        y[found] = np.add.reduceat(rows[order], starts, axis=0)
    return np.moveaxis(y, 0, axis)


@scatter_add.gradient
def _(emit, dy, indices, axis, along):
    taken = emit.take_along_axis if along else emit.gather
    return taken(dy, indices, axis=axis), None


# --- what is no index ---------------------------------------------------------------------------------------------------


@op("check_indices", results=("valid", "told"), alias={1: (1, "must")}, version=2)
def check_indices(indices: Index, fault: I64, *, size: int, negative: bool = True, of: str = ""):
    """valid = whether each of the indices is one of [-size, size); without `negative`, of [0, size).

    told is fault, a record (device/faults.py), written in place: with one run more if not valid, and, if it is the first,
    with the first place, row-major, whose index is out of range, the index there, and size. `of` is what the error's message calls
    the indices.

    C1  fault has shape (5,)
    C2  size is at least 0
    """
    require(fault.shape == (RECORD,), "C1", f"fault has shape {fault.shape}, expected ({RECORD},)")
    require(size >= 0, "C2", f"size is {size}, expected at least 0")
    return TensorSpec((), DType.bool, indices.device), fault


@check_indices.reference
def _(indices, fault, size, negative, of):
    flat = indices.reshape(-1)
    bad = np.flatnonzero((flat < (-size if negative else 0)) | (flat >= size))
    if not bad.size:
        return True, fault
    first = [1, bad[0], flat[bad[0]], size, INDEX if negative else INDEX_FROM_ZERO]
    return False, np.array([fault[0] + 1, *fault[1:]] if fault[0] else first, np.int64)


# --- samples ------------------------------------------------------------------------------------------------------------


def _drawn(size):
    """Indices from -size on, of an axis of a size that is found in the operands' shapes."""

    def draw(rng, shape, shapes):
        n = max(size(shapes), 1)
        return rng.integers(-n, n, shape)

    return draw


gather.draws(indices=_drawn(lambda shapes: min(shapes[0], default=1)))
take_along_axis.draws(indices=_drawn(lambda shapes: min(shapes[0], default=1)))
scatter_add.draws(indices=_drawn(lambda shapes: 3))
check_indices.draws(indices=_drawn(lambda shapes: 9), fault=lambda rng, shape, shapes: np.zeros(shape))
gather.samples((5, 7), (3,))
gather.samples((5, 7), (2, 3))
gather.samples((5, 7), (2, 3), axis=1)
gather.samples((5, 4, 7), (6,), axis=-2)
gather.samples((5, 7), ())
gather.samples((9,), (1025,))
gather.samples((5, 0), (3,))
gather.samples((5, 7), (0,), axis=1)
gather.samples((0, 3), (2,))
take_along_axis.samples((5, 7), (5, 3), axis=1)
take_along_axis.samples((5, 7), (9, 7), axis=0)
take_along_axis.samples((3, 4, 5), (3, 2, 5), axis=-2)
take_along_axis.samples((5, 7), (5, 0), axis=1)
scatter_add.samples((6, 7), (6,), size=3)
scatter_add.samples((2, 3, 7), (2, 3), size=4)
scatter_add.samples((4, 2, 3), (2, 3), size=5, axis=-1)
scatter_add.samples((4, 6, 5), (6,), size=3, axis=1)
scatter_add.samples((7,), (), size=3)
scatter_add.samples((1025,), (1025,), size=3)
scatter_add.samples((0, 3), (0,), size=4)
scatter_add.samples((5, 4), (5, 4), size=3, axis=1, along=True)
scatter_add.samples((5, 4), (5, 4), size=6, axis=-2, along=True)
for _shape in ((7,), (2, 3), (0,), (), (1025,)):
    check_indices.samples(_shape, (RECORD,), size=6)
