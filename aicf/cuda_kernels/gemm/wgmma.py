"""Variants for matrix products on Hopper: TMA, wgmma, warp-specialised persistent blocks, clusters.

Epilogues and results are those of problem.py; operands are loaded by TMA, so that rows have to begin at multiples of 16 bytes. Halves
are K-major or MN-major; TF32 and fp8 have to be K-major.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import (
    Checks,
    Element,
    In,
    KernelVariant,
    Launch,
    Num,
    Out,
    Reject,
    TensorMap,
    Work,
    at_least,
    at_most,
    cdiv,
    variant,
)
from ...rows import RegionSpec
from ...types import DType, Precision, TensorDesc, f8e4m3, f8e5m2, f32, i8, i32, u8
from ..hopper.units import ATOM, TMA_ALIGNMENT, WARPS, boxed, left
from . import column_sums, problem, wgmma_cost
from . import stream_k as wgmma_stream
from .schedule import split_k as gemm_split
from .wgmma_tiling import MIXED_WIDTHS, OF_C, SPLIT, STREAM, TILINGS, WgmmaTiling, k_tile, promotes

EXTENT = 2**31 - 1024  # of m, n and k, as i32 coordinates of a tile that hangs over; and of tiles, as u32


# --- operands ---------------------------------------------------------------------------------------------------------


# as TMA loads them, if not as they are: f32 rounded to what the tensor cores read, fp8 as bytes
ELEMENTS: dict[DType, Element] = {f32: "tf32", f8e4m3: u8, f8e5m2: u8, i8: u8}

Axis = tuple[int, int]  # an extent and a step, in elements


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

    def map(self, region: RegionSpec, tile_mn: int, last: bool = False) -> TensorMap:
        """For K-tiles of `tile_mn` and 128 bytes of k, of the last tile or of the others; or, MN-major, 128 bytes of m or n at a time."""
        dtype = region.operands[self.index].dtype
        count = left if last else boxed
        box = k_tile(dtype), count(tile_mn, self.extents[1]) if self.k_major else k_tile(dtype)
        extents = *self.extents, *(extent for extent, _ in self.batch)
        pitches = self.pitch, *(pitch for _, pitch in self.batch)
        ones = (1,) * len(self.batch)
        return TensorMap(self.source, ELEMENTS.get(dtype, dtype), extents, pitches, box + ones)


def operands(region: RegionSpec, either: bool = False) -> tuple[TmaOperand, TmaOperand] | Reject:
    """a and b, or why one of them has no 16-byte aligned rows. `either`: K-major or MN-major, whatever the type."""
    made = each_operand(region, either)
    return next((m for m in made if isinstance(m, Reject)), made)  # type: ignore[return-value]


@lru_cache(maxsize=256)
def each_operand(region: RegionSpec, either: bool = False) -> tuple[TmaOperand | Reject, TmaOperand | Reject]:
    """a and b, each of them or why it has no 16-byte aligned rows."""
    p, _ = problem.read(region)
    a, b = region.operands[p.a], region.operands[p.b]
    (*a_batch, a_m, a_k), (*b_batch, b_k, b_n) = p.a_steps, p.b_steps
    return (
        _operand("a", p.a, a, (p.m, a_m), (p.k, a_k), tuple(zip(p.batch, a_batch)), either),
        _operand("b", p.b, b, (p.n, b_n), (p.k, b_k), tuple(zip(p.batch, b_batch)), either),
    )


def _operand(
    name: str, index: int, matrix: TensorDesc, mn: Axis, k: Axis, batch: tuple[Axis, ...], either: bool
) -> TmaOperand | Reject:
    """Steps of an extent of one mean nothing."""
    if matrix.alignment < TMA_ALIGNMENT:
        return Reject("aligned", f"{name} is aligned to {matrix.alignment} bytes, needs {TMA_ALIGNMENT}")
    axes = tuple(i for i, (extent, step) in enumerate(batch) if extent > 1 and step)
    walks = tuple((batch[i][0], batch[i][1] * matrix.dtype.itemsize) for i in axes)
    if any(pitch % TMA_ALIGNMENT for _, pitch in walks):
        return Reject(
            "batch", f"{name} is {matrix}, needs matrices that begin at multiples of {TMA_ALIGNMENT} bytes"
        )
    orders = (True, k, mn), (False, mn, k)
    either = either or matrix.dtype.itemsize == 2
    for k_major, (inner, step), (outer, pitch) in orders if either else orders[:1]:
        row = inner * matrix.dtype.itemsize
        apart = pitch * matrix.dtype.itemsize if outer > 1 else cdiv(row, TMA_ALIGNMENT) * TMA_ALIGNMENT
        if (step == 1 or inner == 1) and apart >= row and apart % TMA_ALIGNMENT == 0:
            return TmaOperand(name, index, In(index), k_major, (inner, outer), apart, axes, walks)
    of_k = "" if either else f" of k, as tensor cores read {matrix.dtype},"
    return Reject(
        "rows",
        f"{name} is {matrix}, needs rows{of_k} that begin at multiples of {TMA_ALIGNMENT} bytes, one after the other",
    )


def extents(region: RegionSpec) -> tuple[int, int, int]:
    """m, n and k."""
    p, _ = problem.read(region)
    return p.m, p.n, p.k


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    """Every tiling takes what tensor cores multiply, in rows that the accelerator can copy."""
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield from checks(region)
    made = operands(region)
    yield made if isinstance(made, Reject) else None


def checks(region: RegionSpec) -> Checks:
    """Of all that follows, but for how operands lie."""
    yield from problem.checks(region)
    p, _ = problem.read(region)
    if p.dtype is f32 and p.precision is not Precision.tf32:
        yield Reject("precision", f"the product is to be {p.precision.name}, this one is tf32")
    if promotes(p.dtype) and region.strict:
        yield Reject(
            "strict", "tensor cores keep some 14 bits of a sum of fp8 products; strict takes sums in f32"
        )
    yield at_least("k", p.k, 1)
    yield at_least("least extent of results", min(p.m, p.n, p.count), 1)
    yield at_most("greatest extent", max(p.m, p.n, p.k), EXTENT)
    yield at_most("tiles of 64 x 64", p.count * cdiv(p.m, 64) * cdiv(p.n, 64), EXTENT)


def _summed(tiling: WgmmaTiling, region: RegionSpec) -> Reject | None:
    if promotes(problem.read(region)[0].dtype) and not tiling.can_promote:
        return Reject(
            "accumulators",
            "fp8 accumulators are promoted while tensor cores go on: needs two consumers that multiply at once, and registers for both",
        )
    return None


# --- variants ---------------------------------------------------------------------------------------------------------


def _narrow(tiling: WgmmaTiling, region: RegionSpec) -> Checks:
    """A group of narrow tiles has to find room, in one product."""
    if tiling.narrow_n:
        p, _ = problem.read(region)
        yield at_least("n", p.n, tiling.narrow_n * tiling.narrow_group)
        yield at_most("axes of the batch", len(p.batch), 0)
        made = operands(region)
        if not isinstance(made, Reject) and not made[1].k_major:  # 510 TFLOP/s of 8192^3, and 660 where it is
            yield Reject(
                "rows",
                f"b is N-major, of {tiling.narrow_n} columns, which tensor cores read slowly: needs K-major",
            )


def _wgmma(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a variant."""
    # column sums are of 64 columns at a time; and divided tiles with these took up to 11 % longer than whole ones
    plain = tiling.columns % ATOM or tiling.narrow_n or tiling.stream
    takes = problem.TAKES if plain else problem.TAKES_SUMS

    @variant("gemm", id="cuda.gemm_wgmma.v1", config=(tiling,), takes=takes, needs=("sm_90a",), family=family)
    class Wgmma:
        __doc__ = f"""Persistent blocks of {tiling.consumers} consumer warpgroups and a producer, a {tiling.m} x {tiling.n} tile at a time.

        Parallel over tiles{" and splits of k" * (tiling.cluster_split > 1)}, {tiling.together} block{"s" * (tiling.together > 1)} to a cluster. TMA brings K-tiles of 128 bytes of k, wgmma multiplies them
        out of shared memory: f16 or bf16, in all four transposes; f32 rounded to tf32, and fp8, of which k is contiguous. Sums
        are f32, of fp8 after 128 of k each. 2MNK flops, edges padded to whole tiles. Bytes: both operands once per tile that
        uses them{", b once per cluster" * (tiling.cluster > 1)}. Limit: tensor cores; at the ends of a tile, its epilogue.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield _summed(tiling, region)
            yield from _narrow(tiling, region)
            if region.strict and tiling.cluster_split > 1:
                yield Reject("strict", gemm_split.STRICT)
            if tiling.stream:
                yield from wgmma_stream.checks(tiling, region)
            yield at_most("blocks", wgmma_cost.clusters(tiling, region) * tiling.together, 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return column_sums.with_sums(
                wgmma_cost.cost(tiling, region, device), region, tiling.rows, device, WARPS
            )

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            if tiling.stream:
                return wgmma_stream.workspace(tiling, region, device)
            return column_sums.workspace(region, tiling.rows, WARPS)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [launch(tiling, region, device), *column_sums.launches(region, tiling.rows, device, WARPS)]

    return Wgmma  # type: ignore[return-value]  # `variant` has made a record of the class


def _split(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a variant that splits k: split_k.py has the other half."""

    def accepts(region: RegionSpec) -> Checks:
        yield _summed(tiling, region)

    return gemm_split.split(
        "gemm_wgmma", (tiling,), (tiling.m, tiling.n), lambda region: k_tile(problem.read(region)[0].dtype),
        partial(wgmma_cost.best_split, tiling), partial(launch, tiling), accepts, needs=("sm_90a",), family=family,
    )  # fmt: skip


def launch(
    tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, split: gemm_split.KSplit | None = None
) -> Launch:
    """Of the whole product, or of splits of k."""
    from .wgmma_body import wgmma

    both = operands(region)
    assert not isinstance(both, Reject)
    a, b = both
    maps, last = operand_maps(tiling, region, a, b)
    boxes = wgmma_cost.staged(tiling, region) if split is None else 0
    finish, others, sizes, scales = epilogue_arguments(tiling, region, split)
    if tiling.stream:
        others = (*others[:4], wgmma_stream.pointers(tiling, region, device))
    lines = boxes > 0 and wgmma_cost.in_lines(region)
    by_tma = boxes > 0 and not lines
    sources = wgmma_cost.tma_sources(region) if by_tma else ()
    if by_tma:
        maps += result_boxes(region, sources)
    tiles = wgmma_cost.clusters(tiling, region) * (1 if split is None else split.number)
    if tiling.narrow_n:
        narrow_tiles = wgmma_cost.narrow_tiles(tiling, region, device)
        sizes = (*sizes, Num(narrow_tiles, i32))
        tiles += narrow_tiles // tiling.narrow_group * cdiv(problem.read(region)[0].m, tiling.m)
        if by_tma:
            maps += _narrow_maps(region, tiling.narrow_n, narrow_tiles)
        if b.k_major:
            maps.append(b.map(region, tiling.narrow_n))
    maps += last
    if tiling.cluster_split == 1:  # whose slots are for one tile
        tiles = min(tiles, wgmma_cost.resident(tiling, device))
    grid = (tiles * tiling.together,)
    body = wgmma(tiling, a.k_major, b.k_major, finish, boxes, a.axes, b.axes, sources, lines=lines)
    arguments = tuple(maps), others, sizes, scales
    return Launch(body, grid, (tiling.threads,), arguments, tiling.shared(boxes), tiling.together)


def operand_maps(
    tiling: WgmmaTiling, region: RegionSpec, a: TmaOperand, b: TmaOperand
) -> tuple[list[TensorMap], list[TensorMap]]:
    """Maps of a and b, which a kernel takes first, and those of the last tiles of K-major operands, which it takes last."""
    share = tiling.n // tiling.cluster
    last = [a.map(region, tiling.m, last=True)] * a.k_major
    last += [b.map(region, share, last=tiling.cluster == 1)] * b.k_major
    return [a.map(region, tiling.m), b.map(region, share)], last


def epilogue_arguments(
    tiling: WgmmaTiling, region: RegionSpec, split: gemm_split.KSplit | None
) -> tuple[Any, ...]:
    """(The epilogue, and a kernel's arguments behind its maps), of a whole product or of splits of k."""
    _, _, others, sizes, *_, scales = problem.arguments(region, tiling.rows, WARPS)
    if split is None:
        finish = problem.epilogue(region, 2, tiling.rows, WARPS)
    else:
        finish = gemm_split.raw(region, 2)
        others, sizes, scales = gemm_split.PARTIAL, (*sizes, Num(split.k, i32)), gemm_split.UNSCALED
    if scales[0] == Num(1.0, f32):
        finish = replace(finish, scaled=False)
    return finish, others, sizes, scales


def result_boxes(region: RegionSpec, tma_sources: tuple[int, ...]) -> list[TensorMap]:
    """Of results, 64 x 64 at a time, and of operands that are loaded like that."""
    p, after = problem.read(region)
    maps = []
    for _, result in after.stores:
        dtype = region.results[result].dtype
        row, count = p.n * dtype.itemsize, (p.count,) * bool(p.batch)
        pitches, box = (row, *(p.m * row for _ in count)), (ATOM, 64, *(1 for _ in count))
        maps.append(TensorMap(Out(result), dtype, (p.n, p.m, *count), pitches, box))
    for position in tma_sources:
        of_c = position == OF_C
        index, steps = (
            (p.c, p.c_steps) if of_c else (after.loads[position].operand, after.loads[position].strides)
        )
        assert index is not None
        dtype = region.operands[index].dtype
        maps.append(TensorMap(In(index), dtype, (p.n, p.m), steps[-2] * dtype.itemsize, (ATOM, 64)))
    return maps


def _narrow_maps(region: RegionSpec, columns: int, count: int) -> list[TensorMap]:
    """Of the results' left part: of each row so many narrow tiles of so many columns."""
    p, after = problem.read(region)
    maps = []
    for _, result in after.stores:
        dtype = region.results[result].dtype
        extents, pitches = (columns, max(1, count), p.m), (columns * dtype.itemsize, p.n * dtype.itemsize)
        maps.append(TensorMap(Out(result), dtype, extents, pitches, (ATOM, 1, 64)))
    return maps


VARIANTS = *map(_wgmma, (*TILINGS, *MIXED_WIDTHS, *STREAM)), *map(_split, SPLIT)
# Of operands that are split first, by tf32x3.py: whose sums are to be as exact as those of f32.
PROMOTED = {
    str(t): _wgmma(replace(t, promoted=True)) for t in TILINGS if t.can_promote and t.cluster_split == 1
}
