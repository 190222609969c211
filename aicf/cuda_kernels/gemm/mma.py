"""Variants for matrix products on tensor cores by mma.sync, sm_80 and newer, and of f16 sm_75; operands, epilogues and results are those of
problem.py, and operands may lie anyhow: the better rows are aligned, the wider the copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import Any

from ...device.calibration import family
from ...device.spec import DeviceSpec, by_architecture, constants
from ...registry.cost import Cost, machine, roofline
from ...registry.variant import Checks, Launch, NumericClass, Reject, cdiv, variant
from ...rows import RegionSpec
from ...rows.by_form import by_form
from ...types import Precision, bf16, f16, f32
from . import column_sums, numerics, problem
from .problem import GemmOperand
from .schedule.split_k import STRICT
from .tilings import MmaTiling, TileConstants, finish_us

exact, tf32, tf32x3 = Precision.exact, Precision.tf32, Precision.tf32x3
WIDEST = 16  # bytes that one copy to shared memory takes
NARROWEST = 4  # that it takes: numbers narrower than that go through registers
FEW = 32  # accumulators of a thread: with more, there are no registers for numbers on their way
REGISTER_STAGED_COPIES = 2  # a load and a store for each number that goes through registers


@dataclass(frozen=True)
class MmaOperand:
    """How a or b is loaded.

    mn_major    whether it is MN-major
    width       bytes that are copied at a time: what pointer and rows are aligned to, at most 16
    partial     whether the last of these in a row exist in part
    """

    name: str
    mn_major: bool
    width: int
    partial: bool


@lru_cache(maxsize=256)
def operands(region: RegionSpec) -> tuple[MmaOperand, MmaOperand]:
    a, b = problem.operands(region)
    return _operand(a), _operand(b)


def _operand(x: GemmOperand) -> MmaOperand:
    """A single row has a step as well: threads that find nothing to copy compute addresses with it."""
    made, size = [], x.matrix.dtype.itemsize
    for mn_major, inner, outer in ((False, x.k, x.mn), (True, x.mn, x.k)):
        runs = inner.step == 1 or inner.extent == 1
        width = gcd(WIDEST, x.matrix.alignment, size * gcd(*(z.step for z in x.batch), outer.step))
        unit = width if runs else size
        made.append((runs, width, MmaOperand(x.name, mn_major, unit, inner.extent * size % unit != 0)))
    return max(made, key=lambda option: option[:2])[-1]


def _family(precision: Precision, turing: bool = False) -> Callable[[RegionSpec], Reject | None]:
    """What every tiling of a precision refuses."""
    taken = (f16,) if turing else (f16, bf16) if precision is exact else (f32,)
    where = " on tensor cores before sm_80" * turing

    @by_form
    def unfit(region: RegionSpec) -> Reject | None:
        factors = {region.tensors[i].dtype for i in region.anchor.inputs[:2]}
        if len(factors) > 1 or not factors <= set(taken):
            found, needed = " and ".join(sorted(t.name for t in factors)), " or ".join(t.name for t in taken)
            return Reject("dtype", f"the product is in {found}, needs {needed}{where}")
        if precision > (allowed := Precision(region.attrs["precision"])):
            return Reject("precision", f"the product is to be {allowed.name}, this one is {precision.name}")
        return None

    def strict(region: RegionSpec) -> Reject | None:
        """K-tiles are summed from zero, and then added up: in an order that exact products don't have."""
        if region.one_sum and precision is tf32x3:
            return Reject("strict", STRICT)
        return None

    def refusal(region: RegionSpec) -> Reject | None:
        return unfit(region) or strict(region) or problem.refusal(region)

    return refusal


TILINGS = (
    MmaTiling(32, 32, 2, 2, 64, 4, 4),
    MmaTiling(64, 64, 2, 2, 32, 4, 4),
    MmaTiling(64, 128, 2, 2, 32, 4, 3),
    MmaTiling(128, 64, 2, 2, 32, 4, 3),
    MmaTiling(128, 128, 2, 2, 32, 3, 2),
    MmaTiling(128, 256, 2, 4, 32, 4, 1),
    MmaTiling(256, 128, 4, 2, 32, 4, 1),
    MmaTiling(128, 256, 2, 4, 64, 3, 1, word="deep"),
    MmaTiling(64, 64, 2, 2, 32, 3, 4, tf32),
    MmaTiling(128, 128, 2, 2, 16, 3, 2, tf32),
    MmaTiling(128, 256, 2, 4, 16, 4, 1, tf32),
    MmaTiling(64, 64, 2, 2, 32, 3, 3, tf32x3),
    MmaTiling(128, 128, 2, 4, 32, 3, 1, tf32x3),
    MmaTiling(64, 64, 2, 2, 32, 2, 3, turing=True),
    MmaTiling(64, 128, 2, 2, 32, 2, 2, turing=True),
    MmaTiling(128, 64, 2, 2, 32, 2, 2, turing=True),
    MmaTiling(128, 128, 2, 4, 32, 2, 1, turing=True),
    MmaTiling(128, 256, 2, 4, 32, 2, 1, turing=True),
    MmaTiling(256, 128, 4, 2, 32, 2, 1, turing=True),
)


@family("gemm.mma")
@dataclass(frozen=True)
class MmaConstants(TileConstants):
    """Constants of tiles by mma.sync, measured on an H200.

    efficiency  of what mma.sync reaches, by tile, with the chip full: of TF32 scaled like halves; of sm_75 guesses: 64 x 64 of a warp reads shared
        memory for half of the time that it multiplies, 32 x 32 for all of it
    ceiling  of the tensor cores' published rate, that mma.sync reaches, by architecture, or by its first number, or later: times 0.82,
        the best tile's efficiency, what cuBLAS and kernels of mma.sync were published to reach: see docs/platforms.md
    turing_later  of tilings of sm_75 on later architectures, where two m16n8k8 take longer than an m16n8k16: a guess
    start_us  until the first K-tiles' loads are issued, and from the last one to the results
    step_us  between K-tiles: a barrier, and fragments on their way from shared memory
    copied_trip_us  of a K-tile's trip, what is not hidden, for each of those in flight
    register_staged_us  a K-tile, of numbers that go through registers: nobody else's arithmetic hides their trip
    copy_us  of a multiprocessor, for each copy of a warp beyond those that 16 bytes at a time take: 3 cycles
    """

    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {
            "32x32": 0.2,
            "64x64": 0.37,
            "64x128": 0.46,
            "128x64": 0.46,
            "128x128": 0.62,
            "128x256": 0.77,
            "256x128": 0.77,
            "128x256_deep": 0.82,
            "64x64_tf32": 0.37,
            "128x128_tf32": 0.62,
            "128x256_tf32": 0.77,
            "64x64_tf32x3": 0.61,
            "128x128_tf32x3": 0.715,
            "64x64_turing": 0.45,
            "64x128_turing": 0.61,
            "128x64_turing": 0.61,
            "128x128_turing": 0.61,
            "128x256_turing": 0.73,
            "256x128_turing": 0.73,
        }
    )
    ceiling: Mapping[str, float] = field(
        default_factory=lambda: {
            "7": 0.8,
            "8.0": 1.0,
            "8": 1.15,
            "9": 0.65,
            "10": 0.3,
            "12": 1.15,
            "later": 0.3,
        }
    )
    turing_later: float = 0.5
    start_us: float = 0.8
    step_us: float = 0.1
    copied_trip_us: float = 0.06
    register_staged_us: float = 0.55
    copy_us: float = 0.0016


def _cost(tiling: MmaTiling, region: RegionSpec, device: DeviceSpec) -> Cost:
    """Whole tiles of flops; operands once from memory and once per tile from the cache.

    `stages` - 1 K-tiles are on their way at a time, so what a block waits for one is what their arithmetic does not cover.
    What is narrower than 16 bytes takes more copies, which warps issue in the place of products.
    """
    p, _ = problem.read(region)
    itemsize = p.dtype.itemsize
    (blocks,) = problem.grid(p, tiling.m, tiling.n)
    k_tiles = max(1, cdiv(p.k, tiling.tile_k))
    rate = p.dtype.name if tiling.precision is exact else "tf32"
    c = constants(MmaConstants, device)
    efficiency = c.efficiency[str(tiling)] / (3 if tiling.precision is tf32x3 else 1)  # as many products
    efficiency *= by_architecture(c.ceiling, device) * (
        c.turing_later if tiling.turing and device.arch >= (8, 0) else 1.0
    )
    speed = device.tflops.get(rate, 0.0) * efficiency * 1e6 / device.sms
    multiply = 2.0 * tiling.m * tiling.n * tiling.tile_k / speed if speed else 0.0
    resident = tiling.resident(device)
    copies = 0.0
    staged_us = (
        c.register_staged_us if any(operand.width < NARROWEST for operand in operands(region)) else 0.0
    )
    for operand, mn_extent in zip(operands(region), (tiling.m, tiling.n)):
        each = REGISTER_STAGED_COPIES if operand.width < NARROWEST else 1
        copies += mn_extent * tiling.tile_k * itemsize / 32 * (each / operand.width - 1 / WIDEST)
    if copies and multiply:
        efficiency *= multiply / (multiply + copies * c.copy_us)
    finish = finish_us(c, region, tiling.m * tiling.n)
    nbytes = (tiling.m + tiling.n) * tiling.tile_k * itemsize
    crowd = min(resident, cdiv(blocks, device.sms))
    arrive = (c.copied_trip_us + crowd * nbytes / machine(device).l2_per_sm * 1e-3) / (tiling.stages - 1)
    mn_extent = p.count * (cdiv(p.n, tiling.n) * p.m + cdiv(p.m, tiling.m) * p.n)  # once for each tile
    return roofline(
        device, bytes=region.nbytes, memory_efficiency=c.memory_efficiency, flops=2.0 * blocks * tiling.m * tiling.n * p.k, useful=p.flops, rate=rate,
        efficiency=efficiency, blocks=blocks, blocks_per_sm=resident, cached=float(mn_extent * p.k * itemsize),
        chain=c.start_us + k_tiles * (staged_us + c.step_us + max(0.0, arrive - multiply)), finish=finish,
    )  # fmt: skip


FAMILIES = {precision: _family(precision) for precision in (exact, tf32, tf32x3)}


class Mma:
    """A block of warps per m x n tile, by mma.sync: m16n8k16 of f16 or bf16; m16n8k8 of f16 on sm_75, or of f32 rounded to tf32, or as two
    tf32 terms each, in three products, where infinities become NaN. f32 accumulators.

    Parallel over tiles. K-tiles are in shared memory, three or four of them, loaded by cp.async, or two that pass through registers (sm_75):
    16, 8 or 4 bytes at a time, or by numbers, as rows are aligned. 2MNK flops, edges padded to whole tiles. Limit: tensor cores, reads of
    shared memory beside them. A T4 multiplies a K-tile of 256 x 128 x 32 in 2048 cycles, and its shared memory is busy for 1500 of them:
    64 bytes a cycle of fragments, 51 of stores.
    """

    def accepts(region: RegionSpec, tiling: MmaTiling) -> Checks:
        for operand in operands(region):
            if operand.width < NARROWEST and tiling.accumulators > FEW:
                found = f"{operand.name} is aligned to {operand.width} bytes, or its rows are"
                yield Reject("aligned", f"{found}, needs {NARROWEST}")

    def cost(region: RegionSpec, device: DeviceSpec, tiling: MmaTiling) -> Cost:
        return column_sums.with_sums(_cost(tiling, region, device), region, tiling.m, device)

    def workspace(region: RegionSpec, device: DeviceSpec, tiling: MmaTiling) -> int:
        return column_sums.workspace(region, tiling.m)

    def numerics(region: RegionSpec, device: DeviceSpec, tiling: MmaTiling) -> NumericClass | Reject:
        return numerics.mma(region, tiling)

    def build(region: RegionSpec, device: DeviceSpec, tiling: MmaTiling) -> list[Launch]:
        from .mma_body import PAIR, mma

        p, _ = problem.read(region)
        a, b = operands(region)
        finish, kind = problem.epilogue(region, PAIR, tiling.m), tiling.kind(p.dtype)
        partial = (a.partial, b.partial) if tiling.turing else (True, True)  # cp.async copies whatever exists
        body = mma(tiling, kind, (a.mn_major, b.mn_major), (a.width, b.width), finish, partial)
        grid, arguments = problem.grid(p, tiling.m, tiling.n), problem.arguments(region, tiling.m)
        launch = Launch(body, grid, (tiling.threads,), arguments, tiling.shared)
        return [launch, *column_sums.launches(region, tiling.m, device)]


def _kernel(family: Callable[[RegionSpec], Reject | None], precision: Precision, turing: bool = False) -> Any:
    """The kernel in the tilings of a precision: what all of these refuse is asked once."""
    tilings = [t for t in TILINGS if (t.precision, t.turing) == (precision, turing)]
    return variant(
        "gemm", id="cuda.gemm_mma.v1", configs=tilings, takes=problem.TAKES_SUMS, needs=("sm_75" if turing else "sm_80",),
        shared=lambda tiling: tiling.shared, family=family,
    )(Mma)  # fmt: skip


EXACT, TF32, TF32X3 = (_kernel(family, precision) for precision, family in FAMILIES.items())
TURING = _kernel(_family(exact, turing=True), exact, turing=True)
