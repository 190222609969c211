"""Tensors of one number, of none that anybody wrote, and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....ir import Value
from ....types import DType, bool_, f32
from ..rules import Site, plain, rule
from ..types import Unsupported
from .strided import run_of


def filled(s: Site, value: Any) -> Value:
    number = plain(value, s.out.dtype)
    return s.ctx.fill(
        shape=s.out.shape, value=int(number) if s.out.dtype is bool_ else number, dtype=s.out.dtype
    )


rule("full")(lambda s, size, value, **how: filled(s, value))
rule("full_like")(lambda s, x, value, **how: filled(s, value))
rule("scalar_tensor")(lambda s, value, **how: filled(s, value))
rule("zeros", "zeros_like", "new_zeros")(lambda s, *of, **how: filled(s, 0))
# what nobody has written yet may be anything
rule("empty.memory_format", "empty_permuted", "empty_like", "new_empty")(lambda s, *of, **how: filled(s, 0))
rule("ones", "ones_like", "new_ones")(lambda s, *of, **how: filled(s, 1))
rule("new_full")(lambda s, x, size, value, **how: filled(s, value))
rule("fill.Scalar")(lambda s, x, value: filled(s, value))
rule("fill.Tensor")(lambda s, x, value: s.spread(s.cast(value, s.out.dtype), s.out.shape))


@rule("arange.start_step")
def _arange(s: Site, start: Any, end: Any, step: Any = 1, **how: Any) -> Value:
    dtype = s.out.dtype
    if not (isinstance(start, int) and isinstance(step, int)):
        return _range_of_floats(s, float(start), float(step))
    whole = dtype if dtype.kind == "int" else DType.i64
    y = s.ctx.iota(shape=s.out.shape, axis=0, dtype=whole)
    if step != 1:
        y = s.ctx.mul(y, step)
    if start != 0:
        y = s.ctx.add(y, start)
    return s.cast(y, dtype)


def _range_of_floats(s: Site, start: float, step: float) -> Value:
    """Computed in the type that PyTorch has on the device."""
    dtype = DType.f64 if s.ctx.device == "cpu" or s.out.dtype is DType.f64 else f32
    places = s.cast(s.ctx.iota(shape=s.out.shape, axis=0, dtype=DType.i64), dtype)
    return s.cast(s.ctx.add(s.ctx.mul(places, step), start), s.out.dtype)


rule("arange")(lambda s, end, **how: _arange(s, 0, end, **how))
rule("arange.start")(lambda s, start, end, **how: _arange(s, start, end, **how))


@rule("new_empty_strided")
def _strided(s: Site, x: Value, size: Sequence[int], stride: Sequence[int], **how: Any) -> Value:
    if run_of(size, stride) is None:
        raise Unsupported("memory that is not dense")
    return filled(s, 0)
