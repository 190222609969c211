"""What a region must give: fresh random operands, the ops' references one after the other, and how far a kernel may be off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...ops.draw import draw, plain
from ...ops.schema import OperandDecl, OpSchema, schema_of
from ...rows import RegionOp, RegionSpec, read
from ...types import DType

# Relative to an element and to its tensor's root mean square: some roundings of the type, and of a sum of few terms.
TOLERANCE = {
    DType.f32: 1e-5,
    DType.f16: 2e-3,
    DType.bf16: 1.6e-2,
    DType.f8e4m3: 0.13,
    DType.f8e5m2: 0.26,
    DType.f64: 1e-12,
}
PER_TERM = 1e-7  # more for each square root of a term that is summed up in f32
FP8_SUM = 2.0**-8  # more where tensor cores may sum products of fp8: they keep some 14 bits, for 128 of k
ROUNDINGS = 4.0  # how much further off than the ops one by one, each in its own type, a kernel may be


@dataclass(frozen=True)
class Trial:
    """One draw of operands with what the results must be.

    exact  by the ops' references, every float in f64
    apart  by the same in the tensors' own types, rounded after each op: how far off honest arithmetic gets
    """

    region: RegionSpec
    operands: tuple[np.ndarray, ...]
    exact: tuple[np.ndarray, ...]
    apart: tuple[np.ndarray, ...]

    @classmethod
    def draw(cls, region: RegionSpec, rng: np.random.Generator) -> Trial:
        operands = tuple(draw_operands(region, rng))
        wide = [
            a.astype(np.float64) if t.dtype.kind == "float" else a for a, t in zip(operands, region.operands)
        ]
        return cls(region, operands, _composed(region, wide), _composed(region, operands))

    def fault(self, results: Sequence[np.ndarray]) -> str | None:
        """What is wrong with a kernel's results, in words; None if nothing is."""
        for n, (got, exact, apart) in enumerate(zip(results, self.exact, self.apart)):
            dtype = self.region.results[n].dtype
            bad = _far(got, exact, apart, self._tolerance(dtype)) if dtype.kind == "float" else got != apart
            if dtype is DType.bool:
                bad = got.view(np.uint8) != apart.view(np.uint8)  # a bool of 255 is true, and no bool
            if bad.any():
                at = np.unravel_index(int(np.argmax(bad)), bad.shape)
                where = f" at {tuple(map(int, at))}" if at else ""
                return (
                    f"{int(bad.sum())} of {bad.size} elements of result {n} are wrong, the first{where}: "
                    f"{got[at]}, expected {exact[at]}"
                )
        return None

    def _tolerance(self, dtype: DType) -> float:
        sums = [op for op in self.region.ops if not schema_of(op.kind).is_map]
        terms = max((_terms(self.region, op.inputs, op.outputs) for op in sums), default=0.0)
        tensors, cut_off = self.region.tensors, 0.0
        if not self.region.strict and any(tensors[i].dtype.is_fp8 for op in sums for i in op.inputs[:1]):
            cut_off = FP8_SUM
        return TOLERANCE[dtype] + PER_TERM * terms**0.5 + cut_off


def jumps(region: RegionSpec) -> bool:
    """Whether a rounding error inside may change a result by a jump: then one draw of operands proves nothing wrong."""
    return any(read.jumps(op, region.tensors) for op in region.ops)


def _terms(region: RegionSpec, ins: Sequence[int], outs: Sequence[int]) -> float:
    """At most so many terms are summed for an element of the op's result."""
    read = [region.tensors[t] for t in ins if t >= 0]
    longest = max((max(t.shape, default=1) for t in read), default=1)
    return max(longest, max((t.numel for t in read), default=1) / max(region.tensors[outs[0]].numel, 1))


def draw_operands(
    region: RegionSpec, rng: np.random.Generator, most: float = math.inf
) -> Iterator[np.ndarray]:
    """Random values for each operand. Of one with more than `most` elements whose op accepts any values, the first `most`, in one dimension."""
    for tensor in region.inputs:
        desc = region.tensors[tensor]
        uses = [
            (schema_of(op.kind), op, n) for op in region.ops for n, t in enumerate(op.inputs) if t == tensor
        ]
        declared = [use for use in uses if _declaration(*use).parameter in use[0].domains]
        if not uses or (desc.numel > most and not declared):
            shape = desc.shape if desc.numel <= most else (int(most),)
            yield plain(desc.dtype, shape, rng).astype(desc.dtype.numpy)
            continue
        schema, op, n = (declared or uses)[0]
        shapes = [None if t < 0 else region.tensors[t].shape for t in op.inputs]
        decl = _declaration(schema, op, n)
        yield draw(schema, decl, desc.dtype, shapes, rng).astype(desc.dtype.numpy)


def _declaration(schema: OpSchema, op: RegionOp, n: int) -> OperandDecl:
    return schema.declared(len(op.inputs))[n]


def _composed(region: RegionSpec, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    known = dict(zip(region.inputs, operands))
    for op in region.ops:
        arrays = [known[t] if t >= 0 else None for t in op.inputs]
        known.update(zip(op.outputs, schema_of(op.kind).call_reference(arrays, op.attrs)))
    return tuple(known[t] for t in region.outputs)


def _far(got: np.ndarray, exact: np.ndarray, apart: np.ndarray, tolerance: float) -> np.ndarray:
    """Where a float result is further off than rounding explains."""
    got, exact, apart = (np.asarray(a, np.float64) for a in (got, exact, apart))
    with np.errstate(all="ignore"):
        off = np.where(np.isfinite(exact) & np.isfinite(apart), np.abs(exact - apart), 0.0)
        usual = _rms(np.where(np.isfinite(exact), exact, 0.0))
        allowed = tolerance * (np.abs(exact) + usual) + ROUNDINGS * (off + 2 * _rms(off))
        near = np.abs(got - exact) <= allowed
    same = _same(got, exact) | _same(got, apart)  # NaN, Inf, and what overflows a narrow type
    return ~(np.where(np.isfinite(exact) & np.isfinite(got), near, same))


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a == b) | (np.isnan(a) & np.isnan(b))


def _rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(a)))) if a.size else 0.0
