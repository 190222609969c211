"""A graph's values on the host, by the ops' references: for small graphs of numbers, such as a schedule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir import Graph, Value
from ...ops.schema import schema_of


def evaluate(graph: Graph, fed: Mapping[Value, np.ndarray | np.generic]) -> dict[Value, np.ndarray]:
    """Every value, given those that come from outside. Constants bring their own."""
    known = {value.vid: np.asarray(array) for value, array in fed.items()}
    for value in graph.externals():
        if value.constant and value.init is not None:
            start = value.init(value.shape, np.random.default_rng(0))
            known[value.vid] = np.asarray(start, value.dtype.numpy)
    for op in graph.ops:
        operands = [known[vid] if vid >= 0 else None for vid in op.inputs]
        known.update(zip(op.outputs, schema_of(op.kind).call_reference(operands, op.attrs)))
    return {graph.values[vid]: array for vid, array in known.items()}
