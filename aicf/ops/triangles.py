"""What follows from where an element stands: triangles of matrices, unit matrices, one-hot codes. A graph has comparisons of indices in
their place, which fuse with what is around them."""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec
from .schema import LINEAR, Any_, Index, is_integer, op, require


def _places(emit, rows: int, columns: int, dtype: DType = DType.i32):
    """The row, (rows, 1), and the column, (1, columns), of each element of a matrix."""
    row = emit.iota(shape=(rows, 1), axis=0, dtype=dtype)
    return row, emit.iota(shape=(1, columns), axis=1, dtype=dtype)


def _check_matrix(x: TensorSpec) -> TensorSpec:
    require(x.rank >= 2, "C1", f"x has rank {x.rank}, expected 2 or more")
    return x


@op("tril", traits=(LINEAR,))
def tril(x: Any_, *, diagonal: int = 0):
    """The lower triangles of matrices, the last two axes of x, with zeros above a diagonal; a positive one lies above the main one.

    C1  x has rank 2 or more
    """
    return _check_matrix(x)


@op("triu", traits=(LINEAR,))
def triu(x: Any_, *, diagonal: int = 0):
    """The upper triangles of matrices, the last two axes of x, with zeros below a diagonal; a positive one lies above the main one.

    C1  x has rank 2 or more
    """
    return _check_matrix(x)


def _bounded(diagonal: int, x) -> int:
    """A diagonal beyond the matrix is all of it, or nothing, wherever it lies."""
    return max(-x.shape[-2] - 1, min(diagonal, x.shape[-1] + 1))


@tril.replaced_by
def _(emit, x, diagonal):
    row, column = _places(emit, *x.shape[-2:])
    return emit.select(emit.less_equal(column, emit.add(row, _bounded(diagonal, x))), x, 0)


@triu.replaced_by
def _(emit, x, diagonal):
    row, column = _places(emit, *x.shape[-2:])
    return emit.select(emit.greater_equal(column, emit.add(row, _bounded(diagonal, x))), x, 0)


@tril.reference
def _(x, diagonal):
    return np.tril(x, diagonal)


@triu.reference
def _(x, diagonal):
    return np.triu(x, diagonal)


for _schema in (tril, triu):
    _schema.samples((4, 7))
    _schema.samples((2, 5, 3), diagonal=1)
    _schema.samples((4, 4), diagonal=-2)
    _schema.samples((0, 3), diagonal=9)


@op("eye")
def eye(*, rows: int, columns: int, diagonal: int = 0, dtype: DType = DType.f32):
    """A matrix of zeros with ones on a diagonal; a positive one lies above the main one.

    C1  rows and columns are from 0 to 2^31 - 1
    C2  the diagonal is between -rows and columns, or one of them
    """
    for name, size in (("rows", rows), ("columns", columns)):
        require(0 <= size < 2**31, "C1", f"{name} is {size}, expected 0 to 2^31 - 1")
    require(-rows <= diagonal <= columns, "C2", f"diagonal is {diagonal}, expected {-rows} to {columns}")
    return TensorSpec((rows, columns), dtype)


@eye.replaced_by
def _(emit, rows, columns, diagonal, dtype):
    row, column = _places(emit, rows, columns, DType.i64)
    return emit.convert(emit.equal(emit.add(row, diagonal), column), dtype=dtype)


@eye.reference
def _(rows, columns, diagonal, dtype):
    return np.eye(rows, columns, diagonal, dtype=dtype.numpy)


eye.samples(rows=4, columns=4)
eye.samples(rows=3, columns=5, diagonal=2, dtype=DType.i32)
eye.samples(rows=3, columns=2, diagonal=-1, dtype=DType.bool)
eye.samples(rows=0, columns=3)


@op("one_hot")
def one_hot(labels: Index, *, classes: int, axis: int = -1, dtype: DType = DType.f32):
    """1 where an index along a new axis is the label, else 0: of (4, 7) labels (4, 7, classes). A label that is no class gives zeros.

    C1  axis is in [-rank(y), rank(y))
    C2  classes is from 0 to 2^31 - 1
    """
    rank = labels.rank + 1
    require(-rank <= axis < rank, "C1", f"axis {axis} is not in [-{rank}, {rank})")
    require(0 <= classes < 2**31, "C2", f"classes is {classes}, expected 0 to 2^31 - 1")
    at = axis % rank
    return TensorSpec((*labels.shape[:at], classes, *labels.shape[at:]), dtype, labels.device)


@one_hot.normalizer
def _(specs, attrs):
    rank, axis = specs[0].rank + 1, attrs.get("axis", -1)
    return {**attrs, "axis": axis % rank} if is_integer(axis) and -rank <= axis < rank else attrs


@one_hot.replaced_by
def _(emit, labels, classes, axis, dtype):
    behind = labels.rank - axis
    index = emit.iota(shape=(classes, *[1] * behind), axis=0, dtype=labels.dtype)
    label = emit.reshape(labels, shape=(*labels.shape[:axis], 1, *labels.shape[axis:]))
    return emit.convert(emit.equal(label, index), dtype=dtype)


@one_hot.reference
def _(labels, classes, axis, dtype):
    hot = labels[..., None] == np.arange(classes)
    return np.moveaxis(hot, -1, axis).astype(dtype.numpy)


one_hot.samples((4, 7), classes=6)
one_hot.samples((3,), classes=4, axis=0, dtype=DType.i32)
one_hot.samples((2, 3), classes=5, axis=1, dtype=DType.bool)
one_hot.samples((), classes=3)
one_hot.samples((0, 3), classes=2)
