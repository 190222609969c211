"""The arithmetic of a region: of its GEMMs alone, which bounds it as memory does."""

from __future__ import annotations

from math import prod

import numpy as np

from aicf.rows import RegionSpec
from aicf.types import TensorDesc


def product_flops(region: RegionSpec) -> float:
    """Two for each multiplication that the results need: no padding, no masked scores. What gradients compute again counts."""
    total = 0.0
    for op in region.ops:
        ins = [region.tensors[t] for t in op.inputs if t >= 0]
        out = region.tensors[op.outputs[0]]
        kind, attrs = op.kind.name, op.attrs
        if kind == "gemm":
            total += 2.0 * prod(out.shape) * ins[0].shape[-2 if attrs["trans_a"] else -1]
        elif kind == "attention":
            total += attention_flops(ins[0], ins[1], ins[2], attrs["causal"], attrs["window"])
        elif kind == "attention_grad":
            total += attention_flops(ins[1], ins[2], ins[3], attrs["causal"], attrs["window"], grad=True)
        elif kind == "linear_cross_entropy":
            total += 2.0 * prod(ins[0].shape) * ins[1].shape[0]
        elif kind == "linear_cross_entropy_grad":
            total += 6.0 * prod(ins[1].shape) * ins[2].shape[0]
    return total


def attention_flops(
    q: TensorDesc, k: TensorDesc, v: TensorDesc, causal: bool = False, window: int = 0, grad: bool = False
) -> float:
    """Two products of what each query may see forward, five backward."""
    queries, keys = q.shape[-2], k.shape[-2]
    at = np.arange(queries) + keys - queries
    last = np.clip(at + 1, 0, keys) if causal else np.full(queries, keys)
    first = np.clip(at + 1 - window, 0, keys) if window else np.zeros(queries, int)
    pairs = prod(q.shape[:-2]) * float(np.maximum(last - first, 0).sum())
    d, dv = q.shape[-1], v.shape[-1]
    return 2.0 * pairs * (3 * d + 2 * dv if grad else d + dv)
