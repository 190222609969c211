"""The variant that adds up the squares of the gradients of all parameters."""

from __future__ import annotations

from itertools import accumulate

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, Work, contiguous, one_op, variant
from ...rows import RegionSpec
from ...types import f32
from .elementwise import RESIDENT, THREADS, map_constants
from .finite import VECTOR, blocks_of, groups_of

WAVES = 1  # of blocks, each of which leaves a sum
NEAR = 4  # sums that a thread of the last block loads at once


def _blocks(region: RegionSpec, device: DeviceSpec) -> list[list[int]]:
    """Of each launch, of each of its tensors."""
    return [blocks_of(region, device, *group, waves=WAVES) for group in groups_of(region)]


def _sums(region: RegionSpec, device: DeviceSpec) -> int:
    return sum(map(sum, _blocks(region, device)))


@variant("sum_of_squares", id="cuda.sum_of_squares.v1")
class SumOfSquares:
    """Up to 32 tensors of one type a launch, whose blocks each leave a sum; behind them one block that adds those up, in one order.
    Operands dense. f32, f16, bf16.

    In 16-byte loads where the tensors are aligned for them. Parallel over tensors and elements. Bytes: each operand read once. Limit:
    memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        groups, blocks = groups_of(region), _blocks(region, device)
        wide = all(aligned for _, aligned, _ in groups)
        return roofline(
            device, bytes=region.nbytes, flops=2 * sum(t.numel for t in region.operands), efficiency=map_constants(device).efficiency,
            memory_efficiency=map_constants(device).vector_access if wide else map_constants(device).scalar_access, launches=1 + len(groups),
            blocks=max([1, *map(sum, blocks)]), blocks_per_sm=RESIDENT[wide],
            chain=sum(map(sum, blocks)) / THREADS / NEAR * machine(device).trip_us,
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return f32.itemsize * _sums(region, device)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .squares_body import squares, total

        launches, base = [], 0
        for (dtype, wide, ns), blocks in zip(groups_of(region), _blocks(region, device)):
            ends = list(accumulate(blocks))
            firsts = [end - n for end, n in zip(ends, blocks)]
            lengths = [region.operands[n].numel for n in ns]
            numbers = tuple(tuple(map(Num, column)) for column in (lengths, firsts, ends))
            body = squares(len(ns), dtype, VECTOR // dtype.itemsize if wide else 1)
            args = (tuple(map(In, ns)), Work(), Num(base), *numbers)
            launches.append(Launch(body, (ends[-1],), (THREADS,), args))
            base += ends[-1]
        return [*launches, Launch(total(), (1,), (THREADS,), (Work(), Out(0), Num(base)))]
