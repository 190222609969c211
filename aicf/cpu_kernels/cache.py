"""Writing to a KV cache on the host, in place."""

from __future__ import annotations

import numpy as np

from ..ops.cache import write_rows
from ..registry.cost import one_launch, roofline
from ..registry.variant import HostCall, exact, one_op, variant
from .reference import op_operands

CALLS_US = 12.0  # NumPy's, for keys and values


@variant("cache_write", id="cpu.cache_write.v1")
class CacheWriteIndexed:
    """The new rows, by NumPy's indexing; where results are not written over the caches these are copied first."""

    def accepts(region):
        yield one_op(region)

    least, numerics = one_launch, exact

    def cost(region, device):
        _, _, k, v, _ = (region.operands[p] for p in op_operands(region))
        return roofline(device, bytes=2 * (k.nbytes + v.nbytes)).plus(calls=CALLS_US)

    def build(region, device):
        positions = op_operands(region)

        def run(operands, results):
            keys, values, k, v, starts = (operands[p] for p in positions)
            for cache, new, made in ((keys, k, results[0]), (values, v, results[1])):
                if made.ctypes.data != cache.ctypes.data:
                    np.copyto(made, cache)
                write_rows(made, new, starts)

        return HostCall(run)
