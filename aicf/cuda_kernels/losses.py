"""Variants for softmax cross-entropy and its gradient."""

from __future__ import annotations

from ..device.spec import DeviceSpec
from ..registry.cost import CACHE_TRIP_US, Cost, roofline
from ..registry.variant import Checks, In, Launch, Num, Out, cdiv, contiguous, one_op, variant
from ..rows import RegionSpec
from ..types import TensorDesc
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
    return [Launch(kernel, grid_for(rows * lanes), (THREADS,), (*pointers, Num(rows), Num(classes)))]


@variant("softmax_cross_entropy", id="cuda.softmax_xent_rows.v1")
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


@variant("softmax_cross_entropy_grad", id="cuda.softmax_xent_grad_rows.v1")
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
