"""Variants for GEMM in TF32 on Hopper with one MN-major operand: a plain b, or a transposed a. That operand goes through registers (RS wgmma),
so that nothing is copied first; see gemm/rs_wgmma_body.py.
"""

from __future__ import annotations

from functools import lru_cache, partial

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import NEEDLESS, Checks, KernelVariant, Launch, Reject, at_most, variant, with_config
from ...rows import RegionSpec
from ...types import f32
from . import packed as gemm_packed
from . import problem, wgmma_cost
from . import wgmma as gemm_wgmma
from .operands.tma import Operands, TmaOperand, operands_of
from .packed import Packed
from .schedule import split_k as gemm_split
from .schedule.persistent import clusters
from .wgmma_results import direct_results, partial_sums
from .wgmma_tiling import TILINGS, WgmmaTiling, k_tile

BOTH = "k of both"  # a condition
# Of which a thread has two rows of the operand in registers, and no block shares anything with another.
NAMES = "128x256", "128x128", "64x128_pingpong", "64x64"
RS_TILINGS = tuple(t for t in TILINGS if str(t) in NAMES)
SPLIT = ("128x128",)  # those that split k as well
# and those of which one operand is copied first, where k is contiguous in neither
PACKED = "128x256 rs", "128x128 rs", "64x64 rs", "128x128 rs split"


@lru_cache(maxsize=256)
def rs_operands(region: RegionSpec) -> tuple[TmaOperand, TmaOperand] | Reject:
    """(the operand that goes through registers, the other one), of a region that is a product."""
    both = operands_of(region, either=True)
    if isinstance(both, Reject):
        return both
    a, b = both
    if a.k_major and b.k_major:
        return Reject(NEEDLESS, "k is contiguous in a and b, which wgmma reads where they are")
    if not (a.k_major or b.k_major):
        return Reject(
            BOTH, "k is contiguous neither in a nor in b, and only one of them goes through registers"
        )
    return (b, a) if a.k_major else (a, b)


@lru_cache(maxsize=256)
def family(region: RegionSpec) -> Reject | None:
    """Every tiling takes the same."""
    return next((reject for reject in _checks(region) if reject is not None), None)


def _checks(region: RegionSpec) -> Checks:
    yield from gemm_wgmma.checks(region)
    p, _ = problem.read(region)
    if p.dtype is not f32:
        yield Reject("dtype", f"a is {p.dtype}, this one is for f32")
    made = rs_operands(region)
    yield made if isinstance(made, Reject) else None


def _rs(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a variant."""

    @variant(
        "gemm", id="cuda.gemm_wgmma.v1", config=(tiling, "rs"), takes=problem.TAKES, needs=("sm_90a",), family=family
    )  # fmt: skip
    class Rs:
        __doc__ = f"""As the config without `rs`, of TF32 whose k is not contiguous in one operand: threads load it into registers.

        Parallel over tiles of {tiling.m} along that operand's m or n and {tiling.n} along the other one's; if it is b, the transposed product is
        summed. 2MNK flops. Bytes: both operands once per tile that uses them. Limit: tensor cores; shared memory, which is read as much
        as without.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield at_most("blocks", clusters(tiling, region, _both(region)[0].name), 2**31 - 1)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            return wgmma_cost.cost(tiling, region, device, register_operand=_both(region)[0].name)

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            return [rs_launch(tiling, region, device)]

    return Rs  # type: ignore[return-value]  # `variant` has made a record of the class


def _split(tiling: WgmmaTiling) -> KernelVariant:
    """A tiling as a variant that splits k."""

    def best(region: RegionSpec, device: DeviceSpec) -> tuple[Cost, gemm_split.KSplit]:
        return wgmma_cost.best_split(tiling, region, device, _both(region)[0].name)

    return gemm_split.split(
        "gemm_wgmma", (tiling, "rs"), (tiling.m, tiling.n), lambda region: k_tile(f32), best, partial(rs_launch, tiling),
        needs=("sm_90a",), family=family,
    )  # fmt: skip


def _both(region: RegionSpec) -> tuple[TmaOperand, TmaOperand]:
    """Of a region that is taken."""
    both = rs_operands(region)
    assert not isinstance(both, Reject)
    return both


def rs_launch(
    tiling: WgmmaTiling, region: RegionSpec, device: DeviceSpec, split: gemm_split.KSplit | None = None
) -> Launch:
    """Of the whole product, or of splits of k."""
    first, second = _both(region)
    p, _ = problem.read(region)
    maps = first.map(tiling.m), second.map(tiling.n)
    operands = Operands(
        maps, (False, first.axes), (True, second.axes), (second.map(tiling.n, last=True),), first.name
    )
    sizes, tiles = (p.m, p.n, p.k, *p.batch), clusters(tiling, region, first.name)
    if split is None:
        return gemm_wgmma.launch(tiling, device, operands, direct_results(tiling, region), sizes, tiles)
    sizes, tiles = (*sizes, split.k), tiles * split.number
    return gemm_wgmma.launch(tiling, device, operands, partial_sums(region), sizes, tiles)


# --- neither with k contiguous ----------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def packed(region: RegionSpec) -> Packed | Reject:
    """A product of which one operand is copied to rows of k, the smaller one."""
    refused = family(region)
    if refused is None:
        return Reject(NEEDLESS, "a and b are read where they are")
    if refused.condition != BOTH:
        return refused
    p, after = problem.read(region)
    made = gemm_packed.with_copies(region, p, {p.a if p.m < p.n else p.b})
    return gemm_packed.refusal_of(made, p, after) or made


@lru_cache(maxsize=256)
def packed_family(region: RegionSpec) -> Reject | None:
    made = packed(region)
    return made if isinstance(made, Reject) else family(made.region)


def _packed(plain: KernelVariant) -> KernelVariant:
    return gemm_packed.copying(
        plain, (plain.config, "packed"), packed, packed_family, "whose k is contiguous in neither: one is copied to rows of k first",
        "that operand once more, read and written",
    )  # fmt: skip


PLAIN = *map(_rs, RS_TILINGS), *(_split(tiling) for tiling in RS_TILINGS if str(tiling) in SPLIT)
VARIANTS = *PLAIN, *(_packed(with_config(config, PLAIN)) for config in PACKED)
