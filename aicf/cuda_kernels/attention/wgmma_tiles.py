"""What Hopper's attention kernels, forward and backward, share: how tiles are shaped, where they lie, and which of them masks leave.

Matrices are read and written through tensor maps of four dimensions: columns, rows, heads, batch. So they may have any strides, as long as
a row's elements are neighbours, and head sizes up to 64, or up to 128, are read as if they were that: what is beyond reads as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...types import DType
from ..dsl import device, int32, uint32
from ..hopper.units import ATOM
from ..ptx import load_box
from ..ptx.wgmma import multiply_k_tiles
from ..tiles.tile import permute
from .masks import AttentionForm

QUERIES, KEYS = 128, 128  # of a tile: two consumer warpgroups have 64 queries each, or 64 keys of a gradient
ROW_BYTES = 2 * ATOM


@dataclass(frozen=True)
class WgmmaTile:
    """A config of a kernel.

    d        largest head size; smaller ones are read as if they had so many columns
    queries  of a tile
    stages   of K and V; of a gradient, of Q and dO
    rate     of the tensor cores' rate, which tiles reach on an H200
    rate_of_keys  of that, with something added to the scores of each key: a multiply-add, or an addition. Guessed
    """

    d: int
    queries: int
    stages: int
    rate: float
    rate_of_keys: float


# The first that has a head's columns is used: ids of kernels in plans have none, and costs need not rank what registers and shared memory decide.
TILES = WgmmaTile(64, QUERIES, 3, 0.45, 0.94), WgmmaTile(128, QUERIES, 2, 0.67, 0.97)
GRADIENT_TILES = WgmmaTile(64, 128, 2, 0.5, 0.97), WgmmaTile(128, 64, 2, 0.62, 0.97)


@dataclass(frozen=True)
class WgmmaForm(AttentionForm):
    """What a kernel is specialised for, with a tile; masked, bias: of keys, the same for all queries.

    hidden   tiles of scores that positions mask something of: "" none, "last" of each row of tiles the last one only, "all" any
    """

    tile: WgmmaTile
    hidden: str

    def __str__(self) -> str:
        return (
            f"_{self.dtype}_d{self.d}"
            + f"_masked_{self.hidden}" * bool(self.hidden)
            + "_capped" * self.capped
            + "_key_mask" * self.masked
            + ("" if self.bias is None else f"_key_bias_{self.bias}")
        )

    @property
    def d(self) -> int:
        return self.tile.d

    @property
    def of_keys(self) -> bool:
        """Whether something from memory is added to scores."""
        return self.masked or self.bias is not None

    @property
    def chunks(self) -> int:
        """Of 64 columns."""
        return self.d // ATOM


# --- where tiles are ----------------------------------------------------------------------------------------------------
#
# `sizes`: queries, keys, query heads of a batch entry, query heads to a head of keys, all query heads, heads taken together,
# keys ahead of a query's own that it may attend to, and behind. Query i stands at position i + keys - queries.


def key_tiles(rows: int) -> Any:
    """`of(first, sizes)`: the first and the last tile of keys that some of `rows` queries from this one on attend to: one at least, if it
    is for nothing."""

    def of(first, sizes):
        queries, keys, ahead, behind = sizes[0], sizes[1], sizes[6], sizes[7]
        last = min(int32(first + rows), queries) - 1
        high = max(min(int32(last + keys - queries + ahead), keys - 1), 0)
        low = min(max(int32(first + keys - queries - behind), 0), high)
        return uint32(low) // uint32(KEYS), uint32(high) // uint32(KEYS)

    return device(of)


def in_turn() -> Any:
    """`tile(round, block, blocks)`: the tile that a block takes in this round. Every other round the blocks come in reverse, so that of tiles
    that become shorter none gets the longer ones each time."""

    def tile(round, block, blocks):
        return uint32(round * blocks + (blocks - uint32(1) - block if round & uint32(1) else block))

    return device(tile)


def place_of() -> Any:
    """`of(tile, rows, heads, group)`: (row of tiles, head) of a tile. Of `group` heads, whose operands the L2 cache has room for, all first tiles, then
    all second ones, and so on; then the next heads."""

    def of(tile, rows, heads, group):
        first = uint32(tile // uint32(rows * group) * group)
        within = uint32(tile - first * rows)
        count = uint32(min(uint32(heads - first), group))
        row = uint32(within // count)
        return row, uint32(first + within - row * count)

    return device(of)


# --- copies -------------------------------------------------------------------------------------------------------------


def rows_loader(chunks: int, rows: int) -> Any:
    """`load(to, map, full, row, head, batch)`: a K-major tile: boxes of 64 columns and all rows, one behind the other."""
    return _loader(chunks, 1, rows)


def columns_loader(chunks: int, rows: int) -> Any:
    """`load(to, map, full, row, head, batch)`: an MN-major tile, to be summed over rows: 64 rows at a time, boxes of 64 columns."""
    return _loader(chunks, rows // ATOM, ATOM)


def _loader(chunks: int, downs: int, rows: int, i: int = 0) -> Any:
    load, down, across = load_box(4), i // chunks * rows, i % chunks * ATOM
    at = i * rows * ROW_BYTES

    def bring(to, map, full, row, head, batch):
        load(uint32(to + uint32(at)), map, full, int32(across), int32(row + down), head, batch)

    if i + 1 == chunks * downs:
        return device(bring)
    one, others = device(bring), _loader(chunks, downs, rows, i + 1)

    def bring_all(to, map, full, row, head, batch):
        one(to, map, full, row, head, batch)
        others(to, map, full, row, head, batch)

    return device(bring_all)


# --- products -----------------------------------------------------------------------------------------------------------


def score_product(dtype: DType, d: int, columns: int, a_rows: int, b_rows: int) -> Any:
    """`product(acc, a, b)`: 64 x `columns` of A Bᵀ, of two K-major tiles of so many rows, by descriptors. acc: what it held is not read."""
    return chained(multiply_k_tiles(dtype, columns, 1, True, True), d // ATOM, a_rows, b_rows)


def chained(multiply: Any, chunks: int, a_rows: int, b_rows: int, chunk: int = 0) -> Any:
    a_at, b_at = (chunk * rows * ROW_BYTES // 16 for rows in (a_rows, b_rows))

    def one(acc, a, b):
        return multiply(acc, uint32(a + uint32(a_at)), uint32(b + uint32(b_at)), uint32(chunk > 0))

    if chunk + 1 == chunks:
        return device(one)
    first, others = device(one), chained(multiply, chunks, a_rows, b_rows, chunk + 1)
    return device(lambda acc, a, b: others(first(acc, a, b), a, b))


def weighted_sum(dtype: DType, d: int, rows: int) -> Any:
    """`add(acc, words, b, more)`: W B, for 64 x `rows` weights in registers and an MN-major tile, added to acc if `more`."""
    multiply = multiply_k_tiles(dtype, d, 1, None, False)
    return _summed(multiply, rows // ATOM, d * ROW_BYTES // 16)


def _summed(multiply: Any, slices: int, apart: int, i: int = 0) -> Any:
    words_of, at = permute(tuple(range(16 * i, 16 * i + 16))), i * apart
    if i == 0:
        first = device(lambda acc, words, b, more: multiply(acc, words_of(words), b, more))
        if slices == 1:
            return first
        others = _summed(multiply, slices, apart, 1)
        return device(lambda acc, words, b, more: others(first(acc, words, b, more), words, b))

    def one(acc, words, b):
        return multiply(acc, words_of(words), uint32(b + uint32(at)), uint32(1))

    if i + 1 == slices:
        return device(one)
    others_after, this = _summed(multiply, slices, apart, i + 1), device(one)
    return device(lambda acc, words, b: others_after(this(acc, words, b), words, b))
