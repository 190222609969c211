"""Variants for matrix products in exact f32 on the CUDA cores, on every architecture; what is narrower is widened when loaded."""

from __future__ import annotations

from dataclasses import replace

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, Launch, NumericClass, Reject, variant
from ...rows import RegionSpec
from ...types import BASIC, DType, f32, i8, i32, u8
from ..maps.elementwise import THREADS
from . import numerics, problem
from .problem import GemmOperand
from .schedule import split_k
from .tilings import OperandLoad, SimtTile, finish_us, simt

RUN = 4  # elements per load of a tiled kernel where the layout allows: 16 bytes of f32, 8 of a half type
LEAN = 64  # accumulators in a thread; from here on 128 registers hold little else
NAIVE = 16  # rows and columns of a block of the naive kernels


def _naive_least(region: RegionSpec, device: DeviceSpec) -> float:
    return one_launch(region, device) + problem.k_of(region) * simt(device).naive_load_us


def _naive_cost(region: RegionSpec, device: DeviceSpec, efficiency: float, memory_efficiency: float) -> Cost:
    p, _ = problem.read(region)
    return roofline(
        device, bytes=region.nbytes, flops=p.flops, efficiency=efficiency, memory_efficiency=memory_efficiency,
        blocks=problem.grid(p, NAIVE, NAIVE)[0], blocks_per_sm=8, chain=p.k * simt(device).naive_load_us,
        finish=finish_us(simt(device), region, NAIVE * NAIVE),
    )  # fmt: skip


def _naive_launch(region: RegionSpec, sums: DType) -> Launch:
    from .simt_body import naive

    body, blocks = (
        naive(problem.epilogue(region, 1), sums),
        problem.grid(problem.read(region)[0], NAIVE, NAIVE),
    )
    return Launch(body, blocks, (NAIVE, NAIVE), problem.arguments(region))


@variant("gemm", id="cuda.gemm_naive.v1", takes=problem.TAKES)
class GemmNaive:
    """One thread per element of the result. Parallel over elements; limit: 2 loads per multiply-add, from L1 and L2.

    A smoke test, and the comparison for the others: 2MNK flops, at best some 3 % of the arithmetic rate.
    """

    accepts, least = problem.checks, _naive_least

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        return numerics.simt(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _naive_cost(region, device, 0.032, 0.7)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return [_naive_launch(region, f32)]


@variant("gemm", id="cuda.gemm_naive_int8.v1", takes=problem.TAKES, dtypes=BASIC | {i8, u8})
class GemmNaiveInt8:
    """One thread per element of the result, of i8 and u8 with sums in i32. Parallel over elements; limit: 2 loads of a byte per multiply-add.

    For what tensor cores don't take, and GPUs before Hopper: some 3 % of the arithmetic rate.
    """

    least = _naive_least

    def numerics(region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        return numerics.exact_integers(region)

    def accepts(region: RegionSpec) -> Checks:
        yield from problem.checks(region)
        p, _ = problem.read(region)
        if p.dtype not in (i8, u8):
            yield Reject("dtype", f"a is {p.dtype}, this one is for i8 and u8")

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _naive_cost(region, device, 0.025, 0.5)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return [_naive_launch(region, i32)]


def load_of(x: GemmOperand) -> OperandLoad:
    """How an operand is loaded: along its contiguous index, in vector loads if every run of it is whole and aligned."""
    mn_major = x.mn.step < x.k.step or (x.mn.step == x.k.step and x.name == "b")
    fast, slow = (x.mn, x.k) if mn_major else (x.k, x.mn)
    whole = fast.step == 1 and not any(
        size % RUN for size in (slow.step, fast.extent, *(z.step for z in x.batch))
    )
    aligned = x.matrix.alignment >= RUN * x.matrix.dtype.itemsize
    return OperandLoad(mn_major, RUN if whole and aligned else 1)


WHOLE = (
    # Efficiencies are what reads of shared memory leave: 2 of them for 4 multiply-adds, then for 16, then 4 for 64.
    SimtTile(32, 32, 32, 3),
    SimtTile(64, 64, 16, 3),
    SimtTile(128, 128, 8, 2),
)
TILES = (
    *WHOLE,
    *(replace(tile, split=True) for tile in WHOLE),
    *(replace(tile, parts=True) for tile in WHOLE[:2]),
)  # 128 x 128 would spill


@variant("gemm", id="cuda.gemm_tiled.v1", configs=TILES, takes=lambda tile: tile.takes)
class Tiled:
    """A block of 256 threads per tile of m x n, K-tiles of both operands in shared memory; k may be split among blocks.

    Parallel over tiles and splits; a thread holds m / 16 x n / 16 of a tile in registers. 2MNK flops, edges padded to whole tiles.
    Bytes: both operands once per tile that uses them, four neighbours per load where runs of four are whole and aligned; with splits, 4 MN
    for each of them, written and read. With `parts` a block has them one after another. Limit: the f32 rate, and reads of shared memory too.
    """

    cost, least, workspace = split_k.cost, split_k.least, split_k.tile_workspace

    def accepts(region: RegionSpec, tile: SimtTile) -> Checks:
        yield from problem.checks(region)
        if tile.split:
            yield from split_k.checks(region, tile.step, (tile.m, tile.n))
            return
        if tile.parts:
            yield from split_k.fixed_checks(region)
        if tile.m * tile.n >= LEAN * THREADS:
            yield from problem.lean(region)

    def numerics(region: RegionSpec, device: DeviceSpec, tile: SimtTile) -> NumericClass | Reject:
        return numerics.simt(region, tile)

    def build(region: RegionSpec, device: DeviceSpec, tile: SimtTile) -> list[Launch]:
        from .simt_body import tiled

        split = split_k.best(region, device, tile)[1]
        run = min(tile.n // 16, 4)
        finish, arguments = split_k.parts(region, run, tile.m, split, in_parts=tile.parts)
        body = tiled(tile, *map(load_of, problem.operands(region)), finish)
        (tiles,) = problem.grid(problem.read(region)[0], tile.m, tile.n)
        launch = Launch(body, (tiles * (split.number if split else 1),), (THREADS,), arguments)
        return split_k.launches(region, device, launch, tile.m, split)
