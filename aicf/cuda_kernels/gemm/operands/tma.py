"""Operands of matrix products on Hopper that TMA loads: rows in memory that begin at multiples of 16 bytes, and maps of their K-tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ....registry.variant import Element, In, Out, Reject, TensorMap, Work, cdiv
from ....rows import RegionSpec
from ....types import DType, f8e4m3, f8e5m2, f32, i8, u8
from ...hopper.units import TMA_ALIGNMENT, boxed, left
from .. import problem
from ..problem import GemmOperand
from ..wgmma_tiling import WgmmaTiling, k_tile

# Of an operand: whether it is K-major; the axes of the batch that it has
Order = tuple[bool, tuple[int, ...]]

# as TMA loads them, if not as they are: f32 rounded to what the tensor cores read, fp8 as bytes
ELEMENTS: dict[DType, Element] = {f32: "tf32", f8e4m3: u8, f8e5m2: u8, i8: u8}


@dataclass(frozen=True)
class TmaOperand:
    """a or b, as rows in memory: K-major, or MN-major; of a batch, along those `axes` of it that are not shared."""

    name: str
    index: int
    source: In | Out | Work  # the region's operand `index`, or a part or copy of it
    k_major: bool
    extents: tuple[int, int]
    pitch: int  # bytes from row to row
    axes: tuple[int, ...]
    batch: tuple[tuple[int, int], ...]  # of each of them the extent, and bytes from one index to the next
    dtype: DType

    @property
    def order(self) -> Order:
        return self.k_major, self.axes

    def map(self, tile_mn: int, last: bool = False) -> TensorMap:
        """For K-tiles of `tile_mn` and 128 bytes of k, of the last tile or of the others; or, MN-major, 128 bytes of m or n at a time."""
        count = left if last else boxed
        box = k_tile(self.dtype), count(tile_mn, self.extents[1]) if self.k_major else k_tile(self.dtype)
        extents = *self.extents, *(extent for extent, _ in self.batch)
        pitches = self.pitch, *(pitch for _, pitch in self.batch)
        ones = (1,) * len(self.batch)
        return TensorMap(self.source, ELEMENTS.get(self.dtype, self.dtype), extents, pitches, box + ones)


def operands_of(region: RegionSpec, either: bool = False) -> tuple[TmaOperand, TmaOperand] | Reject:
    """a and b, or why one of them has no 16-byte aligned rows. `either`: K-major or MN-major, whatever the type."""
    made = each_operand(region, either)
    return next((m for m in made if isinstance(m, Reject)), made)  # type: ignore[return-value]


@lru_cache(maxsize=256)
def each_operand(region: RegionSpec, either: bool = False) -> tuple[TmaOperand | Reject, TmaOperand | Reject]:
    """a and b, each of them or why it has no 16-byte aligned rows."""
    a, b = problem.operands(region)
    return _operand(a, either), _operand(b, either)


def _operand(x: GemmOperand, either: bool) -> TmaOperand | Reject:
    """Steps of an extent of one mean nothing."""
    name, index, matrix, mn, k, _ = x
    if matrix.alignment < TMA_ALIGNMENT:
        return Reject("aligned", f"{name} is aligned to {matrix.alignment} bytes, needs {TMA_ALIGNMENT}")
    found = walks_of(x)
    if isinstance(found, Reject):
        return found
    axes, walks = found
    orders = (True, k, mn), (False, mn, k)
    either = either or matrix.dtype.itemsize == 2
    for k_major, (inner, step), (outer, pitch) in orders if either else orders[:1]:
        row = inner * matrix.dtype.itemsize
        apart = pitch * matrix.dtype.itemsize if outer > 1 else cdiv(row, TMA_ALIGNMENT) * TMA_ALIGNMENT
        if (step == 1 or inner == 1) and apart >= row and apart % TMA_ALIGNMENT == 0:
            return TmaOperand(
                name, index, In(index), k_major, (inner, outer), apart, axes, walks, matrix.dtype
            )
    of_k = "" if either else f" of k, as tensor cores read {matrix.dtype},"
    return Reject(
        "rows",
        f"{name} is {matrix}, needs rows{of_k} that begin at multiples of {TMA_ALIGNMENT} bytes, one after the other",
    )


def walks_of(x: GemmOperand) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | Reject:
    """Of a batch, along which axes an operand has matrices of its own; and of each axis the extent, and bytes from one to the next."""
    axes = tuple(i for i, axis in enumerate(x.batch) if axis.extent > 1 and axis.step)
    walks = tuple((x.batch[i].extent, x.batch[i].step * x.matrix.dtype.itemsize) for i in axes)
    if any(pitch % TMA_ALIGNMENT for _, pitch in walks):
        needed = f"matrices that begin at multiples of {TMA_ALIGNMENT} bytes"
        return Reject("batch", f"{x.name} is {x.matrix}, needs {needed}")
    return axes, walks


# --- what a kernel loads ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GemmOperands:
    """How a kernel loads a and b.

    maps        of a and b
    a, b        in which order they are in memory
    last        maps of last tiles, and before them one of narrow tiles of b; see `wgmma` of wgmma_body.py
    in_registers  "a" or "b": the RS operand, whose map is the first one; see registers.py. Or a that is `FLAT` or `EIGHTS`; see flat.py
    producing   `producing(tiling, epilogue, stages)`: a producer in the place of the GEMM's
    """

    maps: tuple[TensorMap, ...]
    a: Order = (True, ())
    b: Order = (True, ())
    last: tuple[TensorMap, ...] = ()
    in_registers: str = ""
    producing: Callable[..., Any] | None = None


def from_shared(tiling: WgmmaTiling, both: tuple[TmaOperand, TmaOperand] | Reject) -> GemmOperands:
    """Both operands of a region that is taken, which wgmma reads from shared memory. Of a cluster, each block loads a share of b."""
    assert not isinstance(both, Reject)
    a, b = both
    share = tiling.n // tiling.cluster
    last = (a.map(tiling.m, last=True),) * a.k_major
    last += (b.map(share, last=tiling.cluster == 1),) * b.k_major
    if tiling.narrow_n and b.k_major:
        last = b.map(tiling.narrow_n), *last
    return GemmOperands((a.map(tiling.m), b.map(share)), a.order, b.order, last)
