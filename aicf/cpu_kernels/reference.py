"""Any op by its NumPy reference: the oracle, run. It takes everything and is chosen where nothing faster is."""

from __future__ import annotations

import numpy as np

from ..ops.schema import ACCUMULATES, schema_of
from ..registry.cost import host_memory_us, one_launch, roofline
from ..registry.numerics import EXACT
from ..registry.variant import HostCall, Reject, no_class, one_op, variant
from ..rows.program import Gemm, Reduction, RegionProgram
from ..rows.read import read
from ..rows.rows import REDUCE
from ..types import DType
from .costs import walk_us

# What a reference costs before it does any work (np.errstate, the copy into the result), what each NumPy call in it
# adds, and how often its expression passes over the operands. Read off small ops on a 3 GHz x86 core.
START_US, CALL_US, PASSES = 4.0, 1.5, 3.0
RUN_US = 0.012  # where NumPy begins another row of a reduction
# Ops whose results are elements of an operand, or a number of the attributes
SELECTING = frozenset({"fill", "sort", "top_k", "cummax", "cummin"})
# An element from or to f32, by NumPy and by ml_dtypes.
CONVERT_US = {DType.f16: 1.3e-3, DType.bf16: 0.2e-3, DType.f8e4m3: 1.4e-2, DType.f8e5m2: 0.6e-2}


@variant("*", id="cpu.reference.v1", priority=-10, masked=True)
class Reference:
    """One op, one NumPy expression, with temporaries: several passes over memory. Floats compute in f32; what adds up in f64, so that its
    error does not grow with the length: NumPy adds along most axes one element after the other."""

    def accepts(region):
        yield one_op(region)
        if schema_of(region.kind).has_body:
            yield Reject("body", f"{region.kind} does what its body says: by the kernels of that")
        if region.attrs.get("ranks", 1) != 1:
            yield Reject("ranks", "a reference knows one rank alone")
        if schema_of(region.kind).reference_fn is None:
            yield Reject(
                "reference", f"{region.kind} has no reference: write one with @{region.kind}.reference"
            )

    def least(region, device):
        memory = host_memory_us(device, PASSES * region.nbytes) if schema_of(region.kind).is_map else 0.0
        return one_launch(region, device) + memory + START_US

    def numerics(region, device):
        arithmetic = region.kind.name not in SELECTING
        if arithmetic and any(t.dtype.kind == "float" for t in region.results):
            return no_class("NumPy decides in which order it computes floats")
        return EXACT

    def cost(region, device):
        program, passes = read(region), PASSES
        walk = walk_us(program.after) if isinstance(program, RegionProgram) and program.core is None else {}
        if isinstance(program, RegionProgram) and isinstance(program.core, Gemm):
            flops, calls, efficiency = program.core.flops, 6, 0.3
        else:
            each = schema_of(region.kind).flops
            flops, calls, efficiency = each * max(t.numel for t in region.results), min(each, 20), 0.05
            flops = _counted(region) or flops
        alone = schema_of(region.kind).core == REDUCE  # what expands to a reduction is not one to NumPy
        if (
            alone and isinstance(program, RegionProgram) and isinstance(program.core, Reduction)
        ):  # one pass, without temporaries
            (x,) = region.operands
            flops, passes = x.numel, 1.0
            if len(program.core.axes) < x.rank:
                walk = {"runs": x.numel / max(x.shape[-1], 1) * RUN_US}
        cost = roofline(device, bytes=passes * region.nbytes, flops=flops, efficiency=efficiency)
        converted = sum(CONVERT_US.get(t.dtype, 0.0) * t.numel for t in (*region.operands, *region.results))
        return cost.plus(
            start=START_US, calls=CALL_US * calls, **walk, **({"converting": converted} if converted else {})
        )

    def build(region, device):
        schema, positions = schema_of(region.kind), op_operands(region)
        attrs = schema.values(region.attrs)
        reference = schema.reference_fn
        assert reference is not None, schema.name
        wide = np.float64 if ACCUMULATES in schema.traits else np.float32  # computed in it, rounded once
        narrow = [_narrower(t.dtype, wide) for t in region.operands]

        def run(operands, results):
            given = [a.astype(wide) if n else a for a, n in zip(operands, narrow)]
            arrays = [None if p is None else given[p] for p in positions]
            with np.errstate(all="ignore"):  # NaN and Inf are values here, not warnings
                values = reference(*arrays, **attrs)
                for target, value in zip(results, values if isinstance(values, tuple) else (values,)):
                    np.copyto(target, value, casting="unsafe")

        return HostCall(run)


def _narrower(dtype, wide):
    """Whether a reference sees `wide` in the place of an element type."""
    return dtype.compute is not dtype or (dtype.kind == "float" and dtype.itemsize < np.dtype(wide).itemsize)


def _counted(region):
    """Flops of an op that counts them itself."""
    schema = schema_of(region.kind)
    if schema.count_fn is None:
        return 0
    operands = [None if p is None else region.operands[p] for p in op_operands(region)]
    return schema.count_fn(*operands, **schema.values(region.attrs))


def op_operands(region):
    """Where the one op's operands are among the region's, in its own order: None if left out, twice if taken twice."""
    where = {tensor: position for position, tensor in enumerate(region.inputs)}
    return [where[tensor] if tensor >= 0 else None for tensor in region.anchor.inputs]
