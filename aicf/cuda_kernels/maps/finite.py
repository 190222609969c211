"""The variant that looks for overflow in the gradients of all parameters."""

from __future__ import annotations

from itertools import accumulate

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, cdiv, contiguous, one_op, variant
from ...rows import RegionSpec
from ...types import DType
from .elementwise import RESIDENT, THREADS, map_constants

MOST = 32  # tensors of a launch: each costs a block some selects
VECTOR = 16  # bytes
WAVES = 4


def groups_of(region: RegionSpec) -> list[tuple[DType, bool, list[int]]]:
    """Operands that share a launch: (their type, whether all are aligned for vectors, which), as often as the op has them."""
    kinds: dict[tuple[DType, bool], list[int]] = {}
    for n in map(region.inputs.index, region.anchor.inputs):
        t = region.operands[n]
        if t.numel:
            kinds.setdefault((t.dtype, t.alignment >= VECTOR), []).append(n)
    return [(*kind, ns[i : i + MOST]) for kind, ns in kinds.items() for i in range(0, len(ns), MOST)]


def blocks_of(
    region: RegionSpec, device: DeviceSpec, dtype: DType, wide: bool, ns: list[int], waves: int = WAVES
) -> list[int]:
    """Of each tensor, in proportion to its length."""
    each = THREADS * (VECTOR // dtype.itemsize if wide else 1)
    wanted = [cdiv(region.operands[n].numel, each) for n in ns]
    share = max(1.0, sum(wanted) / (waves * RESIDENT[wide] * device.sms))
    return [int(-(-n // share)) for n in wanted]


@variant("all_finite", id="cuda.all_finite.v1")
class AllFinite:
    """Up to 32 tensors of one type a launch, behind one that sets the flag; operands dense. f32, f16, bf16.

    In 16-byte loads where the tensors are aligned for them. Parallel over tensors and elements. Bytes: each operand read once. Limit:
    memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        groups = groups_of(region)
        wide = all(aligned for _, aligned, _ in groups)
        return roofline(
            device, bytes=region.nbytes, flops=2 * sum(t.numel for t in region.operands), efficiency=map_constants(device).efficiency,
            memory_efficiency=map_constants(device).vector_access if wide else map_constants(device).scalar_access, launches=1 + len(groups),
            blocks=max([1, *(sum(blocks_of(region, device, *group)) for group in groups)]), blocks_per_sm=RESIDENT[wide],
        )  # fmt: skip

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .finite_body import finite, set_flag

        launches = [Launch(set_flag(), (1,), (32,), (Out(0),))]
        for dtype, wide, ns in groups_of(region):
            blocks = blocks_of(region, device, dtype, wide, ns)
            ends = list(accumulate(blocks))
            firsts = [end - n for end, n in zip(ends, blocks)]
            lengths = [region.operands[n].numel for n in ns]
            numbers = tuple(tuple(map(Num, column)) for column in (lengths, firsts, ends))
            args = (tuple(map(In, ns)), Out(0), *numbers)
            launches.append(Launch(finite(len(ns), dtype, wide), (ends[-1],), (THREADS,), args))
        return launches
