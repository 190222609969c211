"""The squares of the gradients of all parameters, added up on the host: products of blocks with themselves, by BLAS."""

from __future__ import annotations

import numpy as np

from ..registry.cost import one_launch, roofline
from ..registry.variant import HostCall, one_op, variant

BLOCK = 2**14  # elements whose squares are added up in f32; the sums of blocks are f64
START_US, BLOCK_US = 5.0, 2.0  # NumPy's calls, apart from their work


@variant("sum_of_squares", id="cpu.sum_of_squares.v1")
class SumOfSquaresBlocks:
    """Blocks of 16,384 elements in f32, one after another. Bytes: each operand read once. Limit: memory."""

    def accepts(region):
        yield one_op(region)

    least = one_launch

    def cost(region, device):
        flops = 2 * sum(t.numel for t in region.operands)
        blocks = sum(-(-t.numel // BLOCK) for t in region.operands)
        cost = roofline(device, bytes=region.nbytes, flops=flops, efficiency=0.5)
        return cost.plus(start=START_US, blocks=BLOCK_US * blocks)

    def build(region, device):
        taken = [region.inputs.index(i) for i in region.anchor.inputs]
        return HostCall(lambda operands, results: _add_up([operands[i] for i in taken], results[0]))


def _add_up(arrays, result):
    total = 0.0
    with np.errstate(all="ignore"):  # NaN and Inf are values here, not warnings
        for array in arrays:
            flat = array.reshape(-1)
            for first in range(0, flat.size, BLOCK):
                block = np.asarray(flat[first : first + BLOCK], np.float32)
                total += float(np.dot(block, block))
        result[...] = total
