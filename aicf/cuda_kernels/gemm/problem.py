"""What a region of a matrix product is, read once for every kernel: the product, what follows it, and the arguments of launches.

Such a region is a product and any map after it: biases, activations and their gradients, residuals, dropout. What the map loads and
stores may have any element type. Regions are read by rows/read.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ...registry.checks import first_failure
from ...registry.nearby import features
from ...registry.variant import Checks, In, Num, Out, Reject, at_most, cdiv
from ...rows import RegionSpec
from ...rows.program import Gemm, Map, RegionProgram
from ...rows.read import read as read_program
from ...types import DType, TensorDesc, f32, i32
from . import column_sums

TAKES = "gemm", "gemm+map"
TAKES_SUMS = (*TAKES, *column_sums.TAKES)
BATCH_AXES = 2  # after those that all tensors walk as one are merged
TENSORS = 16  # that an epilogue loads and stores: their places take registers beside the accumulators
STRIDES = 8  # of theirs that a kernel is told when it starts


def read(region: RegionSpec) -> tuple[Gemm, Map]:
    """A region that is taken, as the product and what follows it."""
    program = read_program(region)
    assert isinstance(program, RegionProgram) and isinstance(program.core, Gemm)
    return program.core, program.after


def k_of(region: RegionSpec) -> int:
    """k; of a region that can't be taken, 0."""
    program = read_program(region)
    return program.core.k if isinstance(program, RegionProgram) and isinstance(program.core, Gemm) else 0


class GemmAxis(NamedTuple):
    """The extent of an axis, and its step in elements."""

    extent: int
    step: int


class GemmOperand(NamedTuple):
    """a or b: which operand of the region, and its axes; `mn` is m of a and n of b."""

    name: str
    operand: int
    matrix: TensorDesc
    mn: GemmAxis
    k: GemmAxis
    batch: tuple[GemmAxis, ...]


@lru_cache(maxsize=256)
def operands(region: RegionSpec) -> tuple[GemmOperand, GemmOperand]:
    """a and b."""
    p, _ = read(region)
    (*a_batch, a_m, a_k), (*b_batch, b_k, b_n) = p.a_steps, p.b_steps

    def of(name: str, index: int, mn: GemmAxis, k_step: int, batch: Sequence[int]) -> GemmOperand:
        axes = tuple(map(GemmAxis, p.batch, batch))
        return GemmOperand(name, index, region.operands[index], mn, GemmAxis(p.k, k_step), axes)

    return (of("a", p.a, GemmAxis(p.m, a_m), a_k, a_batch), of("b", p.b, GemmAxis(p.n, b_n), b_k, b_batch))


def checks(region: RegionSpec) -> Checks:
    """What every GEMM here takes: floats, row-major c and results, and as many tensors as there are registers for."""
    yield refusal(region)


@lru_cache(maxsize=256)
def refusal(region: RegionSpec) -> Reject | None:
    """Of all of them: each region is asked of one after the other."""
    return first_failure(_shared_checks(region))


def _shared_checks(region: RegionSpec) -> Checks:
    program = read_program(region)
    if isinstance(program, Reject):
        yield program
        return
    gemm, after = read(region)
    yield at_most("greatest extent", max(gemm.m, gemm.n, gemm.k), 2**31 - 1)
    if gemm.c is not None and not region.operands[gemm.c].contiguous:
        yield Reject("contiguous", f"c is {region.operands[gemm.c]}, needs row-major")
    for i, t in enumerate(region.results):
        if not t.contiguous:
            yield Reject("contiguous", f"result {i} is {t}, needs row-major")
    yield at_most("axes of the batch", len(gemm.batch), BATCH_AXES)
    yield at_most("loads and results after the product", len(after.loads) + len(after.stores), TENSORS)
    yield at_most("strides other than 0, 1 and a row", len(_given(gemm, after)), STRIDES)


def lean(region: RegionSpec) -> Checks:
    """For tiles with so many accumulators in a thread that it can't hold the places of columns: they are neighbours, or repeat."""
    for load in read(region)[1].loads:
        if load.strides[-1] not in (0, 1):
            what = "the index" if load.operand is None else f"operand {load.operand}"
            yield Reject("columns", f"{what} walks columns {load.strides[-1]} elements apart, needs 1 or 0")


class Sizes(NamedTuple):
    """Of `count` products: all that a tile's cost asks of them."""

    m: int
    n: int
    k: int
    count: int  # type: ignore[assignment]  # tuple's own is not missed
    dtype: DType

    @property
    def flops(self) -> float:
        return 2.0 * self.count * self.m * self.n * self.k


def sizes_of(p: Gemm) -> Sizes:
    return Sizes(p.m, p.n, p.k, p.count, p.dtype)


def grid(gemm: Gemm | Sizes, m: int, n: int) -> tuple[int]:
    """A block for each tile of m x n; one if there is none."""
    return (max(1, gemm.count * cdiv(gemm.m, m) * cdiv(gemm.n, n)),)


class EpilogueStatistics(NamedTuple):
    """What follows a product, for each element of the result.

    matrices, rows  operands with an element for each of them, or for each column, such as a bias
    """

    stores: int
    matrices: int
    rows: int
    flops: float


@lru_cache(maxsize=256)
def epilogue_statistics(region: RegionSpec) -> EpilogueStatistics:
    p, after = read(region)
    walks = [load.strides[-2] != 0 for load in after.loads if load.operand is not None]
    matrices = sum(walks)
    flops = after.flops / max(1, after.numel)
    return EpilogueStatistics(len(after.stores), matrices + (p.c is not None), len(walks) - matrices, flops)


@features("gemm")
def shape_features(region: RegionSpec) -> tuple[float, ...]:
    """Logarithms of extents, of which few rows matter most; the layouts, types and epilogue; and whether rows of results are ragged."""
    p, f = read(region)[0], epilogue_statistics(region)
    m, n, k, count = (math.log2(max(1, extent)) for extent in (p.m, p.n, p.k, p.count))
    layouts = 1.5 * (p.a_steps[-1] == 1), 1.5 * (p.b_steps[-1] == 1)
    ragged = 3.0 * (p.n % 8 != 0), 1.5 * (p.n % 64 != 0 and p.n < 512)
    return (
        1.5 * m,
        n,
        k,
        0.7 * count,
        *layouts,
        2.0 * p.dtype.itemsize,
        1.5 * f.matrices,
        0.02 * f.flops,
        *ragged,
    )


# --- the epilogue -----------------------------------------------------------------------------------------------------


def epilogue(region: RegionSpec, run: int, tile_m: int = 1, each: int = 1):
    """The epilogue for threads that hold runs of `run` neighbouring columns, of blocks that hold `tile_m` rows and leave so many
    rows of column sums for `each` of these."""
    from .epilogue import Epilogue, Read

    gemm, after = read(region)
    reads = []
    for load in after.loads:
        *batch, row, column = (_known(s, gemm.n) for s in load.strides)
        dtype = None if load.operand is None else load.dtype
        reads.append(Read(dtype, row, column, load.offset, tuple(batch)))
    stores = tuple(region.results[p].dtype for _, p in after.stores)
    width = next((w for w in (4, 2) if w <= run and in_runs(region, w)), 1)
    partials, axes = column_sums.written(region, tile_m, each), len(gemm.batch)
    c = None if gemm.c is None else region.operands[gemm.c].dtype
    return Epilogue(
        after.expression, gemm.dtype, gemm.b_dtype, c, tuple(reads), stores, width, axes, column_sums=partials
    )


def _given(gemm: Gemm, after: Map) -> tuple[int, ...]:
    """The strides that `_known` does not know, in order."""
    return tuple(s for load in after.loads for s in load.strides if s not in (0, 1, gemm.n))


def _known(stride: int, n: int) -> int | str:
    """A stride as kernels are made for it."""
    from .epilogue import GIVEN, LEADING

    return stride if stride in (0, 1) else LEADING if stride == n else GIVEN


def in_runs(region: RegionSpec, width: int) -> bool:
    """Whether runs of `width` columns are whole, and every tensor that walks along them is aligned to them."""
    gemm, after = read(region)
    if gemm.n % width:
        return False
    walking = [region.results[p] for _, p in after.stores] + (
        [] if gemm.c is None else [region.operands[gemm.c]]
    )
    for load in after.loads:
        *others, column = load.strides
        if column not in (0, 1):
            return False
        if column == 1 and load.operand is not None:
            if load.offset % width or any(step % width for step in others):
                return False
            walking.append(region.operands[load.operand])
    return all(t.alignment >= min(16, width * t.dtype.itemsize) for t in walking)


# --- arguments ---------------------------------------------------------------------------------------------------------


def arguments(region: RegionSpec, tile_m: int = 1, each: int = 1) -> tuple:
    gemm, after = read(region)
    c = () if gemm.c is None else (In(gemm.c),)
    ins = tuple(In(load.operand) for load in after.loads if load.operand is not None)
    given = tuple(map(Num, _given(gemm, after)))
    outs = tuple(Out(p) for _, p in after.stores)
    sizes = tuple(Num(size, i32) for size in (gemm.m, gemm.n, gemm.k, *gemm.batch))
    walks = gemm.a_steps, gemm.b_steps
    scales = (Num(gemm.alpha, f32), Num(gemm.beta, f32))
    operands = (c, ins, given, outs, column_sums.pointers(region, tile_m, each))
    return (In(gemm.a), In(gemm.b), operands, sizes, *(tuple(map(Num, pair)) for pair in walks), scales)
