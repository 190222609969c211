"""Variants for softmax cross-entropy, its gradient, and a look at its labels."""

from __future__ import annotations

from ..device.spec import DeviceSpec
from ..registry.cost import CACHE_TRIP_US, Cost, roofline
from ..registry.variant import Checks, In, Launch, Num, Out, Work, cdiv, contiguous, one_op, variant
from ..rows import RegionSpec
from ..types import TensorDesc, i64
from .elementwise import THREADS, grid_for
from .reduce import RESIDENT, TREE_US, UNROLLED, chain_us, lanes_for


def op_operands(region: RegionSpec) -> list[TensorDesc]:
    """The op's operands in its own order; the region may list a tensor once that the op takes twice."""
    return [region.tensors[i] for i in region.anchor.inputs]


def _cost(region: RegionSpec, device: DeviceSpec, reads: int) -> Cost:
    rows, classes = op_operands(region)[0].shape
    blocks = cdiv(rows * lanes_for(classes), THREADS)
    lanes = lanes_for(classes)
    again = (reads - 1) * op_operands(region)[0].nbytes  # what is read once more is in a cache
    passes = chain_us(cdiv(classes, lanes)) + (reads - 1) * CACHE_TRIP_US * cdiv(classes, lanes * UNROLLED)
    return roofline(
        device, bytes=region.nbytes, cached=again, flops=10 * reads * rows * classes, efficiency=0.3,
        memory_efficiency=0.8, blocks=blocks, blocks_per_sm=RESIDENT, chain=passes + chain_us(1), finish=2 * TREE_US,
    )  # fmt: skip


def _launch(region: RegionSpec, device: DeviceSpec, body) -> list[Launch]:
    logits, labels = op_operands(region)[:2]
    rows, classes = logits.shape
    lanes = lanes_for(classes)
    pointers = (*(In(region.inputs.index(i)) for i in region.anchor.inputs), Out(0))
    kernel = body(logits.dtype, labels.dtype, lanes)
    return [
        Launch(
            kernel,
            grid_for(rows * lanes),
            (THREADS,),
            (*pointers, Num(rows), Num(classes), Num(region.attrs["ignore_index"])),
        )
    ]


@variant("softmax_cross_entropy", id="cuda.softmax_xent_rows.v2")
class SoftmaxXentRows:
    """1 to 256 threads per row of logits, tree reductions in shared memory. Any float type of logits, f32 arithmetic.

    Parallel over rows and classes. Bytes: the logits once from memory and once more from cache; one f32 per row out.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _cost(region, device, reads=2)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.losses import softmax_xent

        return _launch(region, device, softmax_xent)


@variant("softmax_cross_entropy_grad", id="cuda.softmax_xent_grad_rows.v2")
class SoftmaxXentGradRows:
    """As softmax_xent_rows, then once more over the row to write softmax - onehot, scaled.

    Parallel over rows and classes. Bytes: the logits once from memory and twice more from cache; the gradient once.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _cost(region, device, reads=3)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.losses import softmax_xent_grad

        return _launch(region, device, softmax_xent_grad)


ALONE = 4 * THREADS  # labels that one block looks at; more are for several


def _parts(region: RegionSpec) -> int:
    """Blocks, at most one for each thread of the block that puts together what they find."""
    return max(1, min(cdiv(op_operands(region)[0].numel, ALONE), THREADS))


@variant("check_labels", id="cuda.check_labels.v1")
class CheckLabels:
    """Four labels per thread and step, then trees in shared memory; for more than a block's worth, blocks side by side and one
    more launch. Parallel over labels. Bytes: the labels once. Limit: latency.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield contiguous(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        parts, rows = _parts(region), op_operands(region)[0].numel
        return roofline(
            device, bytes=region.nbytes, launches=1 if parts == 1 else 2, blocks=parts, blocks_per_sm=RESIDENT,
            chain=chain_us(cdiv(rows, parts * THREADS)), finish=2 * TREE_US,
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        return 2 * i64.itemsize * parts if (parts := _parts(region)) > 1 else 0

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.labels import check_labels, check_labels_end, check_labels_part

        labels, parts = op_operands(region)[0], _parts(region)
        asked = Num(region.attrs["classes"]), Num(region.attrs["ignore_index"])
        given = tuple(In(region.inputs.index(i)) for i in region.anchor.inputs)
        outs, rows, found = (Out(0), Out(1), Out(2)), Num(labels.numel), Work(0, i64)
        if parts == 1:
            return [Launch(check_labels(labels.dtype), (1,), (THREADS,), (*given, outs, rows, *asked))]
        return [
            Launch(check_labels_part(labels.dtype), (parts,), (THREADS,), (given[0], found, rows, *asked)),
            Launch(
                check_labels_end(labels.dtype), (1,), (THREADS,), (*given, found, outs, Num(parts), *asked)
            ),
        ]
