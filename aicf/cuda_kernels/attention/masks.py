"""What the bodies of all attention kernels share: the features that a kernel is specialised for, and which keys a row attends to.

A row is a query of any of the heads that share keys: head after head.

sizes   of a problem: queries, keys, heads of keys in a batch entry, query heads of each, heads of keys in all, d, dv
limits  how many keys after and before its position a query attends to
here    `sizes` of a head whose keys may be fewer than are stored: with the length that positions follow from instead of the keys, and then how
        many keys exist
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import DType, i32
from ..dsl import device, int32, uint32
from ..ptx import load_shared
from ..tiles.element import getter
from ..tiles.layout import Layout
from ..tiles.register_tile import unrolled
from ..tiles.tile import mapped

NOTHING, INFINITY = np.float32(-np.inf), np.float32(np.inf)
LOG2E = np.float32(1.4426950408889634)


@dataclass(frozen=True)
class AttentionForm:
    """The features that a kernel is specialised for.

    capped, masked, ragged   whether there is a softcap, a mask, and lengths
    bias     its type, if there is one
    """

    dtype: DType
    capped: bool
    masked: bool
    ragged: bool
    bias: DType | None

    @property
    def features(self) -> str:
        """Those that there are, as part of a kernel's name."""
        found = "_capped" * self.capped + "_masked" * self.masked + "_ragged" * self.ragged
        return found + ("" if self.bias is None else f"_bias_{self.bias}")


@functools.cache
def sizes_here(ragged: bool) -> Any:
    """`of(sizes, lengths, head)`: the sizes of a head."""
    if not ragged:

        def of_all(sizes, lengths, head):
            return sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[1]

        return device(of_all)
    get = getter(i32)

    def of(sizes, lengths, head):
        length = int32(get(lengths[0], np.int64(head // sizes[2])))
        exist = int32(max(min(length, sizes[1]), 0))
        return sizes[0], length, sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], exist

    return device(of)


@device
def query_of(row, sizes):
    """A row's query among those of its head."""
    return int32(uint32(row) % uint32(sizes[0]))


def _mask_row(row, env):
    head, sizes, steps = env
    group = row // sizes[0]
    if group >= sizes[3]:
        return np.int64(0)  # a row that is none
    batch = head // sizes[2]
    of_batch = batch // steps[1] // steps[0] * steps[2] + batch // steps[1] % steps[0] * steps[3]
    of_head = (head % sizes[2] * sizes[3] + group) * steps[5]
    return np.int64(of_batch + batch % steps[1] * steps[4] + of_head + query_of(row, sizes) * steps[6])


def of_four(fn: Any) -> Any:
    """`of(row, env)`: fn(row, env) of four neighbouring rows, from this one on, as a tile."""
    of = device(fn)
    return device(lambda row, env: (of(row, env), of(row + 1, env), of(row + 2, env), of(row + 3, env)))


def mask_rows(masked: bool) -> Any:
    """`of(row, (head, sizes, steps))`: where the elements of four rows of a mask, or of a bias, begin.

    steps   the extents of the batch's last two axes of three; steps along these three, query heads, queries and keys
    """
    if not masked:
        return device(lambda row, env: (row, row, row, row))
    return of_four(_mask_row)


def mask_starts(form: AttentionForm) -> Any:
    """`of(head, sizes, mask_steps, bias_steps)`: a query head's first elements of the mask and of the bias."""
    of_row, masked, biased = mask_rows(True), form.masked, form.bias is not None

    def of(head, sizes, mask_steps, bias_steps):
        mask_start = of_row(int32(0), (head, sizes, mask_steps))[0] if masked else np.int64(0)
        bias_start = of_row(int32(0), (head, sizes, bias_steps))[0] if biased else np.int64(0)
        return mask_start, bias_start

    return device(of)


# --- accumulators of scores -------------------------------------------------------------------------------------------


def by_column(count: int, first: Any, second: Any = None, apart: int = 8) -> Any:
    """`run(scores, (address, env))`: first(score, number, env) of a thread's scores in its first row, second(…) of those in its second one.
    Eight scores are of four columns, whose numbers are neighbours in shared memory; the next four are 8 `apart` bytes further."""
    load, one, other = load_shared(), device(first), device(second or first)

    def eight(i, x, env):
        a, b, c, d = load(uint32(env[0] + uint32(i * apart)))
        e = env[1]
        return (
            one(x[0], a, e), one(x[1], b, e), other(x[2], a, e), other(x[3], b, e),
            one(x[4], c, e), one(x[5], d, e), other(x[6], c, e), other(x[7], d, e),
        )  # fmt: skip

    return mapped(count, 8, eight)


def hide_columns(layout: Layout, seen: Any) -> Any:
    """`hide(scores, low, high)`: seen(score, low, high, column, ()) of each score, with the limits of its row: the score, or -inf. Limits, which each
    of a thread's two rows has, are counted from the thread's first column, as columns are."""
    scores, columns = tuple(range(layout.count)), tuple((column,) for _, column in layout.offsets)
    run = unrolled(seen, (scores, layout.by_row, layout.by_row), columns, "float32")
    return device(lambda scores, low, high: run((scores, low, high), ()))
