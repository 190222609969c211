"""Variants for elementwise ops, and for what moves elements without changing them: broadcasts and bias_add.

The kernels are maps over one scalar function; see bodies/elementwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..device.spec import DeviceSpec
from ..ops.gemm import BIAS_PER_M, BIAS_SCALAR, bias_kind
from ..ops.schema import ELEMENTWISE, schema_of
from ..registry.cost import Cost, roofline
from ..registry.variant import (
    Checks,
    In,
    Launch,
    Num,
    Out,
    Reject,
    at_most,
    cdiv,
    contiguous,
    one_op,
    variant,
)  # fmt: skip
from ..rows import RegionSpec
from ..types import DType, TensorDesc, f32, i32, i64

THREADS = 256
MAX_RANK = 6

Strides = tuple[int, ...]


def identity(x: Any) -> Any:
    return x


# --- layout: pure functions -------------------------------------------------------------------------------------------


def broadcast_strides(operand: TensorDesc, shape: tuple[int, ...]) -> Strides:
    """The operand's strides as seen from a result of this shape, aligned at the right as NumPy does: 0 if repeated."""
    missing = len(shape) - operand.rank
    kept = (0 if d != n else s for d, n, s in zip(operand.shape, shape[missing:], operand.stride))
    return (0,) * missing + tuple(kept)


def collapse(shape: tuple[int, ...], strides: Sequence[Strides]) -> tuple[tuple[int, ...], list[Strides]]:
    """The same walk with fewer dimensions: sizes of 1 go, and neighbours that every operand walks as one are merged."""
    dims: list[tuple[int, Strides]] = []
    for size, steps in zip(shape, zip(*strides) if strides else [()] * len(shape)):
        if size == 1:
            continue
        if dims and all(outer == inner * size for outer, inner in zip(dims[-1][1], steps)):
            dims[-1] = (dims[-1][0] * size, steps)
        else:
            dims.append((size, steps))
    dims = dims or [(1, (0,) * len(strides))]
    return tuple(size for size, _ in dims), [
        tuple(steps[k] for _, steps in dims) for k in range(len(strides))
    ]


def grid_for(n: int, device: DeviceSpec, threads: int = THREADS) -> tuple[int]:
    """Blocks of a grid-stride loop over n elements: at most 32 per multiprocessor, four times what is resident."""
    return (max(1, min(cdiv(n, threads), 32 * device.sms)),)


# --- launches, shared by several variants -----------------------------------------------------------------------------


def flat_launch(name: str, scalar: Callable[..., Any], region: RegionSpec, device: DeviceSpec,
                width: int = 1) -> Launch:  # fmt: skip
    """Every operand dense, of the results' shape or of one element; `width` neighbours per thread and step."""
    from .bodies.elementwise import flat, vector

    n, operands = region.results[0].numel, op_operands(region)
    what = name, scalar, _dtypes(operands), _dtypes(region.results), _scalars(region)
    body = flat(*what) if width == 1 else vector(*what, width)
    return Launch(body, grid_for(cdiv(n, width), device), (THREADS,), (*_pointers(region), Num(n)))


def _scalars(region: RegionSpec) -> tuple[bool, ...]:
    """Which operands have one element."""
    return tuple(t.numel == 1 for t in op_operands(region))


def strided_launch(name: str, scalar: Callable[..., Any], region: RegionSpec, device: DeviceSpec,
                   strides: Sequence[Strides]) -> Launch:  # fmt: skip
    """Operands with these strides over the results' shape; results dense."""
    from .bodies.elementwise import strided

    n = region.results[0].numel
    shape, steps = collapse(region.results[0].shape, strides)
    narrow = n < 2**31
    body = strided(name, scalar, _dtypes(op_operands(region)), _dtypes(region.results), len(shape), narrow)
    sizes = tuple(Num(d, i32 if narrow else i64) for d in shape)
    walks = tuple(tuple(Num(s) for s in walk) for walk in steps)
    return Launch(body, grid_for(n, device), (THREADS,), (*_pointers(region), sizes, walks, Num(n)))


def op_operands(region: RegionSpec) -> list[TensorDesc]:
    """The one op's operands in its own order; the region may list a tensor once that the op takes twice."""
    return [region.tensors[i] for i in region.anchor.inputs]


def _dtypes(tensors: Sequence[TensorDesc]) -> tuple[DType, ...]:
    return tuple(t.dtype for t in tensors)


def _pointers(region: RegionSpec) -> tuple[tuple[In, ...], tuple[Out, ...]]:
    op = region.anchor
    ins = tuple(In(region.inputs.index(i)) for i in op.inputs)
    return ins, tuple(Out(region.outputs.index(i)) for i in op.outputs)


def _typed(region: RegionSpec) -> Callable[..., Any]:
    """The region's one op as a scalar function typed by its shared operands; f32 if it has none."""
    from .engine import typed_scalar

    schema, operands = schema_of(region.kind), op_operands(region)
    shared = (t.dtype for d, t in zip(schema.operands, operands) if d.type.shared)
    return typed_scalar(schema.scalar, next(shared, f32).compute, **region.attrs)


def _dense_results(region: RegionSpec) -> Reject | None:
    """Every result leaves the region, row-major, and all have one shape."""
    if set(region.anchor.outputs) != set(region.outputs):
        return Reject("results", f"results {region.anchor.outputs} of the op, {region.outputs} of the region")
    for i, t in enumerate(region.results):
        if not t.contiguous or t.shape != region.results[0].shape:
            return Reject("results", f"result {i} is {t}, needs row-major of shape {region.results[0].shape}")
    return None


def _walk_rank(region: RegionSpec, strides: Sequence[Strides]) -> Reject | None:
    rank = len(collapse(region.results[0].shape, strides)[0])
    return at_most("rank after collapsing", rank, MAX_RANK)


# --- elementwise ops --------------------------------------------------------------------------------------------------


def _dense(region: RegionSpec) -> Checks:
    yield one_op(region)
    yield contiguous(region)
    yield _dense_results(region)
    shape = region.results[0].shape
    for i, t in enumerate(region.operands):
        if t.numel != 1 and t.shape != shape:
            yield Reject("shape", f"operand {i} has shape {t.shape}, needs one element or {shape}")


def _map_cost(region: RegionSpec, device: DeviceSpec, width: int, memory_efficiency: float,
              index_flops: int = 0) -> Cost:  # fmt: skip
    n = region.results[0].numel
    return roofline(
        device, bytes=region.nbytes, flops=(schema_of(region.kind).flops + index_flops) * n, efficiency=0.5,
        memory_efficiency=memory_efficiency, blocks=cdiv(n, width * THREADS), blocks_per_sm=8,
    )  # fmt: skip


@variant(ELEMENTWISE, id="cuda.elementwise_flat.v1")
class ElementwiseFlat:
    """One element per thread and step, all operands dense (or of one element). Any dtype; half types compute in f32.

    Parallel over elements. Bytes: each operand read once, each result written once. Limit: memory, 4 bytes per load.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _dense(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _map_cost(region, device, 1, 0.8)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return [flat_launch(region.kind.name, _typed(region), region, device)]


VECTOR = 16  # bytes: the most that one load takes


def vector_width(region: RegionSpec) -> int:
    """Neighbours per step: 16 bytes of the widest element type (8 halves, 4 numbers of f32), but at least 4."""
    return max(
        4, VECTOR // max(t.dtype.itemsize for t in region.tensors if t.numel > 1 or t in region.results)
    )


@variant(ELEMENTWISE, id="cuda.elementwise_vector.v1")
class ElementwiseVector:
    """As many neighbours per thread and step as 16 bytes hold, in vector loads and stores; otherwise as elementwise_flat.

    One-element operands, such as a learning rate, are read once per step and spread. The end of a ragged length goes one by
    one. Parallel over vectors, so short tensors do better with elementwise_flat. Limit: memory.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from _dense(region)
        width = vector_width(region)
        for what, tensors in (("operand", region.operands), ("result", region.results)):
            for i, t in enumerate(tensors):
                needed = min(VECTOR, width * t.dtype.itemsize)
                if t.numel > 1 and t.alignment < needed:
                    yield Reject("aligned", f"{what} {i} is aligned to {t.alignment} bytes, needs {needed}")

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return _map_cost(region, device, vector_width(region), 0.9)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return [flat_launch(region.kind.name, _typed(region), region, device, vector_width(region))]


@variant(ELEMENTWISE, id="cuda.elementwise_strided.v1")
class ElementwiseStrided:
    """One element per thread and step; operands broadcast or strided, up to rank 6 once neighbours are merged.

    Parallel over elements. Limit: memory, and about twenty instructions of index arithmetic per dimension.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield _dense_results(region)
        yield _walk_rank(region, _broadcasts(region))

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        rank = len(collapse(region.results[0].shape, _broadcasts(region))[0])
        return _map_cost(region, device, 1, 0.6, index_flops=20 * rank)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        return [strided_launch(region.kind.name, _typed(region), region, device, _broadcasts(region))]


def _broadcasts(region: RegionSpec) -> list[Strides]:
    return [broadcast_strides(t, region.results[0].shape) for t in op_operands(region)]


# --- the same map, with other strides ---------------------------------------------------------------------------------


@variant("bias_add", id="cuda.bias_add.v1")
class BiasAdd:
    """x + bias as a strided map: the bias has stride 0 along the dimension it is repeated over. Any float dtype."""

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield _dense_results(region)

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return roofline(device, bytes=region.nbytes, memory_efficiency=0.6)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .engine import typed_scalar

        x, bias = op_operands(region)
        kind, step = bias_kind(bias.shape[0], *x.shape), bias.stride[0]
        walk = (0, 0) if kind == BIAS_SCALAR else (step, 0) if kind == BIAS_PER_M else (0, step)
        add = typed_scalar(_add, x.dtype.compute)
        return [strided_launch("bias_add", add, region, device, [broadcast_strides(x, x.shape), walk])]


def _add(x: Any, y: Any) -> Any:
    return x + y


@variant("broadcast_in_dim", id="cuda.broadcast_in_dim.v1")
class BroadcastInDim:
    """Operand dimension i is result dimension dims[i]; everything else is repeated, with stride 0. Any dtype."""

    def accepts(region: RegionSpec) -> Checks:
        yield one_op(region)
        yield _dense_results(region)
        yield _walk_rank(region, [_placed(region)])

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        return roofline(device, bytes=region.nbytes, memory_efficiency=0.6)

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .engine import typed_scalar

        copy = typed_scalar(identity, region.results[0].dtype.compute)
        return [strided_launch("broadcast", copy, region, device, [_placed(region)])]


def _placed(region: RegionSpec) -> Strides:
    (x,), (y,) = region.operands, region.results
    steps = [0] * y.rank
    for size, stride, dim in zip(x.shape, x.stride, region.attrs["dims"]):
        steps[dim] = stride if size == y.shape[dim] else 0
    return tuple(steps)
