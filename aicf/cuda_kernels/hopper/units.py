"""Numbers of Hopper's warpgroups, of its shared memory's swizzle, and of boxes that TMA copies."""

from __future__ import annotations

WARPGROUP = 128
WARPS = 4  # of a warpgroup
SWIZZLE_BYTES = 128  # of a swizzled row of a box: of k in a K-tile
ATOM = 64  # halves in it
SUBTILE_BYTES = 64 * ATOM * 2  # of 64 x 64 halves
TMA_ALIGNMENT = 16  # that rows and pointers are multiples of


def boxed(tile_mn: int, extent: int) -> int:
    """Of a tile's extent along m or n, what one box loads of a K-major operand: no more than it has, in whole eights.
    Rows outside of it take the accelerator three times as long as those inside."""
    return min(tile_mn, (extent + 7) // 8 * 8)


def left(tile_mn: int, extent: int) -> int:
    """The same of the last tile of an operand."""
    return ((extent - 1) % tile_mn + 8) // 8 * 8
