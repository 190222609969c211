"""Any op by its NumPy reference: the oracle, run. It takes everything and is chosen where nothing faster is."""

from __future__ import annotations

import numpy as np

from ..ops.schema import schema_of
from ..registry.cost import roofline
from ..registry.epilogue import gemm_program
from ..registry.variant import HostCall, one_op, variant

# What one NumPy call costs before it does any work, and how often a reference's expression passes over its operands.
CALL_US, PASSES = 1.0, 3.0


@variant("*", id="cpu.reference.v1", priority=-10)
class Reference:
    """One op, one NumPy expression, with temporaries: several passes over memory."""

    def accepts(region):
        yield one_op(region)

    def cost(region, device):
        if region.kind.name == "gemm":
            flops, calls, efficiency = gemm_program(region).flops, 6, 0.3
        else:
            each = schema_of(region.kind).flops
            flops, calls, efficiency = each * max(t.numel for t in region.results), min(each, 20), 0.05
        return roofline(device, bytes=PASSES * region.nbytes, flops=flops, efficiency=efficiency).plus(
            calls=CALL_US * calls
        )

    def build(region, device):
        schema, head = schema_of(region.kind), region.anchor
        attrs, present = dict(head.attrs), [i >= 0 for i in head.inputs]

        def run(operands, results):
            given = iter(operands)
            arrays = [next(given) if there else None for there in present]
            with np.errstate(all="ignore"):  # NaN and Inf are values here, not warnings
                for target, value in zip(results, schema.call_reference(arrays, attrs)):
                    np.copyto(target, value, casting="unsafe")

        return HostCall(run)
