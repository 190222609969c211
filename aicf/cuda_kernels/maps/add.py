"""A variant for adding halves in pairs; sums of other types, lengths and layouts are elementwise.py's."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, one_launch, roofline
from ...registry.variant import (
    Checks,
    In,
    Launch,
    Num,
    Out,
    Reject,
    aligned,
    alone,
    arity,
    cdiv,
    contiguous,
    dtype,
    one_op,
    same_shape,
    variant,
)
from ...rows import RegionSpec
from ...rows.program import collapse
from ...types import f16
from .elementwise import THREADS, grid_for


@variant("add", id="cuda.add_f16_half2.v1", needs=("sm_53",), priority=10)
class AddHalf2:
    """Two halves per load and instruction, in native f16. Bytes: 6 per element. Parallel over pairs.

    Limit: memory. Pointers need 4 bytes of alignment where the 16-byte loads of elementwise_vector need 16.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield arity(region, 2, 1)
        yield dtype(region, f16)
        yield _rank_one(region)
        yield contiguous(region)
        yield same_shape(region)
        yield _even(region.results[0].numel)
        yield aligned(region, 4)

    least, numerics = one_launch, alone

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        pairs = region.results[0].numel // 2
        return roofline(
            device, bytes=region.nbytes, memory_efficiency=0.77, blocks=cdiv(pairs, THREADS), blocks_per_sm=8
        )

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .add_body import half2

        pairs = region.results[0].numel // 2
        ins = (In(region.inputs.index(i)) for i in region.anchor.inputs)
        return [Launch(half2, grid_for(pairs), (THREADS,), (*ins, Out(0), Num(pairs)))]


def _rank_one(region: RegionSpec) -> Reject | None:
    """Each tensor is one run of elements, whatever its rank."""
    for i, t in enumerate(region.tensors):
        rank = len(collapse(t.shape, [t.stride])[0])
        if rank > 1 and t.numel:
            return Reject(
                "rank", f"tensor {i} of shape {t.shape}, strides {t.stride} collapses to rank {rank}, needs 1"
            )
    return None


def _even(length: int) -> Reject | None:
    return Reject("even", f"length {length} is odd") if length % 2 else None
