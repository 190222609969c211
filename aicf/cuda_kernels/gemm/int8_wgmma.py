"""Variants for products of i8 and u8 on Hopper, whose sums are i32: the tilings of wgmma.py, with wgmma's integers.

k is contiguous in both operands, as tensor cores read bytes; an operand that lies otherwise is copied to rows of k first.
"""

from __future__ import annotations

from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import NEEDLESS, Checks, KernelVariant, Launch, Reject, at_most, variant, with_config
from ...rows import RegionSpec
from ...types import BASIC, i8, u8
from . import packed as gemm_packed
from . import problem, wgmma_cost
from . import wgmma as gemm_wgmma
from .operands.tma import operands_of
from .packed import Packed
from .schedule.persistent import clusters
from .wgmma_tiling import TILINGS, WgmmaTiling

TYPES = BASIC | {i8, u8}
INT8_TILINGS = tuple(t for t in TILINGS if t.cluster_split == 1)
# Those of which an operand may be copied first.
PACKED = "128x256", "128x128 pingpong", "64x128 pingpong", "64x64"


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    """Every tiling takes the same."""
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield from gemm_wgmma.checks(region)
    p, _ = problem.read(region)
    if p.dtype not in (i8, u8):
        yield Reject("dtype", f"a is {p.dtype}, this one is for i8 and u8")
    made = operands_of(region)
    yield made if isinstance(made, Reject) else None


def _int8(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a variant."""

    @variant(
        "gemm", id="cuda.gemm_wgmma.v1", config=(tiling, "int8"), takes=problem.TAKES, needs=("sm_90a",), dtypes=TYPES, family=family
    )  # fmt: skip
    class Int8:
        __doc__ = f"""As the config without `int8`, of i8 and u8: sums are i32, and what scales them is in its epilogue.

        Parallel over tiles. TMA brings K-tiles of 128 of k, wgmma multiplies them out of shared memory. 2MNK operations, edges padded to
        whole tiles. Bytes: both operands once per tile that uses them{", b once per cluster" * (tiling.cluster > 1)}. Limit: tensor cores, at twice the rate of halves;
        for short k the results, of four bytes unless they are converted.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield at_most("blocks", clusters(tiling, region) * tiling.together, 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return wgmma_cost.cost(tiling, region, device)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [gemm_wgmma.gemm_launch(tiling, region, device)]

    return Int8  # type: ignore[return-value]  # `variant` has made a record of the class


# --- what has to be copied first --------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def packed(region: RegionSpec) -> Packed | Reject:
    """A product with copies, of rows of k, of what can't be read as it is."""
    refused = family(region)
    if refused is None:
        return Reject(NEEDLESS, "a and b are read where they are")
    if refused.condition not in gemm_packed.MENDED:
        return refused
    return gemm_packed.packed(region)


@lru_cache(maxsize=256)
def packed_family(region: RegionSpec) -> Reject | None:
    made = packed(region)
    return made if isinstance(made, Reject) else family(made.region)


def _packed(plain: KernelVariant) -> KernelVariant:
    return gemm_packed.copying(
        plain, (plain.config, "packed"), packed, packed_family, "that are first copied to rows of k that begin at multiples of 16 bytes",
        "each such operand once more, read and written",
    )  # fmt: skip


PLAIN = tuple(map(_int8, INT8_TILINGS))
VARIANTS = *PLAIN, *(_packed(with_config(f"{config} int8", PLAIN)) for config in PACKED)
