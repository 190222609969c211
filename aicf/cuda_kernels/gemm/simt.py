"""Variants for matrix products and any map that follows them: biases, activations and their gradients, residuals, dropout.

Arithmetic is exact f32 on the CUDA cores, on every architecture; what is narrower is widened when loaded. What the map loads and stores may have any element type. Regions are read by rows/read.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ...device.spec import DeviceSpec
from ...registry.cost import CACHE_TRIP_US, L2_PER_SM, Cost, one_launch, roofline
from ...registry.variant import Checks, In, KernelVariant, Launch, Num, Out, Reject, at_most, cdiv, variant
from ...rows import RegionSpec
from ...rows.program import Gemm, Map, RegionProgram
from ...rows.read import read
from ...types import DType, TensorDesc, f32, i32
from ..maps.elementwise import THREADS
from . import column_sums

TAKES = "gemm", "gemm+map"
TAKES_SUMS = (*TAKES, *column_sums.TAKES)
BATCH_AXES = 2  # after those that all tensors walk as one are merged
RUN = 4  # elements per load of a tiled kernel where the layout allows: 16 bytes of f32, 8 of a half type
TENSORS = 16  # that an epilogue loads and stores: their places take registers beside the accumulators
LEAN = 64  # accumulators in a thread; from here on 128 registers hold little else
STRIDES = 8  # of theirs that a kernel is told when it starts
# What follows was measured on an H200, and so were tiles' efficiencies.
MEMORY_EFFICIENCY = 0.8  # of the bandwidth, that operands are loaded at
# Of a multiprocessor, for an element of the result, one at a time or in pairs: to store it, to load one of another matrix, and
# for each flop of the map. Two thirds of the stores' is where they go.
STORE_US, LOADED_US, FLOP_US = 1.6e-4, 5e-4, 1.8e-5
STEP_US = 0.2  # between K-tiles: barriers, and the next one on its way to shared memory
NAIVE = 16  # rows and columns of a block of gemm_naive
NAIVE_LOAD_US = 0.08  # of it, for an element of a and one of b: the loop is unrolled by four


def checks(region: RegionSpec) -> Checks:
    """What every GEMM here takes: floats, row-major c and results, and as many tensors as there are registers for."""
    yield refusal(region)


@lru_cache(maxsize=256)
def refusal(region: RegionSpec) -> Reject | None:
    """Of all of them: each region is asked of one after the other."""
    return next((reject for reject in _shared_checks(region) if reject is not None), None)


def _shared_checks(region: RegionSpec) -> Checks:
    program = read(region)
    if isinstance(program, Reject):
        yield program
        return
    gemm, after = problem(region)
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
    for load in problem(region)[1].loads:
        if load.strides[-1] not in (0, 1):
            what = "the index" if load.operand is None else f"operand {load.operand}"
            yield Reject("columns", f"{what} walks columns {load.strides[-1]} elements apart, needs 1 or 0")


def problem(region: RegionSpec) -> tuple[Gemm, Map]:
    """A region that is taken, as the product and what follows it."""
    program = read(region)
    assert isinstance(program, RegionProgram) and isinstance(program.core, Gemm)
    return program.core, program.after


def k_of(region: RegionSpec) -> int:
    """k; of a region that can't be taken, 0."""
    program = read(region)
    return program.core.k if isinstance(program, RegionProgram) and isinstance(program.core, Gemm) else 0


# --- the epilogue -----------------------------------------------------------------------------------------------------


def epilogue(region: RegionSpec, run: int, tile_m: int = 1, each: int = 1):
    """The epilogue for threads that hold runs of `run` neighbouring columns, of blocks that hold `tile_m` rows and leave so many
    rows of column sums for `each` of these."""
    from .epilogue import Epilogue, Read

    gemm, after = problem(region)
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
    gemm, after = problem(region)
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


@dataclass(frozen=True)
class SimtTile:
    """What a block computes, and how fast.

    step           along k, for which a K-tile of both operands is in shared memory; the next one is on its way meanwhile
    efficiency     of the rate, that the inner loop reaches with the chip full
    blocks_per_sm  that registers and shared memory are limited for
    """

    m: int
    n: int
    step: int
    efficiency: float
    blocks_per_sm: int
    rate: str = "f32"

    def cost(self, region: RegionSpec, device: DeviceSpec) -> Cost:
        gemm, _ = problem(region)
        finish = finish_us(region, self.m * self.n)
        cost = self.product_cost(sizes_of(gemm), region.nbytes, device, gemm.flops, finish)
        return column_sums.with_sums(cost, region, self.m, device)

    def least(self, region: RegionSpec, device: DeviceSpec) -> float:
        """Of `cost`: a launch, and the arithmetic of whole tiles, or one K-tile after the other and results."""
        if not (k := k_of(region)):
            return one_launch(region, device)
        waited = cdiv(k, self.step) * STEP_US + finish_us(region, self.m * self.n)
        return one_launch(region, device) + max(waited, self.even_us(problem(region)[0], device))

    def even_us(self, gemm: Gemm | Sizes, device: DeviceSpec) -> float:
        """Of whole tiles, with every multiprocessor as busy as the others; 0 where there is no such unit."""
        speed = device.tflops.get(self.rate, 0.0) * self.efficiency * 1e6
        return 2.0 * grid(gemm, self.m, self.n)[0] * self.m * self.n * gemm.k / speed if speed else 0.0

    def product_cost(
        self, gemm: Sizes, nbytes: float, device: DeviceSpec, useful: float, finish: float
    ) -> Cost:
        """Whole tiles of flops; operands once from memory and once per tile from the cache; a barrier per step.

        A K-tile that arrives later than the arithmetic of the one before it is done is waited for, unless other blocks of
        the multiprocessor have work. nbytes: through device memory; useful: flops that are no padding.
        """
        (blocks,) = grid(gemm, self.m, self.n)
        padded, k_extent = 2.0 * blocks * self.m * self.n * gemm.k, max(1, gemm.k)
        k_bytes = (self.m + self.n) * gemm.dtype.itemsize  # bytes for each of k
        speed = device.tflops.get(self.rate, 0.0) * self.efficiency * 1e6 / device.sms
        # rows and columns of operands, once for each tile
        reads = gemm.count * (cdiv(gemm.n, self.n) * gemm.m + cdiv(gemm.m, self.m) * gemm.n)
        multiply = 2.0 * self.m * self.n * self.step / speed if speed else 0.0
        arrive = CACHE_TRIP_US + k_bytes * self.step / L2_PER_SM * 1e-3
        return roofline(
            device, bytes=nbytes, flops=padded, useful=useful, rate=self.rate, efficiency=self.efficiency,
            memory_efficiency=MEMORY_EFFICIENCY, blocks=blocks, blocks_per_sm=self.blocks_per_sm, cached=float(reads * gemm.k * gemm.dtype.itemsize),
            chain=cdiv(k_extent, self.step) * (STEP_US + max(0.0, arrive - multiply)), finish=finish,
        )  # fmt: skip


def finish_us(region: RegionSpec, elements: int) -> float:
    """Of a multiprocessor, for so many results of its, one at a time or in pairs."""
    f = epilogue_statistics(region)
    return elements * (STORE_US * f.stores + LOADED_US * f.matrices + FLOP_US * f.flops)


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
    p, after = problem(region)
    walks = [load.strides[-2] != 0 for load in after.loads if load.operand is not None]
    matrices = sum(walks)
    flops = after.flops / max(1, after.numel)
    return EpilogueStatistics(len(after.stores), matrices + (p.c is not None), len(walks) - matrices, flops)


# --- operands ---------------------------------------------------------------------------------------------------------


def grid(gemm: Gemm | Sizes, m: int, n: int) -> tuple[int]:
    """A block for each tile of m x n; one if there is none."""
    return (max(1, gemm.count * cdiv(gemm.m, m) * cdiv(gemm.n, n)),)


def _loads(region: RegionSpec):
    """How each operand is loaded: along its contiguous index, in vector loads if every run of it is whole and aligned."""
    from .simt_body import OperandLoad

    gemm, _ = problem(region)

    def of(
        matrix: TensorDesc, batch: list[int], mn_step: int, k_step: int, mn_extent: int, mn_major: bool
    ) -> OperandLoad:
        fast, slow, extent = (mn_step, k_step, mn_extent) if mn_major else (k_step, mn_step, gemm.k)
        whole = fast == 1 and not any(size % RUN for size in (slow, extent, *batch))
        aligned = matrix.alignment >= RUN * matrix.dtype.itemsize
        return OperandLoad(mn_major, RUN if whole and aligned else 1)

    a, b = region.operands[gemm.a], region.operands[gemm.b]
    (*a_batch, a_m, a_k), (*b_batch, b_k, b_n) = gemm.a_steps, gemm.b_steps
    return of(a, a_batch, a_m, a_k, gemm.m, a_m < a_k), of(b, b_batch, b_n, b_k, gemm.n, b_n <= b_k)


def arguments(region: RegionSpec, tile_m: int = 1, each: int = 1) -> tuple:
    gemm, after = problem(region)
    c = () if gemm.c is None else (In(gemm.c),)
    ins = tuple(In(load.operand) for load in after.loads if load.operand is not None)
    given = tuple(map(Num, _given(gemm, after)))
    outs = tuple(Out(p) for _, p in after.stores)
    sizes = tuple(Num(size, i32) for size in (gemm.m, gemm.n, gemm.k, *gemm.batch))
    walks = gemm.a_steps, gemm.b_steps
    scales = (Num(gemm.alpha, f32), Num(gemm.beta, f32))
    operands = (c, ins, given, outs, column_sums.pointers(region, tile_m, each))
    return (In(gemm.a), In(gemm.b), operands, sizes, *(tuple(map(Num, pair)) for pair in walks), scales)


@variant("gemm", id="cuda.gemm_naive.v1", takes=TAKES)
class GemmNaive:
    """One thread per element of the result. Parallel over elements; limit: 2 loads per multiply-add, from L1 and L2.

    A smoke test, and the comparison for the others: 2MNK flops, at best some 3 % of the arithmetic rate.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from checks(region)

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return one_launch(region, device) + k_of(region) * NAIVE_LOAD_US

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        gemm, _ = problem(region)
        return roofline(
            device, bytes=region.nbytes, flops=gemm.flops, efficiency=0.032, memory_efficiency=0.7,
            blocks=grid(gemm, 16, 16)[0], blocks_per_sm=8, chain=gemm.k * NAIVE_LOAD_US,
            finish=finish_us(region, NAIVE * NAIVE),
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .simt_body import naive

        blocks = grid(problem(region)[0], NAIVE, NAIVE)
        return [Launch(naive(epilogue(region, 1)), blocks, (NAIVE, NAIVE), arguments(region))]


def tiled_body(tile: SimtTile, region: RegionSpec, finish: Any) -> Callable[..., None]:
    from .simt_body import SimtTiling, tiled

    return tiled(SimtTiling(tile.m, tile.n, tile.step, tile.blocks_per_sm), *_loads(region), finish)


def _tiled(tile: SimtTile) -> KernelVariant:
    """A tile size as a variant."""
    m, n = tile.m, tile.n

    @variant("gemm", id="cuda.gemm_tiled.v1", config=(f"{m}x{n}",), takes=TAKES_SUMS)
    class Tiled:
        __doc__ = f"""A block of 256 threads per {m} x {n} tile, {tile.step} deep K-tiles of both operands in shared memory.

        Parallel over tiles; a thread holds {m // 16} x {n // 16} of one in registers. 2MNK flops, edges padded to whole tiles.
        Bytes: both operands once per tile that uses them, four neighbours per load where runs of four are whole and aligned.
        Limit: the f32 rate, and reads of shared memory beside it.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield from checks(region)
            if m * n >= LEAN * THREADS:
                yield from lean(region)

        def least(region: RegionSpec, device: DeviceSpec) -> float:
            return tile.least(region, device)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return tile.cost(region, device)

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            return column_sums.workspace(region, m)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            body = tiled_body(tile, region, epilogue(region, min(n // 16, 4), m))
            product = Launch(body, grid(problem(region)[0], m, n), (THREADS,), arguments(region, m))
            return [product, *column_sums.launches(region, m, device)]

    return Tiled  # type: ignore[return-value]  # `variant` has made a record of the class


# Efficiencies are what reads of shared memory leave: 2 of them for 4 multiply-adds, then for 16, then 4 for 64.
SMALL, MIDDLE, LARGE = (
    SimtTile(32, 32, 32, 0.235, 3),
    SimtTile(64, 64, 16, 0.48, 3),
    SimtTile(128, 128, 8, 0.645, 2),
)
TILED = tuple(map(_tiled, (SMALL, MIDDLE, LARGE)))
