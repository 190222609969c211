"""What attention's kernels by mma.sync, forward and backward, share: tiles of rows in shared memory, products of these, and masks.

A block has four warps. Each has 16 rows of a tile's scores, or 32, and all of its columns: so a row's sum is four lanes' affair, and weights
are multiplied out of the registers where they were made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import DType, bool_, f32
from ..dsl import cuda, device, int32, types, uint32
from ..gemm.operands.stages import Fragments, StageLoad, Stored
from ..ptx import (
    Places,
    commit_copies,
    multiply_fragments,
    multiply_steps,
    multiply_words_steps,
    read_fragments,
    read_operand,
    shared_address,
    tanh_for_halves,
    wait_copies,
)
from ..tiles.element import getter
from ..tiles.layout import Layout
from ..tiles.register_tile import map_places, map_tile
from ..tiles.tile import each, put_run, zeros
from .masks import NOTHING, AttentionForm, sizes_here

WARPS = 4
THREADS = 32 * WARPS
CHUNK = 64  # columns of halves: 128 bytes, a row of shared memory
ROW_BYTES = 2 * CHUNK
BLOCKS_PER_SM = 2  # whose registers are limited for them
ALIGNED = 128  # bytes: shared memory begins at a multiple, which it is asked more of for


# --- configs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MmaTile:
    """A config of a kernel: the scores that a block has at a time, `rows` of its own and `columns` of the tiles that it goes over.

    widest  largest head size that leaves registers for them: of scores without mask and bias, with one of them, with both
    shared  bytes of shared memory that a block must have
    """

    rows: int
    columns: int
    widest: tuple[int, int, int]
    shared: int = 0


ROWS = 64  # 16 for each warp
ROOMY = 160 * 1024
# Of the forward kernel, of dq's, and of dk's and dv's: the first that fits is used. Costs do not tell them apart yet, so they are one kernel's choice,
# not variants that selection ranks.
TILES = (
    MmaTile(ROWS, 64, (128, 64, 0)),
    MmaTile(ROWS, 32, (256, 128, 128)),
    MmaTile(ROWS, 16, (256, 256, 256)),
)
QUERY_TILES = (
    MmaTile(ROWS, 64, (64, 0, 0)),
    MmaTile(ROWS, 32, (128, 128, 128)),
    MmaTile(ROWS, 32, (256, 0, 0), ROOMY),
    MmaTile(ROWS, 16, (256, 256, 256)),
)
KEY_TILES = (
    MmaTile(ROWS, 64, (64, 0, 0)),
    MmaTile(ROWS, 32, (128, 64, 64)),
    MmaTile(ROWS, 32, (256, 0, 0), ROOMY),
    MmaTile(ROWS, 16, (256, 256, 256)),
)
# Of sm_75, whose blocks have 64 KB of shared memory
TURING_TILES = (MmaTile(ROWS, 32, (128, 128, 64)), MmaTile(ROWS, 16, (192, 128, 128)))
TURING_GRAD_TILES = (MmaTile(ROWS, 32, (64, 64, 64)), MmaTile(ROWS, 16, (128, 128, 128)))


@dataclass(frozen=True)
class MmaForm(AttentionForm):
    """What a kernel is specialised for, with these:

    d, dv   columns of q and k, and of v, rounded up to 16
    rows    of a tile of scores: 16 or 32 for each warp
    others  its columns: of the tiles that a block goes over
    width   bytes that are copied at a time: what pointers and rows are aligned to, 4 to 16
    turing  for sm_75: products of k = 8 of f16, and tiles that pass through registers
    partial the last copy of a row may exist in part
    scaled  scores are scaled before their maxima are found, as softcap, bias and negative scales ask for; otherwise powers of two do it
    """

    d: int
    dv: int
    rows: int
    others: int
    width: int
    scaled: bool
    turing: bool = False
    partial: bool = True

    def __str__(self) -> str:
        more = "_turing" * self.turing + "_scaled" * self.scaled + self.features
        return f"_{self.dtype}_{self.rows}x{self.others}_d{self.d}_{self.dv}_by{self.width}{more}"

    @property
    def scores(self) -> Layout:
        """Of a warp's scores."""
        return Layout(self.rows // WARPS, self.others)

    @property
    def kind(self) -> str:
        """Of products: see `ptx.multiply_steps`."""
        return f"{self.dtype.name}k8" if self.turing else self.dtype.name

    @property
    def looked_at(self) -> bool:
        """Whether each tile's scores are, and not only those that positions mask something of."""
        return self.masked or self.bias is not None


# --- tiles in shared memory ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredRows:
    """`rows` rows of `columns` halves in shared memory: chunks of 64 columns, one behind the other, swizzled as gemm/operands/stages.py has it."""

    rows: int
    columns: int

    @property
    def chunks(self) -> int:
        return -(-self.columns // CHUNK)

    @property
    def chunk_bytes(self) -> int:
        return self.rows * ROW_BYTES

    @property
    def nbytes(self) -> int:
        return self.chunks * self.chunk_bytes

    @property
    def by_columns(self) -> Stored:
        """A chunk, as an operand whose rows are summed along."""
        return Stored(self.rows, CHUNK, 2, False)

    @property
    def by_rows(self) -> Stored:
        """A chunk, as an operand that is summed over its rows."""
        return Stored(CHUNK, self.rows, 2, True)

    def along(self, count: int, steps: int) -> Places:
        """Fragments of 16 rows, `count` of them, in so many steps of 16 columns."""
        per = CHUNK // 16
        return tuple(
            tuple((self._place(self.by_columns, 16 * i, 16 * (s % per), s // per),) for i in range(count))
            for s in range(steps)
        )

    def down(self, count: int) -> Places:
        """Fragments of 16 columns, `count` of them, in steps of 16 rows."""
        per = CHUNK // 16
        return tuple(
            tuple((self._place(self.by_rows, 16 * (i % per), 16 * s, i // per),) for i in range(count))
            for s in range(self.rows // 16)
        )

    def _place(self, stored: Stored, mn: int, k: int, chunk: int) -> tuple[int, int]:
        flipped, added = stored.place(mn, k)
        return flipped, added + chunk * self.chunk_bytes

    def lane(self, first: bool, summed_rows: bool = False) -> Any:
        """`of(lane)`: bytes to what a lane gives ldmatrix the address of, of the first fragment. `first`: of a product's first operand."""
        stored = self.by_rows if summed_rows else self.by_columns
        place, offset = Fragments(stored, 1, first).lane(), stored.offset()

        def of(lane):
            mn, k = place(lane)
            return uint32(offset(mn, k))

        return device(of)

    def loader(self, form: MmaForm, chunk: int = 0) -> Any:
        """`load(pointer, to, thread, (at, left, length, pitch))`: rows to shared address `to`, by cp.async; on sm_75 rows in registers, for `storer`.

        at      element that they begin at
        left    how many rows there are from there on, and `length` of a row: what is beyond is 0
        pitch   elements from one row to the next
        """
        stage = self._stage(form)
        first, fetch, offset = stage.first(), stage.fetch(), self.by_columns.offset()
        column, skip = chunk * CHUNK, chunk * self.chunk_bytes

        def load(pointer, to, thread, env):
            row, along = first(thread)
            at = env[0] + np.int64(row) * env[3] + (along + column)
            place = uint32(to + uint32(skip + offset(row, along)))
            return fetch(
                pointer, place, (at, int32(env[1] - row), int32(env[2] - column - along), env[3], np.int64(1))
            )

        if chunk + 1 == self.chunks:
            return device(load)
        one, others = device(load), self.loader(form, chunk + 1)
        return device(
            lambda pointer, to, thread, env: (one(pointer, to, thread, env), others(pointer, to, thread, env))
        )

    def storer(self, form: MmaForm, chunk: int = 0) -> Any:
        """`store(to, thread, staged)`: what `load` left in registers, to shared address `to`; nothing of copies by cp.async."""
        if not form.turing:
            return device(lambda to, thread, staged: None)
        stage, skip = self._stage(form), chunk * self.chunk_bytes
        first, put, offset = stage.first(), stage.store(), self.by_columns.offset()

        def store(to, thread, staged):
            row, along = first(thread)
            put(uint32(to + uint32(skip + offset(row, along))), staged)

        if chunk + 1 == self.chunks:
            return device(store)
        one, others = device(store), self.storer(form, chunk + 1)

        def store_all(to, thread, staged):
            one(to, thread, staged[0])
            others(to, thread, staged[1])

        return device(store_all)

    def _stage(self, form: MmaForm) -> StageLoad:
        return StageLoad(self.by_columns, form.width, THREADS, form.turing, form.partial)


class MmaPlan:
    """Where a block has what: `own` tiles of its rows; then two stages of the tiles that it goes over, `over`, and of `more` bytes.

    own, over  given as columns of each tile
    """

    def __init__(self, form: MmaForm, own: tuple[int, ...], over: tuple[int, ...], more: int = 0) -> None:
        self.own = tuple(StoredRows(form.rows, columns) for columns in own)
        self.over = tuple(StoredRows(form.others, columns) for columns in over)
        self.ring = sum(tile.nbytes for tile in self.own)
        self.stage = sum(tile.nbytes for tile in self.over) + more
        self.nbytes = ALIGNED + self.ring + 2 * self.stage


def pair_loader(a: StoredRows, b: StoredRows, form: MmaForm) -> tuple[Any, Any]:
    """(`load(wanted, (x, y), to, thread, (row, end), starts, lengths, pitches)`: rows of two matrices from this one on, to shared address `to`, one
    tile after the other; `store(to, thread, staged)`: what it left in registers).

    wanted    whether there are such rows: otherwise nothing is copied, or zeros are in registers
    row, end  the first row, and the one behind the last that there is
    starts, lengths, pitches   the elements where the matrices begin; elements of a row, and from one to the next
    """
    load_a, load_b, behind = a.loader(form), b.loader(form), a.nbytes
    store_a, store_b = a.storer(form), b.storer(form)

    def load(pointers, to, thread, row, left, starts, lengths, pitches):
        at_a, at_b = (starts[0] + np.int64(row) * pitches[0], starts[1] + np.int64(row) * pitches[1])
        return (
            load_a(pointers[0], to, thread, (at_a, left, lengths[0], pitches[0])),
            load_b(pointers[1], uint32(to + uint32(behind)), thread, (at_b, left, lengths[1], pitches[1])),
        )

    both = device(load)

    def copy(wanted, pointers, to, thread, rows, starts, lengths, pitches):
        if wanted:
            both(pointers, to, thread, rows[0], int32(rows[1] - rows[0]), starts, lengths, pitches)

    def stage(wanted, pointers, to, thread, rows, starts, lengths, pitches):
        left = int32(rows[1] - rows[0]) if wanted else int32(0)
        return both(pointers, to, thread, rows[0], left, starts, lengths, pitches)

    def store(to, thread, staged):
        store_a(to, thread, staged[0])
        store_b(uint32(to + uint32(behind)), thread, staged[1])

    return device(stage if form.turing else copy), device(store) if form.turing else a.storer(form)


def copy_groups(form: MmaForm) -> tuple[Any, Any]:
    """(`commit()`, `wait()`) of copies by cp.async; nothing where there are none."""
    return (device(lambda: None),) * 2 if form.turing else (commit_copies(), wait_copies(0))


def shared_base() -> Any:
    """`base()`: where dynamic shared memory begins, at a multiple of ALIGNED."""
    address, aligned = shared_address(), ALIGNED

    def base():
        at = uint32(address(cuda.shared.array(0, types.uint8)))
        return uint32((at + uint32(aligned - 1)) // uint32(aligned) * uint32(aligned))

    return device(base)


# --- products -----------------------------------------------------------------------------------------------------------


def row_product(kind: str, a: StoredRows, b: StoredRows, count: int, steps: int) -> Any:
    """`product(a_at, b_at)`: a warp's 16 `count` rows of A times all rows of B, over so many steps of 16 columns; both from shared memory."""
    reads = a.along(count, steps), b.along(b.rows // 16, steps), False, False
    first, multiply = read_fragments(*reads), multiply_steps(kind, *reads)
    finish, nothing = multiply_fragments(kind, count), zeros(Layout(16 * count, b.rows).count)

    def product(a_at, b_at):
        acc, fragments = multiply(nothing, first(a_at, b_at), a_at, b_at)
        return finish(acc, fragments)

    return device(product)


def register_product(kind: str, a: StoredRows, b: StoredRows, count: int, steps: int) -> tuple[Any, Any]:
    """(`read(a_at)`: A's fragments, to be kept in registers; `product(words, b_at)`: the same product)."""
    multiply = multiply_words_steps(kind, b.along(b.rows // 16, steps), False)
    nothing = zeros(Layout(16 * count, b.rows).count)
    return read_operand(a.along(count, steps)), device(lambda words, b_at: multiply(nothing, words, b_at))


def weighted_sum(kind: str, b: StoredRows, columns: int) -> Any:
    """`add(acc, words, b_at)`: acc + W B, of weights in registers and so many columns of B."""
    return multiply_words_steps(kind, b.down(columns // 16), True)


# --- scores -------------------------------------------------------------------------------------------------------------
#
# `sizes` are those of masks.py, with query heads as heads of their own. `here`: how far a query's place among the keys is from its
# number, keys ahead and behind that it may attend to, how many keys exist, and queries.


def scale_scores(form: MmaForm, count: int) -> Any:
    """`run(products, (scale, softcap))`: products as scores, unless powers of two do it."""
    if form.capped:
        tanh = tanh_for_halves()
        return map_tile(count, lambda x, env: env[1] * tanh(x * env[0] / env[1]))
    if form.scaled:
        return map_tile(count, lambda x, env: x * env[0])
    return device(lambda products, env: products)


def hide_scores(form: MmaForm, layout: Layout, by_keys: bool = False) -> Any:
    """`hide(scores, first, (here, mask, steps, start, bias, bias_steps, bias_start))`: scores plus their bias, -inf of those that are masked.

    first    query and key of the thread's first score; `by_keys`: key and query, of scores that have a row for each key
    start    the element of the mask that head's first query and key have; so of the bias

    Loads stand before what asks whether their values count, so that all of a tile are under way together: what is beyond the last query or key
    reads the last one's.
    """
    masked, biased = form.masked, form.bias is not None
    get, get_bias = getter(bool_), getter(form.bias or f32)

    def one(x, row, column, env):
        query, key = (column, row) if by_keys else (row, column)
        here = env[0]
        at = int32(query + here[0])
        seen = (key <= at + here[1]) & (key >= at - here[2]) & (key < here[3])
        if masked or biased:
            q, k = np.int64(min(query, here[4] - 1)), np.int64(min(key, here[3] - 1))
            if masked:
                seen = seen & (get(env[1][0], env[3] + q * env[2][6] + k * env[2][7]) != 0)
            if biased:
                x = x + get_bias(env[4][0], env[6] + q * env[5][6] + k * env[5][7])
        return x if seen else NOTHING

    return map_places(layout, one)


def whole() -> Any:
    """`of(query, queries, key, keys, here)`: whether all these queries attend to all these keys, as far as positions say so."""

    def of(query, queries, key, keys, here):
        low, high = int32(query + here[0]), int32(query + queries - 1 + here[0])
        last = int32(key + keys - 1)
        return last <= low + here[1] and key >= high - here[2] and last < here[3]

    return device(of)


# --- heads, and results -------------------------------------------------------------------------------------------------


def head_places() -> Any:
    """`of(head, sizes, share)`: (batch entry, query head in it, head of keys in it)."""

    def of(head, sizes, share):
        batch = int32(uint32(head) // uint32(sizes[2]))
        own = int32(head - batch * sizes[2])
        return batch, own, int32(uint32(own) // uint32(share))

    return device(of)


def start_of() -> Any:
    """`of(batch, head, row, steps)`: a row's first element; `steps`: from one row, head and batch entry to the next."""

    def of(batch, head, row, steps):
        return np.int64(row) * steps[0] + np.int64(head) * steps[1] + np.int64(batch) * steps[2]

    return device(of)


def query_tile(form: MmaForm) -> Any:
    """`of(sizes, grid, limits, lengths)`: (head, its places, first query of the block's tile, `here`, first and last key that some of them attend to).
    Late tiles, which causal masks leave the most keys, come first."""
    rows, places, of_head = form.rows, head_places(), sizes_here(form.ragged)

    def of(sizes, grid, limits, lengths):
        block = int32(cuda.blockIdx.x)
        head = int32(uint32(block) // uint32(grid[0]))
        first = int32((grid[0] - 1 - (block - head * grid[0])) * rows)
        sized, queries = of_head(sizes, lengths, head), sizes[0]
        here = int32(sized[1] - queries), limits[0], limits[1], sized[7], queries
        low = max(int32(first + here[0] - here[2]), 0)
        high = min(int32(min(first + rows, queries) - 1 + here[0] + here[1]), here[3] - 1)
        return head, places(head, sizes, grid[1]), first, here, low, high

    return device(of)


def store_rows(layout: Layout, dtype: DType) -> Any:
    """`store(tile, (pointer, at, rows, columns, pitch), lane)`: accumulators of a warp to memory from element `at` on, as far as there are so many
    rows and columns."""
    place, put = layout.place(), put_run(dtype, 2)

    def put_pair(i, pair, env):
        row, column = place(i, 0, 0)
        if row < env[2] and column < env[3]:
            put(env[0], env[1] + np.int64(row) * env[4] + column, pair)

    run = each(layout.count, 2, put_pair)

    def store(tile, env, lane):
        row, column = place(0, 0, lane)
        at = env[1] + np.int64(row) * env[4] + column
        run(tile, (env[0], at, int32(env[2] - row), int32(env[3] - column), env[4]))

    return device(store)
