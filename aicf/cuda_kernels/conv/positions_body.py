"""Where windows begin and where their elements lie, as kernels compute it: see `WindowGeometry` of problem.py for the numbers.

A block keeps the windows of its rows in shared memory, so that the divisions are done once for each of them.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..dsl import device


@functools.cache
def window_of() -> Any:
    """`of(row, made)`: (image, z, y, x) of the window of this number, all in 32 bits."""

    def of(row, made):
        line = np.uint32(np.uint32(row) // np.uint32(made[2]))
        plane = np.uint32(line // np.uint32(made[1]))
        image = np.uint32(plane // np.uint32(made[0]))
        x = np.int32(np.uint32(row) - np.uint32(line * np.uint32(made[2])))
        y = np.int32(line - np.uint32(plane * np.uint32(made[1])))
        z = np.int32(plane - np.uint32(image * np.uint32(made[0])))
        return np.int32(image), z, y, x

    return device(of)


@functools.cache
def place_of() -> Any:
    """`of(place, window, apart)`: how far from a window's first element the place of this number is, along each axis."""

    def of(place, window, apart):
        line = np.uint32(np.uint32(place) // np.uint32(window[2]))
        z = np.uint32(line // np.uint32(window[1]))
        x = np.int32(np.uint32(place) - np.uint32(line * np.uint32(window[2])))
        y = np.int32(line - np.uint32(z * np.uint32(window[1])))
        return np.int32(np.int32(z) * apart[0]), np.int32(y * apart[1]), np.int32(x * apart[2])

    return device(of)


@functools.cache
def element_of(spread: bool) -> Any:
    """`of(z, y, x, extents, between)`: the number of the element there, within an image, or -1 if there is none.

    spread  there are zeros between elements: `between` places from one to the next
    """

    def dense(z, y, x, extents, between):
        at = np.int32(-1)
        # as numbers without a sign, what is negative is beyond every extent
        if (
            np.uint32(z) < np.uint32(extents[0])
            and np.uint32(y) < np.uint32(extents[1])
            and np.uint32(x) < np.uint32(extents[2])
        ):
            at = np.int32(np.int32(np.int32(z * extents[1]) + y) * extents[2] + x)
        return at

    if not spread:
        return device(dense)
    inside = device(dense)

    def sparse(z, y, x, extents, between):
        at = np.int32(-1)
        if z >= 0 and y >= 0 and x >= 0:
            up, down, along = (
                np.int32(np.uint32(z) // np.uint32(between[0])),
                np.int32(np.uint32(y) // np.uint32(between[1])),
                np.int32(np.uint32(x) // np.uint32(between[2])),
            )
            if (
                np.int32(up * between[0]) == z
                and np.int32(down * between[1]) == y
                and np.int32(along * between[2]) == x
            ):
                at = inside(up, down, along, extents, between)
        return at

    return device(sparse)
