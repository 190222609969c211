"""fp8 of pairs of numbers and back, at the level of LLVM: loads and stores of storage.py are made of them."""

from __future__ import annotations

from typing import Any

from ..dsl import ir
from .assemble import assemble

SINCE = 8, 9  # compute capability
KINDS = {"f8e4m3": "e4m3", "f8e5m2": "e5m2"}


def narrow_pair(b: Any, dtype: Any, low: Any, high: Any) -> Any:
    """Two f32 as 16 bits; what is too large, and infinity, is the greatest number. `cvt.rn.satfinite.e4m3x2.f32`, sm_89."""
    text = f"cvt.rn.satfinite.{KINDS[dtype.name]}x2.f32 $0, $2, $1;"
    return assemble(b, text, "=h,f,f", ir.IntType(16), [low, high])


def widen_pair(b: Any, dtype: Any, pair: Any) -> list[Any]:
    """16 bits as two f16. `cvt.rn.f16x2.e4m3x2`, sm_89."""
    both = assemble(b, f"cvt.rn.f16x2.{KINDS[dtype.name]}x2 $0, $1;", "=r,h", ir.IntType(32), [pair])
    halves = b.bitcast(both, ir.VectorType(ir.HalfType(), 2))
    return [b.extract_element(halves, ir.Constant(ir.IntType(32), i)) for i in range(2)]
