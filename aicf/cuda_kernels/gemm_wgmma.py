"""Variants for matrix products of half types on Hopper: TMA, wgmma, warp-specialised persistent blocks, clusters.

Epilogues and results are those of gemm.py; operands come in either order, through descriptors, so that rows have to begin at
multiples of 16 bytes, and nothing else. They are not in the default registry until they have run on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..device.spec import DeviceSpec
from ..registry.cost import CACHE_TRIP_US, Cost, roofline
from ..registry.variant import (
    Checks,
    In,
    KernelVariant,
    Launch,
    Out,
    Reject,
    TensorMap,
    at_least,
    at_most,
    cdiv,
    variant,
)
from ..rows import RegionSpec
from ..types import TensorDesc, bf16, f16
from . import gemm

DEPTH = 64  # of k in a slice
ATOM = 64  # halves in the 128 bytes that a row of a box has
ROW_BYTES = 16  # that rows and pointers are multiples of
CHUNK_BYTES = 64 * ATOM * 2  # of results on their way out, two for each consumer
WARPGROUP = 128
REGISTERS = 65536  # of a multiprocessor
SHARED = (
    227 * 1024
)  # bytes that a block may have; a multiprocessor has 1 KB more, and each block takes 1 KB of its own
SLACK = 1024  # to begin at a multiple of 1024
BOX_LOADS = 4  # of a map whose results leave in boxes: four pairs are computed at once, and their operands take registers
EXTENT = 2**31 - 1024  # of m, n and k: coordinates of a tile that hangs over are i32
STORE_US = 0.8  # after the last product of a block, until its results are out; a guess until measured


@dataclass(frozen=True)
class Tiling:
    """An m x n tile for each block of a warpgroup that brings and of `consumers` that multiply.

    cluster    blocks, one below the other, that share b
    blocks     for each multiprocessor: registers and shared memory are divided among them
    registers  (of a producer's thread, of a consumer's) after they were divided anew; None where there are enough for all
    """

    m: int
    n: int
    consumers: int
    cluster: int = 1
    blocks: int = 1
    registers: tuple[int, int] | None = (40, 232)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}" + f"_cluster{self.cluster}" * (self.cluster > 1)

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def row_blocks(self) -> int:
        """Of 64 rows, that each consumer has."""
        return self.m // (64 * self.consumers)

    @property
    def sums(self) -> int:
        """That a consumer's thread has."""
        return self.row_blocks * self.n // 2

    @property
    def a_bytes(self) -> int:
        return self.m * DEPTH * 2

    @property
    def b_bytes(self) -> int:
        return self.n * DEPTH * 2

    @property
    def own_bytes(self) -> int:
        """From one consumer's part of a to the next one's."""
        return self.a_bytes // self.consumers

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + self.b_bytes

    def stages(self, staged: bool) -> int:
        """As many as there is room for. `staged`: results leave by way of shared memory."""
        room = (SHARED + 1024) // self.blocks - 1024 - SLACK - self._chunk_bytes(staged)
        return room // (self.stage_bytes + 16)

    def _chunk_bytes(self, staged: bool) -> int:
        return 2 * self.consumers * CHUNK_BYTES * staged

    # shared memory: stages, from the first multiple of 1024 on; chunks of results; barriers, full and then empty

    @property
    def chunks_at(self) -> int:
        return self.stages(True) * self.stage_bytes

    def barriers_at(self, staged: bool) -> int:
        return self.stages(staged) * self.stage_bytes + self._chunk_bytes(staged)

    def shared(self, staged: bool) -> int:
        return SLACK + self.barriers_at(staged) + 16 * self.stages(staged)


# --- operands ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """a or b, as rows in memory: of k, or of lines (m or n)."""

    name: str
    index: int
    k_fast: bool
    extents: tuple[int, int]
    pitch: int  # bytes from row to row

    def map(self, region: RegionSpec, lines: int) -> TensorMap:
        """For slices of `lines` and 64 of k, or for 64 lines of them at a time."""
        box = (DEPTH, lines) if self.k_fast else (ATOM, DEPTH)
        return TensorMap(In(self.index), region.operands[self.index].dtype, self.extents, self.pitch, box)


@lru_cache(maxsize=256)
def operands(region: RegionSpec) -> tuple[Operand, Operand] | Reject:
    """a and b, or why one of them has no 16-byte aligned rows."""
    p, _ = gemm.parts(region)
    a, b = region.operands[p.a], region.operands[p.b]
    (a_m, a_k), (b_k, b_n) = gemm.steps(a, p.trans_a), gemm.steps(b, p.trans_b)
    made = _operand("a", p.a, a, (p.m, a_m), (p.k, a_k)), _operand("b", p.b, b, (p.n, b_n), (p.k, b_k))
    return next((m for m in made if isinstance(m, Reject)), made)  # type: ignore[return-value]


def _operand(
    name: str, index: int, matrix: TensorDesc, lines: tuple[int, int], depth: tuple[int, int]
) -> Operand | Reject:
    """`lines` and `depth` are each an extent and a step. Steps of an extent of one mean nothing."""
    if matrix.alignment < ROW_BYTES:
        return Reject("aligned", f"{name} is aligned to {matrix.alignment} bytes, needs {ROW_BYTES}")
    for k_fast, (inner, step), (outer, pitch) in ((True, depth, lines), (False, lines, depth)):
        row = inner * matrix.dtype.itemsize
        apart = pitch * matrix.dtype.itemsize if outer > 1 else cdiv(row, ROW_BYTES) * ROW_BYTES
        if (step == 1 or inner == 1) and apart >= row and apart % ROW_BYTES == 0:
            return Operand(name, index, k_fast, (inner, outer), apart)
    return Reject(
        "rows",
        f"{name} is {matrix}, needs rows that begin at multiples of {ROW_BYTES} bytes, one after the other",
    )


def checks(region: RegionSpec) -> Checks:
    """What every tiling takes: halves in rows that the accelerator can copy."""
    yield from gemm.checks(region)
    p, _ = gemm.parts(region)
    if p.dtype not in (f16, bf16):
        yield Reject("dtype", f"the product is in {p.dtype}, needs f16 or bf16")
    yield at_least("k", p.k, 1)
    yield at_most("greatest extent", max(p.m, p.n, p.k), EXTENT)
    made = operands(region)
    yield made if isinstance(made, Reject) else None


def staged(tiling: Tiling, region: RegionSpec) -> bool:
    """Whether results leave a box at a time: they can, and there are registers for it. What computes with indices, as dropout
    does, takes them; and two blocks of rows leave fewer, since what they share is kept."""
    (p, after), result = gemm.parts(region), region.results[0]
    return (
        len(after.stores) == 1
        and result.dtype in (f16, bf16)
        and result.alignment >= ROW_BYTES
        and p.n * result.dtype.itemsize % ROW_BYTES == 0
        and gemm.epilogue(region, 2).width == 2
        and len(after.loads) + (p.c is not None) <= (BOX_LOADS if tiling.row_blocks == 1 else 1)
        and all(load.operand is not None for load in after.loads)
    )


# --- variants ---------------------------------------------------------------------------------------------------------


def _wgmma(tiling: Tiling, efficiency: float) -> KernelVariant:
    """A tiling as a variant. `efficiency`: of the tensor cores' rate, with the chip full; guesses but for the prototype's."""

    @variant("gemm", id=f"cuda.gemm_wgmma_{tiling}.v1", takes=gemm.TAKES, needs=("sm_90a",))
    class Wgmma:
        __doc__ = f"""Persistent blocks of {tiling.consumers} consumer warpgroups and a producer, a {tiling.m} x {tiling.n} tile at a time.

        Parallel over tiles, {tiling.cluster} block{"s" * (tiling.cluster > 1)} to a cluster. TMA brings slices 64 deep, wgmma multiplies them out of shared
        memory; f16 or bf16, f32 sums; all four transposes as they are. 2MNK flops, edges padded to whole tiles. Bytes: both
        operands once per tile they meet{", b once per cluster" * (tiling.cluster > 1)}. Limit: tensor cores; at the ends of a tile, its epilogue.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield from checks(region)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return _cost(tiling, efficiency, region, device)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [_launch(tiling, region, device)]

    return Wgmma  # type: ignore[return-value]  # `variant` has made a record of the class


def _tiles(tiling: Tiling, region: RegionSpec) -> int:
    """Blocks' worth of tiles, a cluster's at a time."""
    p, _ = gemm.parts(region)
    return max(1, cdiv(p.m, tiling.m * tiling.cluster) * cdiv(p.n, tiling.n)) * tiling.cluster


def _cost(tiling: Tiling, efficiency: float, region: RegionSpec, device: DeviceSpec) -> Cost:
    """Whole tiles of flops; operands from the cache, b once for a cluster. Slices are on their way while others are multiplied,
    so what a block waits for is the first ones, and what comes after its last product."""
    p, _ = gemm.parts(region)
    tiles = _tiles(tiling, region)
    lines = tiles * (tiling.m + tiling.n / tiling.cluster)
    cost = roofline(
        device, bytes=region.nbytes, flops=2.0 * tiles * tiling.m * tiling.n * cdiv(p.k, DEPTH) * DEPTH,
        useful=p.flops, rate=p.dtype.name, efficiency=efficiency, blocks=tiles, blocks_per_sm=tiling.blocks,
        cached=lines * p.k * p.dtype.itemsize, chain=CACHE_TRIP_US + STORE_US,
    )  # fmt: skip
    return gemm.with_epilogue(cost, region, device)


def _launch(tiling: Tiling, region: RegionSpec, device: DeviceSpec) -> Launch:
    from .bodies.gemm_wgmma import wgmma

    both, boxes = operands(region), staged(tiling, region)
    assert not isinstance(both, Reject)
    a, b = both
    body = wgmma(tiling, a.k_fast, b.k_fast, gemm.epilogue(region, 2), boxes)
    maps: tuple[TensorMap, ...] = a.map(region, tiling.m), b.map(region, tiling.n // tiling.cluster)
    if boxes:
        p, _ = gemm.parts(region)
        result = region.results[0].dtype
        maps = *maps, TensorMap(Out(0), result, (p.n, p.m), p.n * result.itemsize, (ATOM, 64))
    _, _, others, sizes, *_, scales = gemm.arguments(region)
    resident = device.sms * tiling.blocks // tiling.cluster * tiling.cluster
    grid = (min(_tiles(tiling, region), resident),)
    return Launch(
        body, grid, (tiling.threads,), (maps, others, sizes, scales), tiling.shared(boxes), tiling.cluster
    )


# Two consumers: 168 registers for each of 384 threads to begin with, 64512 of 65536, as many as 40 and twice 232 for 128 each.
gemm_wgmma_128x256 = _wgmma(Tiling(128, 256, 2), 0.74)
gemm_wgmma_128x256_cluster2 = _wgmma(Tiling(128, 256, 2, cluster=2), 0.77)
gemm_wgmma_256x128 = _wgmma(Tiling(256, 128, 2), 0.74)
gemm_wgmma_256x128_cluster2 = _wgmma(Tiling(256, 128, 2, cluster=2), 0.76)
gemm_wgmma_128x128 = _wgmma(Tiling(128, 128, 2), 0.65)
gemm_wgmma_128x128_cluster2 = _wgmma(Tiling(128, 128, 2, cluster=2), 0.67)
gemm_wgmma_64x256 = _wgmma(Tiling(64, 256, 1, registers=None), 0.6)
gemm_wgmma_64x128 = _wgmma(Tiling(64, 128, 1, blocks=2, registers=(40, 216)), 0.5)
