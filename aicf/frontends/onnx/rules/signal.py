"""Discrete Fourier transforms, as products with tables of cosines and sines."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....types import DType
from ..operands import Call, Operand
from ..table import rule

MOST = 1 << 12  # elements of a signal: a table has their square


def _table(n: Call, size: int, made: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of 2 pi j k / size, (made, size) of f64: exact multiples of the angle."""
    if max(size, made) > MOST:
        raise n.refuse(f"a transform of {max(size, made)} elements, where aicf takes up to {MOST}")
    n.reserve(made, size)
    angle = 2 * np.pi * (np.outer(np.arange(made), np.arange(size)) % size) / size
    return np.cos(angle), np.sin(angle)


def _parts(n: Call, x: Any) -> tuple[Any, Any]:
    """(real, imaginary or None) of what has both along its last axis, or one."""
    shape = tuple(x.shape)
    if len(shape) < 2 or shape[-1] not in (1, 2):
        raise n.wrong(f"{list(shape)} is no signal: its last axis is of 1 or 2 numbers")
    cut = [
        n.op("slice", x, start=(*[0] * (len(shape) - 1), k), limit=(*shape[:-1], k + 1))
        for k in range(shape[-1])
    ]
    flat = [n.op("reshape", part, shape=shape[:-1]) for part in cut]
    return flat[0], flat[1] if len(flat) > 1 else None


def _joined(n: Call, real: Any, imaginary: Any) -> Any:
    return n.op(
        "concatenate",
        *[n.op("reshape", p, shape=(*p.shape, 1)) for p in (real, imaginary)],
        axis=len(real.shape),
    )


def _product(n: Call, x: Any, matrix: np.ndarray) -> Any:
    return n.value(x) @ n.value(np.ascontiguousarray(matrix.T.astype(np.float32)))


def _transformed(n: Call, real: Any, imaginary: Any, made: int, inverse: bool) -> tuple[Any, Any]:
    """`made` elements of the transform along the last axis."""
    size = real.shape[-1]
    cos, sin = _table(n, size, made)
    if inverse:
        cos, sin = cos / size, -sin / size
    first, second = _product(n, real, cos), _product(n, real, -sin)
    if imaginary is None:
        return first, second
    return n.op("add", first, _product(n, imaginary, sin)), n.op("add", second, _product(n, imaginary, cos))


def _of_length(n: Call, x: Any, length: int) -> Any:
    """Cut, or with zeros behind it."""
    if x is None or x.shape[-1] == length:
        return x
    high = (*[0] * (len(x.shape) - 1), length - x.shape[-1])
    return n.op("pad", x, low=(0,) * len(x.shape), high=high)


def _wide(n: Call, x: Any) -> Any:
    if x.dtype is DType.f64:
        raise n.refuse("a transform of f64")
    return x if x.dtype is DType.f32 else n.op("convert", x, dtype=DType.f32)


def _dft_along(n: Call, x: Operand, length: Operand | None, axis: int) -> Any:
    inverse, onesided = bool(n.attr("inverse")), bool(n.attr("onesided"))
    rank = x.rank - 1  # of the signal
    at = axis + x.rank * (axis < 0)
    if not 0 <= at < rank:
        raise n.wrong(f"axis {axis} is none of the signal's, {list(x.shape)}")
    real, imaginary = _parts(n, _wide(n, n.value(x)))
    last = (*[a for a in range(rank) if a != at], at)
    real = n.op("transpose", real, perm=last)
    imaginary = None if imaginary is None else n.op("transpose", imaginary, perm=last)
    given = None if length is None else n.integer(length, "dft_length")
    if inverse and onesided:
        size = 2 * (real.shape[-1] - 1) if given is None else given
        return _from_one_side(n, real, imaginary, size, last)
    size = real.shape[-1] if given is None else given
    if size < 1:
        raise n.wrong(f"dft_length is {size}")
    real, imaginary = _of_length(n, real, size), _of_length(n, imaginary, size)
    if onesided and imaginary is not None:
        raise n.wrong("a onesided transform of complex numbers")
    made = _transformed(n, real, imaginary, size // 2 + 1 if onesided else size, inverse)
    back = tuple(np.argsort(last).tolist())
    y = _joined(n, *(n.op("transpose", p, perm=back) for p in made))
    return y if y.dtype is x.dtype else n.op("convert", y, dtype=x.dtype)


def _from_one_side(n: Call, real: Any, imaginary: Any, size: int, last: tuple[int, ...]) -> Any:
    """A real signal of the first half of its transform: what is in the middle counts twice."""
    if imaginary is None or size < 1:
        raise n.wrong("a onesided inverse is of complex numbers")
    half = size // 2 + 1
    real, imaginary = (_of_length(n, p, half) for p in (real, imaginary))
    cos, sin = _table(n, size, half)
    twice = np.where((np.arange(half) == 0) | (2 * np.arange(half) == size), 1, 2)[:, None] / size
    y = n.op("sub", _product(n, real, (cos * twice).T), _product(n, imaginary, (sin * twice).T))
    y = n.op("transpose", y, perm=tuple(np.argsort(last).tolist()))
    return n.op("reshape", y, shape=(*y.shape, 1))


@rule("DFT", since=17, until=19)
def _dft_of_an_attribute(n: Call, x: Operand, length: Operand | None = None) -> Any:
    return _dft_along(n, x, length, n.attr("axis"))


@rule("DFT", since=20)
def _dft(n: Call, x: Operand, length: Operand | None = None, axis: Operand | None = None) -> Any:
    return _dft_along(n, x, length, -2 if axis is None else n.integer(axis, "axis"))


@rule("STFT", since=17)
def _stft(
    n: Call, x: Operand, step: Operand, window: Operand | None = None, length: Operand | None = None
) -> Any:
    """The transforms of frames, which are gathered."""
    if x.rank != 3:
        raise n.wrong(f"{list(x.shape)} is no batch of signals")
    size = x.shape[1]
    if length is not None:
        size = n.integer(length, "frame_length")
    elif window is not None:
        size = window.shape[0]
    by = n.integer(step, "frame_step")
    if by < 1 or not 1 <= size <= x.shape[1] or (window is not None and window.shape != (size,)):
        raise n.wrong(f"frames of {size}, every {by}, do not fit {list(x.shape)}")
    n.reserve((x.shape[1] - size) // by + 1, size)
    starts = np.arange(0, x.shape[1] - size + 1, by)
    real, imaginary = _parts(n, _wide(n, n.value(x)))
    places = (starts[:, None] + np.arange(size)).astype(np.int64)
    frames = [None if p is None else n.op("gather", p, places, axis=1) for p in (real, imaginary)]
    if window is not None:
        shaped = n.op("reshape", _wide(n, n.value(window)), shape=(1, 1, size))
        frames = [None if p is None else n.op("mul", p, shaped) for p in frames]
    onesided = bool(n.attr("onesided")) and frames[1] is None
    y = _joined(n, *_transformed(n, frames[0], frames[1], size // 2 + 1 if onesided else size, False))
    return y if y.dtype is x.dtype else n.op("convert", y, dtype=x.dtype)


@rule("MelWeightMatrix", since=17)
def _mel(n: Call, bins: Operand, length: Operand, rate: Operand, low: Operand, high: Operand) -> Any:
    """Triangles of even width on the mel scale, one for each bin; made while the graph is read."""
    given = [
        n.number_of(x, name)
        for x, name in ((bins, "num_mel_bins"), (length, "dft_length"), (rate, "sample_rate"))
    ]
    count, size, hertz = (int(v) for v in given)
    edges = [
        float(n.number_of(x, name)) for x, name in ((low, "lower_edge_hertz"), (high, "upper_edge_hertz"))
    ]
    if (
        count < 1
        or size < 1
        or hertz < 1
        or count > MOST
        or size > MOST
        or not 0 <= edges[0] < edges[1] < 1e9
    ):
        raise n.wrong(f"{count} bins of a transform of {size} at {hertz} Hz")
    mels = [2595 * np.log10(1 + edge / 700) for edge in edges]
    step = (mels[1] - mels[0]) / (count + 2)
    points = 700 * (10 ** ((mels[0] + np.arange(count + 2) * step) / 2595) - 1)
    at = ((size + 1) * points // hertz).astype(np.int64)
    rows = size // 2 + 1
    if at[-2] >= rows or at[-1] > rows:
        raise n.wrong(
            f"a bin ends at {edges[1]:g} Hz, and a transform of {size} at {hertz} Hz has {rows} rows"
        )
    n.reserve(rows, count)
    y = np.zeros((rows, count))
    for b in range(count):
        left, middle, right = at[b : b + 3]
        if middle == left:
            y[middle, b] = 1
        else:
            y[left : middle + 1, b] = np.arange(middle - left + 1) / (middle - left)
        if right > middle:
            y[middle:right, b] = np.arange(right - middle, 0, -1) / (right - middle)
    from ..reading import dtype_of

    return y.astype(dtype_of(n.attr("output_datatype", 1), "the result").numpy)
