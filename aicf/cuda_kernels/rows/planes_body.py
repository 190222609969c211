"""Reductions over axes before and behind one that is kept, such as statistics of channels that are first: a block per kept index, or several.

Elements of each plane are neighbours. A thread has runs of them, of one plane after the other, and as many partial results as a run
has elements; these are combined in their order, then in a tree. The order is fixed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import DType
from ..dsl import cuda, device, uint32
from ..tiles.element import feeder, vector_feeder
from ..tiles.index import offsets
from .columns_body import _zipped
from .reduce_body import BLOCK, Side, _named, _parter, _shared_type, ender, reducer


@functools.cache
def _folded(combine: Any, count: int) -> Any:
    """`folded(values)`: of a tuple, the first with the others, in their order."""
    if count == 1:
        return device(lambda values: values[0])
    rest = _folded(combine, count - 1)
    return device(lambda values: combine(rest(values[:-1]), values[-1]))


@functools.cache
def planes(
    op: str, dtype: DType, before: Side, after: Side, moves: tuple[bool, ...], vector: int, split: bool
) -> Callable[..., None]:
    """The domain is (images, planes, inner), of which planes are kept. `length` units of `vector` neighbours are in a plane of all images.

    Number p * splits + s is the reduction of the units s * chunk : (s + 1) * chunk of plane p; a mean is divided by `count`. The map
    before walks (image, plane, element); that after it walks (p * splits + s,).
    moves  which loads before the reduction go on along a run
    """
    combine, identity = reducer(op, dtype)
    nothing, part, of = (identity,) * vector, _parter(split), offsets(before.walks)
    finish = ender(combine, after, BLOCK, 1, op == "mean")
    zipped, folded, kind = _zipped(combine, vector), _folded(combine, vector), _shared_type(dtype)
    if vector > 1:
        feed = vector_feeder(before.expr, before.ins, before.outs, moves, vector)
    else:
        single = feeder(before.expr, before.ins, before.outs)
        feed = device(lambda ins, outs, at, place: (single(ins, outs, at, place),))

    def kernel(
        ins, outs, strides, after_ins, after_outs, after_strides, count_of_planes, inner, splits, chunk, length, count
    ):  # fmt: skip
        partial = cuda.shared.array(BLOCK, kind)
        thread, segment, totals = cuda.threadIdx.x, np.int64(cuda.blockIdx.x), nothing
        plane, begin = part(segment, splits, chunk)
        units = uint32(inner // vector)
        i, end = begin + thread, min(length, begin + chunk)
        while i < end:
            image = uint32(uint32(i) // units)
            x = np.int64(uint32(i) - uint32(image * units)) * vector
            image = np.int64(image)
            place = (image * count_of_planes + plane) * inner + x
            totals = zipped(totals, feed(ins, outs, of((image, plane, x), strides), place))
            i += BLOCK
        outputs = after_ins, after_outs, after_strides
        finish(partial, thread, thread, folded(totals), True, (segment,), segment, outputs, count)

    return _named(kernel, f"planes{vector}" + "_split" * split, op, before, after)
