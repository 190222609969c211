"""Variants for what looks at labels."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, roofline
from ...registry.variant import Checks, In, Launch, Num, Out, Work, cdiv, contiguous, exact, one_op, variant
from ...rows import RegionSpec
from ...types import TensorDesc, i64
from ..maps.elementwise import THREADS
from ..rows.reduce import RESIDENT, TREE_US, chain_us


def op_operands(region: RegionSpec) -> list[TensorDesc]:
    """The op's operands in its own order; the region may list a tensor once that the op takes twice."""
    return [region.tensors[i] for i in region.anchor.inputs]


ALONE = 4 * THREADS  # labels that one block looks at; more are for several


def _parts(region: RegionSpec) -> int:
    """Blocks, at most one for each thread of the block that puts together what they find."""
    return max(1, min(cdiv(op_operands(region)[0].numel, ALONE), THREADS))


@variant("check_labels", id="cuda.check_labels.v1")
class CheckLabels:
    """Four labels per thread and step, then trees in shared memory; for more than a block's worth, blocks side by side and one
    more launch. Parallel over labels. Bytes: the labels once. Limit: latency.
    """

    numerics = exact

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return looking_cost(region, device)

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return looking_workspace(region)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        asked = region.attrs["classes"], region.attrs["ignore_index"]
        return looking(region, (Out(0), Out(1), Out(2)), *asked, indices=False)


def looking_cost(region: RegionSpec, device: DeviceSpec) -> Cost:
    """Of a look at labels, or at indices."""
    parts, rows = _parts(region), op_operands(region)[0].numel
    return roofline(
        device, bytes=region.nbytes, launches=1 if parts == 1 else 2, blocks=parts, blocks_per_sm=RESIDENT,
        chain=chain_us(cdiv(rows, parts * THREADS), machine(device).trip_us), finish=2 * TREE_US,
    )  # fmt: skip


def looking_workspace(region: RegionSpec) -> int:
    return 2 * i64.itemsize * parts if (parts := _parts(region)) > 1 else 0


def looking(
    region: RegionSpec, outs: tuple[Out, ...], classes: int, ignored: int, indices: bool
) -> list[Launch]:
    """Launches of a look at labels, or at indices, of which none is ignored."""
    from .labels_body import check, check_end, check_part

    labels, parts = op_operands(region)[0], _parts(region)
    asked = Num(classes), Num(ignored)
    given = tuple(In(region.inputs.index(i)) for i in region.anchor.inputs)
    rows, found = Num(labels.numel), Work(0, i64)
    what = labels.dtype, indices
    if parts == 1:
        return [Launch(check(*what), (1,), (THREADS,), (*given, outs, rows, *asked))]
    return [
        Launch(check_part(*what), (parts,), (THREADS,), (given[0], found, rows, *asked)),
        Launch(check_end(*what), (1,), (THREADS,), (*given, found, outs, Num(parts), *asked)),
    ]
