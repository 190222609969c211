"""Products whose second operand is fed, in plans of invariant rows: its columns become rows, which a numeric class covers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from ...ir import Op, Value
from ..emit.builder import GraphEmitter
from .flow import Flow


def fed_rows(ctx: GraphEmitter, wanted: Iterable[Value], fixed: Collection[int]) -> None:
    """Compute W @ x as (x^T @ W^T)^T where W is one of the fixed values and x is not: the samples are then rows of the first operand.

    wanted  what is returned, or differentiated
    """
    flow = Flow(ctx, wanted)
    for op in list(flow.graph.ops):
        if op.kind == "gemm" and flow.has(op) and op.inputs[0] in fixed and op.inputs[1] not in fixed:
            _exchange(flow, op)


def _exchange(flow: Flow, op: Op) -> None:
    """Exchange the operands of a product; one with two results or with a bias along its columns stays."""
    a, b, c, bias = ([None if vid < 0 else flow.value(vid) for vid in op.inputs] + [None, None])[:4]
    result = flow.result(op)
    m, n = result.shape[-2:]
    if len(op.outputs) != 1 or (bias is not None and bias.shape != (1,) and (bias.shape != (m,) or m == n)):
        return
    emit: Any = flow.ctx

    def across(value: Value) -> Value:
        axes = list(range(value.rank))
        made: Value = emit.transpose(value, perm=(*axes[:-2], axes[-1], axes[-2]))
        return made

    def make() -> list[tuple[Value, Value]]:
        turned = {"trans_a": not op.attrs["trans_b"], "trans_b": not op.attrs["trans_a"]}
        product = emit.gemm(b, a, None if c is None else across(c), bias, **{**op.attrs, **turned})
        return [(result, across(product))]

    flow.replace([(op, make)], lambda ops, results: True)
