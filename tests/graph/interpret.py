"""Regions computed twice, point by point: as `rows.program` reads them, and op by op. Slow, and independent of kernels."""

from __future__ import annotations

import numpy as np

from aicf.ops.scalar import in_python
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.rows.program import Gemm, Map, Reduction, RegionProgram


def by_ops(region: RegionSpec, operands: list[np.ndarray]) -> list[np.ndarray]:
    """Every op's reference in order, each result in its tensor's type."""
    known = dict(zip(region.inputs, operands))
    for op in region.ops:
        given = [known[t] if t >= 0 else None for t in op.inputs]
        known.update(zip(op.outputs, schema_of(op.kind).call_reference(given, op.attrs)))
    return [known[t] for t in region.outputs]


def by_program(program: RegionProgram, region: RegionSpec, operands: list[np.ndarray]) -> list[np.ndarray]:
    """Maps and core as a kernel would run them; results of which nothing is written stay NaN or -1."""
    results = []
    for desc in region.results:
        results.append(
            np.full(desc.shape, np.nan if desc.dtype.kind == "float" else -1).astype(desc.dtype.numpy)
        )
    parts = (
        [program]
        if isinstance(program, RegionProgram)
        else [RegionProgram(None, None, part) for part in program]
    )
    for part in parts:
        core_input = _run(part.before, operands, results) if part.before else None
        core_input = _run(part.after, operands, results, _core(part.core, operands, core_input))
        if part.epilogue_reduction is not None:
            sums = results[part.epilogue_reduction.result]
            sums[...] = core_input.sum(axis=0).reshape(sums.shape)
    return results


def _core(
    core: Gemm | Reduction | None, operands: list[np.ndarray], core_input: np.ndarray | None
) -> np.ndarray | None:
    if isinstance(core, Reduction):
        how = {"sum": np.sum, "mean": np.mean, "max": np.max}[core.how]
        return how(core_input, axis=core.axes, keepdims=True)
    if isinstance(core, Gemm):
        a, b = (operands[p].astype(np.float64) for p in (core.a, core.b))
        product = core.alpha * (a.T if core.trans_a else a) @ (b.T if core.trans_b else b)
        return product if core.c is None else product + core.beta * operands[core.c]
    return None


def _run(
    m: Map, operands: list[np.ndarray], results: list[np.ndarray], core_result: np.ndarray | None = None
) -> np.ndarray:
    """Fills what the map stores; what it feeds to the core, over its domain."""
    core_input = np.empty(m.shape, np.float64)
    over = None if core_result is None else core_result.reshape(m.shape)
    for point in np.ndindex(m.shape):
        slots = [] if over is None else [_typed(m, 0, over[point])]
        for load in m.loads:
            at = load.offset + sum(p * s for p, s in zip(point, load.strides))
            value = np.int64(at) if load.operand is None else operands[load.operand].reshape(-1)[at]
            slots.append(_typed(m, len(slots), value))
        for function, ins, outs in m.expression.steps:
            made = in_python(function, np.float32)(*(slots[i] for i in ins))
            for slot, value in zip(outs, made if isinstance(made, tuple) else (made,)):
                assert slot == len(slots)
                slots.append(_typed(m, slot, value))
        for slot, position in m.stores:
            flat = results[position].reshape(-1)
            flat[np.ravel_multi_index(point, m.shape) if point else 0] = slots[slot]
        if m.core_input is not None:
            core_input[point] = slots[m.core_input]
    return core_input


def _typed(m: Map, slot: int, value):
    """As it is held: in the compute type, rounded to its own type first where that is asked for."""
    dtype = m.dtypes[slot]
    value = dtype.compute.numpy.type(value)
    return dtype.compute.numpy.type(dtype.numpy.type(value)) if slot in m.rounded else value
