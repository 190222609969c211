"""Elementwise ops on the host: the op's scalar function in one numba loop, one pass over memory."""

from __future__ import annotations

from ..ops.schema import ELEMENTWISE, schema_of
from ..registry.cost import roofline
from ..registry.variant import HostCall, Reject, at_most, contiguous, one_op, variant
from ..types import DType
from .reference import op_operands

_HALVES = (DType.f16, DType.bf16)  # numba's host target computes with neither


@variant(ELEMENTWISE, id="cpu.elementwise_loop.v1")
class ElementwiseLoop:
    """Operands of one shape, or with a single element; a loop that LLVM vectorises. Bytes: each tensor once."""

    def accepts(region):
        yield one_op(region)
        yield contiguous(region)
        yield at_most("operands", len(region.operands), 16)
        shape = region.results[0].shape
        for i, t in enumerate(region.operands):
            if t.shape != shape and t.numel != 1:
                yield Reject(
                    "shape", f"operand {i} has shape {t.shape}: neither {shape} nor a single element"
                )
        for i, t in enumerate(region.tensors):
            if t.dtype in _HALVES:
                yield Reject("dtype", f"tensor {i} is {t.dtype}; the host loop takes f32, i32, i64 and bool")

    def cost(region, device):
        flops = schema_of(region.kind).flops * region.results[0].numel
        call = 1.0 + 0.25 * len(region.operands + region.results)  # numba unpacks each array it is handed
        return roofline(device, bytes=region.nbytes, flops=flops, efficiency=0.2).plus(call=call)

    def build(region, device):
        from ..ops.scalar import typed_scalar
        from .loops import elementwise

        schema, positions = schema_of(region.kind), op_operands(region)
        given = [region.operands[p] for p in positions]
        compute = next((t.dtype for d, t in zip(schema.operands, given) if d.type.shared), DType.f32).compute
        scalar, constants = typed_scalar(schema.scalar, compute, region.attrs)
        size = region.results[0].numel
        ones = tuple(t.numel == 1 and size != 1 for t in given)
        loop = elementwise(scalar, constants, ones, len(region.results))
        fixed = [p for p, one in zip(positions, ones) if one]
        moving = [p for p, one in zip(positions, ones) if not one]

        def run(operands, results):
            flat = [a.reshape(-1) for a in operands]
            loop(
                tuple(flat[p] for p in fixed),
                tuple(flat[p] for p in moving),
                tuple(a.reshape(-1) for a in results),
            )

        return HostCall(run)
