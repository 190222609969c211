"""A variant for products of i8 and u8 on any GPU, however they lie."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import Checks, Launch, Reject, variant
from ...rows import RegionSpec
from ...types import BASIC, i8, u8
from . import simt as gemm


@variant("gemm", id="cuda.gemm_naive_int8.v1", takes=gemm.TAKES, dtypes=BASIC | {i8, u8})
class GemmNaiveInt8:
    """One thread per element of the result, of i8 and u8 with sums in i32. Parallel over elements; limit: 2 loads of a byte per multiply-add.

    For what tensor cores don't take, and GPUs before Hopper: some 3 % of the arithmetic rate.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from gemm.checks(region)
        p, _ = gemm.problem(region)
        if p.dtype not in (i8, u8):
            yield Reject("dtype", f"a is {p.dtype}, this one is for i8 and u8")

    def least(region: RegionSpec, device: DeviceSpec) -> float:
        return one_launch(region, device) + gemm.k_of(region) * gemm.NAIVE_LOAD_US

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p, _ = gemm.problem(region)
        return roofline(
            device, bytes=region.nbytes, flops=p.flops, efficiency=0.025, memory_efficiency=0.5,
            blocks=gemm.grid(p, gemm.NAIVE, gemm.NAIVE)[0], blocks_per_sm=8, chain=p.k * gemm.NAIVE_LOAD_US,
            finish=gemm.finish_us(region, gemm.NAIVE * gemm.NAIVE),
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .int8_naive_body import naive_int8

        p, _ = gemm.problem(region)
        body, blocks = naive_int8(gemm.epilogue(region, 1)), gemm.grid(p, gemm.NAIVE, gemm.NAIVE)
        return [Launch(body, blocks, (gemm.NAIVE, gemm.NAIVE), gemm.arguments(region))]
