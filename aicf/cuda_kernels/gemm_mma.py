"""Variants for matrix products of half types on tensor cores; operands, epilogues and results are those of gemm.py."""

from __future__ import annotations

from ..device.spec import DeviceSpec
from ..registry.cost import Cost
from ..registry.variant import Checks, KernelVariant, Launch, Reject, variant
from ..rows import RegionSpec
from ..types import bf16, f16
from . import column_sums, gemm

DEPTH = 32  # k in shared memory at a time
CHUNK = 8  # halves in the 16 bytes that one copy to shared memory takes


def _layout(region: RegionSpec) -> list[tuple[str, int, int, tuple[int, ...], bool]]:
    """(name, contiguous extent, contiguous step, other steps, whether lines are contiguous) of a and of b."""
    p, _ = gemm.parts(region)
    (*a_batch, a_m, a_k), (*b_batch, b_k, b_n) = p.a_steps, p.b_steps
    made = []
    for name, lines, line_step, k_step, batch, lines_fast in (
        ("a", p.m, a_m, a_k, a_batch, a_m < a_k),
        ("b", p.n, b_n, b_k, b_batch, b_n <= b_k),
    ):
        extent, fast, slow = (lines, line_step, k_step) if lines_fast else (p.k, k_step, line_step)
        made.append((name, extent, fast, (slow, *batch), lines_fast))
    return made


def _checks(region: RegionSpec) -> Checks:
    factor = region.tensors[region.anchor.inputs[0]].dtype
    if factor not in (f16, bf16):  # before all else: it costs least
        yield Reject("dtype", f"the product is in {factor}, needs f16 or bf16")
    yield from gemm.checks(region)
    p, _ = gemm.parts(region)
    for (name, extent, step, others, _), i in zip(_layout(region), (p.a, p.b)):
        if step != 1:
            yield Reject(
                "contiguous", f"{name} has strides {region.operands[i].stride}, needs a contiguous dimension"
            )
        if any(size % CHUNK for size in (extent, *others)):
            apart = " and ".join(map(str, others))
            yield Reject(
                "chunks", f"{name} has rows of {extent}, {apart} apart; all must be multiples of {CHUNK}"
            )
        if region.operands[i].alignment < 2 * CHUNK:
            yield Reject(
                "aligned", f"{name} is aligned to {region.operands[i].alignment} bytes, needs {2 * CHUNK}"
            )


def _mma(m: int, n: int, warps_m: int, warps_n: int, efficiency: float, blocks_per_sm: int) -> KernelVariant:
    """A tile size as a variant. `efficiency`: of the tensor cores' rate; mma.sync tops out near 0.65 on Hopper."""

    @variant("gemm", id=f"cuda.gemm_mma_{m}x{n}.v1", takes=gemm.TAKES_SUMS, needs=("sm_80",))
    class Mma:
        __doc__ = f"""A block of {warps_m} x {warps_n} warps per {m} x {n} tile, by mma.sync m16n8k16; f16 or bf16, f32 sums.

        Slices 32 deep, two in shared memory, brought by cp.async: 16 bytes at a time, so contiguous extents and leading
        dimensions are multiples of 8. 2MNK flops, edges padded to whole tiles. Limit: tensor cores, latency of a slice.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield from _checks(region)
            if m * n >= gemm.LEAN * 32 * warps_m * warps_n:
                yield from gemm.lean(region)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            rate = gemm.parts(region)[0].dtype.name
            return gemm.Tile(m, n, DEPTH, efficiency, blocks_per_sm, rate).cost(region, device)

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            return column_sums.workspace(region, m)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            from .bodies.gemm_mma import PAIR, Warps, mma

            p, _ = gemm.parts(region)
            warps = Warps(m, n, warps_m, warps_n, blocks_per_sm)
            a_lines_fast, b_lines_fast = (fast for *_, fast in _layout(region))
            body = mma(warps, a_lines_fast, b_lines_fast, gemm.epilogue(region, PAIR, m))
            product = Launch(body, gemm.grid(p, m, n), (warps.threads,), gemm.arguments(region, m))
            return [product, *column_sums.launches(region, m, device)]

    return Mma  # type: ignore[return-value]  # `variant` has made a record of the class


gemm_mma_32x32 = _mma(32, 32, 2, 2, 0.12, 6)
gemm_mma_64x64 = _mma(64, 64, 2, 2, 0.25, 4)
gemm_mma_128x128 = _mma(128, 128, 2, 4, 0.45, 2)
