"""Dropout on the host: one numba loop, one random counter per four elements."""

from __future__ import annotations

from ..ops.dropout import dropout_numbers
from ..registry.cost import roofline
from ..registry.variant import HostCall, Reject, contiguous, one_op, variant
from ..types import DType
from .reference import op_operands


@variant("dropout", id="cpu.dropout_loop.v1")
class DropoutLoop:
    """y = x with a mask that is computed on the way. Bytes: x read once, y written once."""

    def accepts(region):
        yield one_op(region)
        x = region.results[0].dtype
        yield Reject("dtype", f"x is {x}; the host loop takes f32") if x is not DType.f32 else None
        yield contiguous(region)

    def cost(region, device):
        return roofline(device, bytes=region.nbytes, flops=40 * region.results[0].numel, efficiency=0.1).plus(
            call=1.75
        )

    def build(region, device):
        import numpy as np

        from .loops import dropout

        loop, (x, rng) = dropout(), op_operands(region)
        threshold, scale = dropout_numbers(region.attrs["rate"])
        layer, factor = region.attrs["layer"], np.float32(scale)

        def run(operands, results):
            loop(operands[x].reshape(-1), operands[rng], results[0].reshape(-1), threshold, factor, layer)

        return HostCall(run)
