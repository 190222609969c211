"""Rules: what emits an ATen op. `@rule("add.Tensor")` takes a function (s, *args, **kwargs), whose tensors are Values by now, and whose
numbers, lists and dtypes are as in the graph. It returns a Value, or a tuple of them with None for what it can't give.

`s` is the place of the op: the emitter `s.ctx`, the type that the result has in PyTorch, `s.out`, and what rules have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import torch
from torch.fx import Node

from ...graph.emit.builder import GraphEmitter
from ...ir import Value
from ...ops import numbers
from ...registry.select import Selector
from ...types import DType, TensorSpec, f32
from .types import TORCH, Unsupported, dtype_of

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}
VIEWS: set[str] = set()  # names of the ops that only say how elements are read
HEAVY: set[str] = set()  # those worth a part of their own
STRIDES: set[str] = set()  # those that ask how their first operand lies in memory
SLOWER: dict[
    str, Callable[[Node, Selector | None], bool]
] = {}  # which calls PyTorch computes faster, and is left where it may


class Unread:
    """A result that nothing but PyTorch's own backward would read, in vain: zeros, if it leaves a part."""


UNREAD = Unread()


def rule(
    *names: str,
    view: bool = False,
    heavy: bool = False,
    strides: bool = False,
    slower: bool | Callable[[Node, Selector | None], bool] = False,
) -> Callable[[Rule], Rule]:
    """The rule of overloads, called as `aten` has them: "add.Tensor"; "relu" is "relu.default", "lib::op" that of another library.

    slower   whether PyTorch computes a call faster; asked with what selects aicf's kernels, None where it has none
    """

    def keep(function: Rule) -> Rule:
        for name in names:
            space, _, op = name.rpartition("::")
            full = f"{space or 'aten'}.{op if '.' in op else f'{op}.default'}"
            assert full not in _RULES, full
            _RULES[full] = function
            if view:
                VIEWS.add(full)
            if strides:
                STRIDES.add(full)
            if heavy:
                HEAVY.add(full)
            if slower:
                SLOWER[full] = slower if callable(slower) else lambda node, selector: True
        return function

    return keep


@cache
def rules() -> dict[str, Rule]:
    """All rules, by overload."""
    from . import aten

    for module in iter_modules(aten.__path__):
        import_module(f"{aten.__name__}.{module.name}")
    return _RULES


class Site:
    """One op of the graph while its rule emits it.

    out     the type of its result, or a list of those of several ones, None where it is no tensor
    used    which of several results anything reads; None: maybe all
    source  its first operand as PyTorch has it, with strides; for rules that say `strides`
    alone   whether nothing else reads its first operand
    scalars which operands are CPU scalars, and their types in PyTorch, which computes with them in f32 beside halves, as with a number
    """

    def __init__(
        self, ctx: GraphEmitter, out: Any, used: frozenset[int] | None = None, source: Any = None, alone: bool = False,
        scalars: Mapping[int, DType] | None = None,
    ) -> None:  # fmt: skip
        self.ctx, self._out, self.used, self.source, self.alone = ctx, out, used, source, alone
        self.scalars = scalars or {}

    @property
    def out(self) -> TensorSpec:
        assert isinstance(self._out, TensorSpec), self._out
        return self._out

    @property
    def outs(self) -> list[TensorSpec]:
        return self._out

    def reads(self, n: int) -> bool:
        """Whether anything reads the result of that number."""
        return self.used is None or n in self.used

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype is dtype else self.ctx.convert(x, dtype=dtype)

    def wide(self, x: Value) -> Value:
        """A half in f32: what PyTorch computes in."""
        return self.cast(x, f32) if x.dtype in (DType.f16, DType.bf16) else x

    def value(self, x: Any, dtype: DType) -> Value:
        """An operand in an element type, be it a number."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.ctx.constant(plain(x, dtype), dtype)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        return x if x.shape == tuple(shape) else self.ctx.reshape(x, shape=tuple(shape))

    def spread(self, x: Value, shape: Sequence[int]) -> Value:
        """Broadcast by NumPy's rule."""
        if x.shape == tuple(shape):
            return x
        first = len(shape) - x.rank
        keep = [axis for axis in range(x.rank) if x.shape[axis] == shape[first + axis]]
        squeezed = self.reshape(x, [x.shape[axis] for axis in keep])
        return self.ctx.broadcast_in_dim(
            squeezed, shape=tuple(shape), dims=tuple(first + axis for axis in keep)
        )

    def results(self, x: Value) -> tuple[Value, ...]:
        """All results of the op that made a Value, those for its gradient, too."""
        assert x.producer is not None
        return tuple(self.ctx.builder.graph.values[vid] for vid in x.producer.outputs)

    def together(self, *operands: Any) -> DType:
        """The element type that PyTorch computes operands in: its promotion of tensors and numbers."""
        found = [self._standing(x) for x in operands]
        return dtype_of(_promoted(found))

    def _standing(self, x: Any) -> Any:
        if isinstance(x, Value):
            # PyTorch tells tensors of no dimensions from others
            dtype = TORCH[self.scalars.get(x.vid, x.dtype)]
            return torch.empty((1,) * (x.rank > 0), dtype=dtype, device="meta")
        return x


def plain(number: Any, dtype: DType) -> Any:
    """A number as a type takes it: PyTorch lets 2 stand for 2.0, and True for 1."""
    if dtype.kind == "float":
        return float(number)
    if dtype.kind == "bool":
        return bool(number)
    if isinstance(number, float) and not number.is_integer():
        raise Unsupported(f"{number} in integers")
    return int(number)


def holds(dtype: DType, number: Any) -> bool:
    """Whether a float type has a number exactly, so that computing with it in that type rounds nothing."""
    if math.isnan(number) or math.isinf(number):
        return True
    return numbers.why_not(float(number), dtype) is None and float(dtype.numpy.type(number)) == float(number)


def _promoted(found: list[Any]) -> torch.dtype:
    dtype = torch.result_type(found[0], found[1]) if len(found) > 1 else found[0].dtype
    for other in found[2:]:
        dtype = torch.result_type(torch.empty((1,), dtype=dtype, device="meta"), other)
    return dtype


def axes_of(dim: Any, rank: int) -> tuple[int, ...]:
    """Axes of a reduction, from 0: none, or an empty list, is all."""
    if dim is None or dim == []:
        return tuple(range(rank))
    listed = [dim] if isinstance(dim, int) else list(dim)
    return tuple(sorted(d % rank if rank else 0 for d in listed)) if rank else ()


def axis_of(dim: int, rank: int) -> int:
    return dim % rank if rank else 0
