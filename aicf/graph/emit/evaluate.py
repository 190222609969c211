"""A graph's values on the host, by the ops' references: for small graphs of numbers, such as a schedule; and how much of a model is
computed so while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import config
from ...ir import Graph, Op, Subgraph, Value
from ...ops.schema import schema_of
from ...types import TensorSpec

STEPS = 1 << 22  # of a model: some ten seconds of NumPy
FLOPS = 1 << 12  # that take about as long as the call of an op
ENDLESS = 1 << 62  # steps of a loop whose iterations data count


@dataclass
class FoldBudget:
    """What a model's constants may take while it is read: a file of a kilobyte can state constants of terabytes, and loops without end.

    limit   bytes of all results that are computed: AICF_FOLD_MB, and more where a model brings large weights
    nbytes  spent so far
    steps   spent so far: executions of ops, in each iteration of a loop, and arithmetic that takes as long
    """

    limit: int = field(default_factory=config.fold_bytes)
    nbytes: int = 0
    steps: int = 0

    def spend(self, nbytes: int, steps: int = 0) -> str:
        """Take so much; where that is more than what is left, nothing is taken, and the result says why."""
        if self.nbytes + nbytes > self.limit:
            return (
                f"{nbytes} bytes of constants would be computed while the model is read, and {max(self.limit - self.nbytes, 0)} "
                f"of {self.limit} are left: AICF_FOLD_MB sets the limit"
            )
        if self.steps + steps > STEPS:
            return f"its constants take {steps} steps to compute while the model is read, and {STEPS - self.steps} of {STEPS} are left"
        self.nbytes, self.steps = self.nbytes + nbytes, self.steps + steps
        return ""


def steps_of(
    kind: Any, operands: Sequence[TensorSpec | None], attrs: Mapping[str, Any], results: Iterable[TensorSpec]
) -> int:
    """The steps that an op's reference takes."""
    schema = schema_of(kind)
    if schema.name == "while_loop":
        return ENDLESS
    flops = (
        schema.count_fn(*operands, **attrs)
        if schema.count_fn
        else schema.flops * max((r.numel for r in results), default=0)
    )
    loops = attrs["length"] * executions(attrs["body"]) if schema.name == "scan" else 0
    return int(1 + loops + flops // FLOPS)


def executions(body: Subgraph) -> int:
    """Ops that one iteration executes, those of loops inside of it in each of theirs."""
    total = 0
    for op in body.ops:
        total += ENDLESS if op.kind == "while_loop" else 1
        if op.kind == "scan":
            inner = schema_of(op.kind).values(op.attrs)
            total += inner["length"] * executions(inner["body"])
    return total


def price_of(graph: Graph, op: Op) -> tuple[int, int]:
    """(bytes of an op's results, the steps of its reference)."""
    operands = [graph.values[vid].spec if vid >= 0 else None for vid in op.inputs]
    results = [graph.values[vid].spec for vid in op.outputs]
    return sum(r.nbytes for r in results), steps_of(op.kind, operands, op.attrs, results)


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
