"""Copies of tensors to rows that begin at multiples of 16 bytes, in a workspace: how they lie there, their launch, its cost.

`padded` says how a tensor will lie, `copy_of` what there is to copy, `launch` copies one or two of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ....device.spec import DeviceSpec
from ....registry.cost import Cost, roofline
from ....registry.variant import Checks, In, Launch, Num, Work, at_most, cdiv
from ....rows.program import collapse
from ....types import TensorDesc, i32, i64

ROW_BYTES = 16
LINE_BYTES = 128  # of the L2 cache: rows that begin at multiples of it are read in fewer of them
MATRIX = 2  # axes of it: the last ones; the others are a batch
WHOLE_BYTES = 31  # that are sure to have 16 aligned ones among them
LIMIT = 2**31 - 2**16  # of units, rows and columns, as numbers of 32 bits
SECTOR = 32  # bytes, of which none comes alone
ROWS, ELEMENTS = (
    0.86,
    {1: 0.55, 2: 0.73, 4: 0.86},
)  # of the bandwidth, by bytes of an element; measured on an H200


@dataclass(frozen=True)
class Copy:
    """Of operand `index`: `source` as it lies, `target` as it will, `row` its axis of neighbours there; `hi_lo`, see
    pack_body.py: what is there one after the other in the place of each row."""

    index: int
    source: TensorDesc
    target: TensorDesc
    row: int
    hi_lo: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """That the target takes."""
        return prod(self._outer()[0]) * self.pitch

    @property
    def pitch(self) -> int:
        """Bytes from row to row of the target."""
        return self.target.stride[_other(self.source, self.row)] * self.source.dtype.itemsize

    @property
    def row_step(self) -> int:
        """Elements from one to the next of a row, where it comes from."""
        return self.source.stride[self.row]

    @property
    def extent(self) -> int:
        """Bytes from the source's first element to its last."""
        t = self.source
        return (1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride))) * t.dtype.itemsize

    @property
    def how(self) -> str:
        """See pack_body.py."""
        columns, across = self.source.shape[self.row], self.source.stride[_other(self.source, self.row)]
        if (self.row_step == 1 or columns == 1) and self.extent >= WHOLE_BYTES:
            return "rows"
        return "across" if 0 < across < self.row_step else "along"

    def _outer(self, matrices: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and steps of rows; or of matrices."""
        t, last = self.source, _other(self.source, self.row)
        axes = [i for i in range(len(t.shape) - MATRIX) if self.target.stride[i]]
        axes += [] if matrices else [last]
        shape, (steps,) = collapse(tuple(t.shape[i] for i in axes), [tuple(t.stride[i] for i in axes)])
        return shape, steps


def _other(t: TensorDesc, row: int) -> int:
    """Of the last two axes the one that is not `row`."""
    return 2 * len(t.shape) - 3 - row


def fastest(t: TensorDesc) -> int:
    """Of the last two axes the one along which neighbours are nearest; not one of a single element, if the other is not."""
    axes = len(t.shape) - 1, len(t.shape) - 2
    return min(axes, key=lambda i: (t.shape[i] == 1, t.stride[i] or LIMIT))


def padded(t: TensorDesc, row: int) -> TensorDesc:
    """The tensor as rows along this axis: dense, but that each begins at a multiple of 16 bytes, or of a whole line of the cache if
    that takes little. What is one and the same for all of an axis of the batch stays so."""
    nbytes = t.shape[row] * t.dtype.itemsize
    pitch = cdiv(nbytes, LINE_BYTES) * LINE_BYTES
    if pitch - nbytes > nbytes // 8:
        pitch = cdiv(nbytes, ROW_BYTES) * ROW_BYTES
    steps, apart, other = [0] * len(t.shape), pitch // t.dtype.itemsize, _other(t, row)
    steps[row], steps[other], apart = 1, apart, apart * t.shape[other]
    for i in reversed(range(len(t.shape) - MATRIX)):
        if t.shape[i] > 1 and t.stride[i]:
            steps[i], apart = apart, apart * t.shape[i]
    return replace(t, stride=tuple(steps), alignment=256)


def copy_of(index: int, t: TensorDesc, row: int, hi_lo: tuple[int, ...] = ()) -> Copy:
    if not hi_lo:
        return Copy(index, t, padded(t, row), row)
    unit, shape = ROW_BYTES // t.dtype.itemsize, list(t.shape)
    shape[row] = len(hi_lo) * cdiv(shape[row], unit) * unit
    return Copy(index, t, padded(replace(t, shape=tuple(shape)), row), row, hi_lo)


def checks(copy: Copy) -> Checks:
    yield at_most("units of 16 bytes of a copy", copy.nbytes // ROW_BYTES, LIMIT)
    yield at_most("columns of a copy", copy.source.shape[copy.row], LIMIT)


def cost(copies: Sequence[Copy], device: DeviceSpec) -> Cost:
    """Each element read once, with what shares its sector, and written once, by one launch."""
    return roofline(device, bytes=sum((_touched(c) + c.nbytes) / _efficiency(c) for c in copies))


def _efficiency(copy: Copy) -> float:
    return ROWS if copy.how == "rows" else ELEMENTS[copy.source.dtype.itemsize]


def _touched(copy: Copy) -> int:
    """Bytes that come: where neighbours lie apart, of whole sectors."""
    t = copy.source
    apart = min(t.stride[copy.row] or 1, t.stride[_other(t, copy.row)] or 1)
    return t.nbytes * min(apart, SECTOR // t.dtype.itemsize)


def launch(copies: Sequence[Copy], places: Sequence[int]) -> Launch:
    """One or two copies, to these places in the workspace, in bytes."""
    from .pack_body import THREADS, Way, pack

    jobs = [_job(c, at) for c, at in zip(copies, places, strict=True)]
    ways = tuple(Way(c.source.dtype, c.how, walk, c.hi_lo) for c, (walk, _, _) in zip(copies, jobs))
    blocks = [count for _, count, _ in jobs]
    args = tuple(job for _, _, job in jobs), Num(blocks[0], i32)
    return Launch(pack(ways), (sum(blocks),), (THREADS,), args)


def _job(copy: Copy, at: int) -> tuple:
    """(how its outer axes are walked, blocks, the kernel's argument)"""
    from ...tiles.index import walk_of
    from .pack_body import THREADS, TILE_ROWS, UNITS, Way

    rows_at_once = copy.how == "rows"
    shape, steps = copy._outer(matrices=not rows_at_once)
    walk = walk_of(steps), 0
    apart, t = copy.pitch // ROW_BYTES, copy.source
    columns = t.shape[copy.row]
    if rows_at_once:
        units = cdiv(columns * t.dtype.itemsize, ROW_BYTES)
        count = units * prod(shape)
        blocks = cdiv(count, THREADS * UNITS)
        sizes: tuple[Num, ...] = (
            Num(units, i32), Num(apart), Num(count, i32), Num(copy.extent), Num(columns, i32)
        )  # fmt: skip
    else:
        other = _other(t, copy.row)
        rows, columns_of_tile = t.shape[other], Way(t.dtype, copy.how, walk).columns
        across, down = cdiv(columns, columns_of_tile), cdiv(rows, TILE_ROWS)
        blocks = across * down * prod(shape)
        numbers = (Num(x, i32) for x in (rows, columns, across, down))
        sizes = *numbers, Num(apart), Num(t.stride[other]), Num(t.stride[copy.row])
    given = tuple(Num(s, i64) for s in steps if s not in (0, 1))
    extents = tuple(Num(d, i32) for d in shape)
    return walk, blocks, (In(copy.index), Work(at, i32), extents, given, sizes)
