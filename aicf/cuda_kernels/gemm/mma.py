"""Variants for matrix products on tensor cores by mma.sync, sm_80 and newer; operands, epilogues and results are those of
problem.py, and operands may lie anyhow: the better rows are aligned, the wider the copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from ...device.spec import DeviceSpec
from ...registry.cost import L2_PER_SM, Cost, roofline
from ...registry.variant import Checks, Launch, Reject, cdiv, variant
from ...rows import RegionSpec
from ...rows.by_form import by_form
from ...types import Precision, bf16, f16, f32
from . import column_sums, problem
from .problem import GemmOperand
from .schedule.split_k import STRICT
from .tilings import MEMORY_EFFICIENCY, MmaTiling, finish_us

exact, tf32, tf32x3 = Precision.exact, Precision.tf32, Precision.tf32x3
WIDEST = 16  # bytes that one copy to shared memory takes
NARROWEST = 4  # that it takes: numbers narrower than that go through registers
FEW = 32  # accumulators of a thread: with more, there are no registers for numbers on their way
# Of the tensor cores' rate, that mma.sync reaches, by architecture: published figures, and a guess
CEILING, CEILING_LATER = {8: 0.9, 9: 0.65}, 0.3
# What follows was measured on an H200.
START_US = 0.8  # until the first K-tiles' loads are issued, and from the last one to the results
STEP_US = 0.1  # between K-tiles: a barrier, and fragments on their way from shared memory
COPIED_TRIP_US = 0.06  # of a K-tile's trip, what is not hidden, for each of those in flight
# A K-tile, of numbers that go through registers: nobody else's arithmetic hides their trip
REGISTER_STAGED_US = 0.55
# Of a multiprocessor, for each copy of a warp beyond those that 16 bytes at a time take: 3 cycles
COPY_US = 0.0016
REGISTER_STAGED_COPIES = 2  # a load and a store for each number that goes through registers


@dataclass(frozen=True)
class MmaOperand:
    """How a or b is loaded.

    mn_major    whether it is MN-major
    width       bytes that are copied at a time: what pointer and rows are aligned to, at most 16
    """

    name: str
    mn_major: bool
    width: int


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
        made.append((runs, width, MmaOperand(x.name, mn_major, width if runs else size)))
    return max(made, key=lambda option: option[:2])[-1]


def _family(precision: Precision) -> Callable[[RegionSpec], Reject | None]:
    """What every tiling of a precision refuses."""
    taken = (f16, bf16) if precision is exact else (f32,)

    @by_form
    def unfit(region: RegionSpec) -> Reject | None:
        factors = {region.tensors[i].dtype for i in region.anchor.inputs[:2]}
        if len(factors) > 1 or not factors <= set(taken):
            found, needed = " and ".join(sorted(t.name for t in factors)), " or ".join(t.name for t in taken)
            return Reject("dtype", f"the product is in {found}, needs {needed}")
        if precision > (allowed := Precision(region.attrs["precision"])):
            return Reject("precision", f"the product is to be {allowed.name}, this one is {precision.name}")
        return None

    def strict(region: RegionSpec) -> Reject | None:
        """K-tiles are summed from zero, and then added up: in an order that exact products don't have."""
        if region.strict and precision is tf32x3:
            return Reject("strict", STRICT)
        return None

    def refusal(region: RegionSpec) -> Reject | None:
        return unfit(region) or strict(region) or problem.refusal(region)

    return refusal


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
    efficiency = EFFICIENCY[tiling] / (3 if tiling.precision is tf32x3 else 1)  # as many products
    efficiency *= CEILING.get(device.arch[0], CEILING_LATER)
    speed = device.tflops.get(rate, 0.0) * efficiency * 1e6 / device.sms
    multiply = 2.0 * tiling.m * tiling.n * tiling.tile_k / speed if speed else 0.0
    resident = tiling.resident(device)
    copies = 0.0
    staged_us = REGISTER_STAGED_US if any(operand.width < NARROWEST for operand in operands(region)) else 0.0
    for operand, mn_extent in zip(operands(region), (tiling.m, tiling.n)):
        each = REGISTER_STAGED_COPIES if operand.width < NARROWEST else 1
        copies += mn_extent * tiling.tile_k * itemsize / 32 * (each / operand.width - 1 / WIDEST)
    if copies and multiply:
        efficiency *= multiply / (multiply + copies * COPY_US)
    finish = finish_us(region, tiling.m * tiling.n)
    nbytes = (tiling.m + tiling.n) * tiling.tile_k * itemsize
    crowd = min(resident, cdiv(blocks, device.sms))
    arrive = (COPIED_TRIP_US + crowd * nbytes / L2_PER_SM * 1e-3) / (tiling.stages - 1)
    mn_extent = p.count * (cdiv(p.n, tiling.n) * p.m + cdiv(p.m, tiling.m) * p.n)  # once for each tile
    return roofline(
        device, bytes=region.nbytes, memory_efficiency=MEMORY_EFFICIENCY, flops=2.0 * blocks * tiling.m * tiling.n * p.k, useful=p.flops, rate=rate,
        efficiency=efficiency, blocks=blocks, blocks_per_sm=resident, cached=float(mn_extent * p.k * itemsize),
        chain=START_US + k_tiles * (staged_us + STEP_US + max(0.0, arrive - multiply)), finish=finish,
    )  # fmt: skip


FAMILIES = {precision: _family(precision) for precision in (exact, tf32, tf32x3)}
# The share of what mma.sync reaches, with the chip full: of halves and 3xTF32 measured on an H200, of TF32 scaled like those.
EFFICIENCY = {
    MmaTiling(32, 32, 2, 2, 64, 4, 4): 0.2,
    MmaTiling(64, 64, 2, 2, 32, 4, 4): 0.37,
    MmaTiling(64, 128, 2, 2, 32, 4, 3): 0.46,
    MmaTiling(128, 64, 2, 2, 32, 4, 3): 0.46,
    MmaTiling(128, 128, 2, 2, 32, 3, 2): 0.62,
    MmaTiling(128, 256, 2, 4, 32, 4, 1): 0.77,
    MmaTiling(256, 128, 4, 2, 32, 4, 1): 0.77,
    MmaTiling(128, 256, 2, 4, 64, 3, 1, word="deep"): 0.82,
    MmaTiling(64, 64, 2, 2, 32, 3, 4, tf32): 0.37,
    MmaTiling(128, 128, 2, 2, 16, 3, 2, tf32): 0.62,
    MmaTiling(128, 256, 2, 4, 16, 4, 1, tf32): 0.77,
    MmaTiling(64, 64, 2, 2, 32, 3, 3, tf32x3): 0.61,
    MmaTiling(128, 128, 2, 4, 32, 3, 1, tf32x3): 0.715,
}


class Mma:
    """A block of warps per m x n tile, by mma.sync: m16n8k16 of f16 or bf16; m16n8k8 of f32 rounded to tf32, or as two tf32 terms each, in
    three products, where infinities become NaN. f32 accumulators.

    Parallel over tiles. K-tiles are in shared memory, three or four of them, loaded by cp.async: 16, 8 or 4 bytes at a time, or by numbers,
    as rows are aligned. 2MNK flops, edges padded to whole tiles. Limit: tensor cores, reads of shared memory beside them.
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

    def build(region: RegionSpec, device: DeviceSpec, tiling: MmaTiling) -> list[Launch]:
        from .mma_body import PAIR, mma

        p, _ = problem.read(region)
        a, b = operands(region)
        finish, kind = problem.epilogue(region, PAIR, tiling.m), tiling.kind(p.dtype)
        body = mma(tiling, kind, (a.mn_major, b.mn_major), (a.width, b.width), finish)
        grid, arguments = problem.grid(p, tiling.m, tiling.n), problem.arguments(region, tiling.m)
        launch = Launch(body, grid, (tiling.threads,), arguments, tiling.shared)
        return [launch, *column_sums.launches(region, tiling.m, device)]


# The kernel in the tilings of each precision, so that what all of these refuse is asked once.
EXACT, TF32, TF32X3 = (
    variant(
        "gemm", id="cuda.gemm_mma.v1", configs=[t for t in EFFICIENCY if t.precision is precision], takes=problem.TAKES_SUMS, needs=("sm_80",),
        shared=lambda tiling: tiling.shared, family=family,
    )(Mma)
    for precision, family in FAMILIES.items()
)  # fmt: skip
