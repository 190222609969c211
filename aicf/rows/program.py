"""What a region computes, in the form that kernels are built from: maps around at most one core, and maybe a fused epilogue reduction.

    before   a Map over the core's operand: elementwise work on the way into it
    core     a matrix product, a reduction, another op that a Core is declared for, or nothing
    after    a Map over the core's result, or the whole region if there is no core
    epilogue_reduction  of a GEMM: sums of the columns of `after`'s core input, such as a bias's gradient

A Map is a domain, loads, scalar functions in order, and stores. Every op that is a map (`OpSchema.is_map`) can be part of
one, whatever it is called: that is why a new op fuses with ops it never heard of. Kernels inline the scalar functions of
`Map.expression`. Regions are read by `read.py`, which also decides, once for all devices, what is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..lazy import lazy
from ..ops import record
from ..ops.scalar import bound_scalar
from ..ops.schema import OpSchema, schema_of
from ..ops.windows import Windows
from ..types import AttrPack, DType, OpKind, Precision, f32, numel, row_major

Shape = tuple[int, ...]


class Bound(NamedTuple):
    """What masks a load: an index that lies in an axis of its operand at some points only.

    The index is slot `slot`, or, divided, `slot / every`: where that leaves a rest, or the index is not in [0, size), the load
    has no element. Slots are earlier loads of the map, of i64 or i32: a coordinate, an operand of indices, a number.

    size    the slot of how many elements the axis has
    stride  the slot of its stride, which the load goes on by for each; None where the load's own strides take it there
    wraps   indices from -size to -1 count from the end
    """

    slot: int
    size: int
    stride: int | None = None
    every: int = 1
    wraps: bool = False

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.slot, self.size) if self.stride is None else (self.slot, self.size, self.stride)


class Load(NamedTuple):
    """A value that is read at each point of a domain: element `offset + sum(point * strides)` of an operand.

    operand  position in `region.operands`; None for that number itself (i64): the point as an index; None of bool: whether all
             bounds hold
    strides  in elements, one for each axis of the domain; 0 where the value is repeated
    bounds   masks it: where one does not hold nothing is read, and the value is 0
    """

    operand: int | None
    dtype: DType
    strides: Shape
    offset: int = 0
    bounds: tuple[Bound, ...] = ()


class Apply(NamedTuple):
    """One op on slots of a Map."""

    kind: OpKind
    attrs: AttrPack
    ins: tuple[int, ...]
    outs: tuple[int, ...]


@dataclass(frozen=True)
class Expression:
    """A Map's arithmetic alone: functions of scalars, called in order. Hashes by value; equal maps give equal functions.

    steps      (function with its attributes as defaults, argument slots, result slots)
    dtypes     of every slot; values are held in `dtype.compute`
    rounded    slots that are rounded to their dtype once they are made
    arguments  the first so many slots are given; the others are made by the steps
    results    slots to hand back, in order
    for_halves  a step whose results are halves may call functions that are as exact as halves need: the same ones in every kernel
    """

    name: str
    steps: tuple[tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]], ...]
    dtypes: tuple[DType, ...]
    rounded: frozenset[int]
    arguments: int
    results: tuple[int, ...]
    for_halves: bool = False


def expression_of(
    applies: Sequence[Apply], dtypes: tuple[DType, ...], rounded: frozenset[int], arguments: int, results: tuple[int, ...],
    for_halves: bool = False,
) -> Expression:  # fmt: skip
    """The arithmetic of ops on numbered slots, of which the first so many are given."""
    steps = []
    for apply in applies:
        types = tuple([dtypes[i] for i in apply.ins]), tuple([dtypes[i] for i in apply.outs])
        steps.append((_function(apply.kind, apply.attrs, *types, record.schema_epoch), apply.ins, apply.outs))
    name = "_".join(a.kind.name for a in applies) or "copy"
    return Expression(name, tuple(steps), dtypes, rounded, arguments, results, for_halves)


@lru_cache(maxsize=4096)
def _function(
    kind: OpKind, attrs: AttrPack, operands: tuple[DType, ...], results: tuple[DType, ...], schema_epoch: int
) -> Callable[..., Any]:
    """An op's scalar function on these types: asked for each pass of each prefix of a region."""
    schema = schema_of(kind)
    return bound_scalar(schema, _compute(schema, operands, results), attrs, operands)


def _compute(schema: OpSchema, operands: tuple[DType, ...], results: tuple[DType, ...]) -> DType:
    """The type that literals of an op's scalar function have: that of its shared operands."""
    if not schema.operands:
        return results[0].compute
    given = schema.access_fn is None and zip(schema.declared(len(operands)), operands)
    if not given:
        return operands[0].compute
    return next((dtype for d, dtype in given if d.type.shared), f32).compute


@dataclass(frozen=True)
class Map:
    """Slots are numbered: first the core result, if there is a core before it, then `loads`, then the results of `applies`."""

    shape: Shape
    core_results: int  # 0 or 1
    loads: tuple[Load, ...]
    applies: tuple[Apply, ...]
    dtypes: tuple[DType, ...]
    rounded: frozenset[int]
    stores: tuple[tuple[int, int], ...]  # (slot, position in region.results); dense, row-major over `shape`
    core_input: int | None = None  # the slot that the core takes, or the epilogue reduction
    for_halves: bool = False  # as of its expression

    @lazy
    def numel(self) -> int:
        return numel(self.shape)

    @lazy
    def flops(self) -> int:
        """Of one pass over the domain, as the ops declare them."""
        return self.numel * sum([schema_of(a.kind).flops for a in self.applies])

    @lazy
    def flat(self) -> bool:
        """Every load walks the domain as the stores do, or stays where it is: no coordinates are needed."""
        if any(load.bounds for load in self.loads):
            return False
        dense = row_major(self.shape)
        significant = _significant(self.shape, dense)
        for strides in {load.strides for load in self.loads} - {dense}:
            if any(strides) and _significant(self.shape, strides) != significant:
                return False
        return True

    def with_core_input_stored(self, position: int) -> Map:
        """The same map with a result more, at this position, its core input."""
        assert self.core_input is not None
        return replace(self, core_input=None, stores=(*self.stores, (self.core_input, position)))

    @lazy
    def expression(self) -> Expression:
        results = tuple(slot for slot, _ in self.stores) + (
            () if self.core_input is None else (self.core_input,)
        )
        return expression_of(
            self.applies,
            self.dtypes,
            self.rounded,
            self.core_results + len(self.loads),
            results,
            self.for_halves,
        )


class Gemm(NamedTuple):
    """alpha * op(a) @ op(b) + beta * c at each point of a batch; a, b and c are positions in `region.operands`.

    Batches that every tensor walks as one with its rows are rows here: m is then greater than that of the op.

    a_steps, b_steps, c_steps  strides in elements along (*batch, m, k), (*batch, k, n) and (*batch, m, n), 0 where a tensor
                               is the same for all of a batch
    dtype, b_dtype             of a and b; the product's is that of what it carries to the map, and c's too
    precision                  how far f32 operands may be rounded
    windows                    of a convolution, whose a is the matrix of all windows of an operand, a row each, as if it were in memory
    """

    m: int
    n: int
    k: int
    batch: Shape
    a: int
    b: int
    c: int | None
    a_steps: Shape
    b_steps: Shape
    c_steps: Shape
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    dtype: DType
    b_dtype: DType
    precision: Precision
    windows: Windows | None = None

    @property
    def count(self) -> int:  # type: ignore[override]
        """Products of m x k by k x n."""
        return numel(self.batch)

    @property
    def flops(self) -> int:
        return 2 * self.count * self.m * self.n * self.k


@dataclass(frozen=True)
class Reduction:
    """sum, mean, prod, max or min of `before`'s core input over axes of its domain."""

    how: str
    axes: tuple[int, ...]
    dtype: DType  # of its operand and result


def worst(how: str, dtype: DType) -> Any:
    """What a max or min of nothing is, and begins with: the least or greatest value, in the compute type."""
    kind, sign = dtype.compute.numpy.type, -1 if how == "max" else 1
    if dtype.kind == "float":
        return kind(sign * np.inf)
    info = np.iinfo(kind)
    return kind(info.min if how == "max" else info.max)


class CoreOp(NamedTuple):
    """Any other core: one op, as its kernel finds it. The operand that `before` makes is that map's core input, over its shape; the first
    result is handed to `after`, whose shape it has.

    operands  positions in `region.operands`; None for one that is left out, or that `before` makes
    results   (the op's result, position in `region.results`) of those beyond the first that leave
    """

    kind: OpKind
    attrs: AttrPack
    operands: tuple[int | None, ...]
    results: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ColumnSums:
    """Sums over the rows of a matrix: a result of its own, dense, with an element for each column."""

    result: int  # position in `region.results`
    dtype: DType  # of its operand and result


class RegionProgram(NamedTuple):
    core: Gemm | Reduction | CoreOp | None
    before: Map | None
    after: Map
    epilogue_reduction: ColumnSums | None = None

    @property
    def flops(self) -> int:
        """Of the maps; a core's are its own."""
        return self.after.flops + (self.before.flops if self.before else 0)

    @property
    def loads(self) -> tuple[Load, ...]:
        return (*(self.before.loads if self.before else ()), *self.after.loads)


def _significant(shape: Shape, strides: Shape) -> Shape:
    return tuple([s for s, size in zip(strides, shape) if size != 1])


def collapse(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """The same walk with fewer axes: sizes of 1 go, and neighbours that every operand walks as one are merged."""
    axes: list[tuple[int, Shape]] = []
    for size, steps in zip(shape, zip(*strides) if strides else [()] * len(shape)):
        if size == 1:
            continue
        if axes and axes[-1][1] == tuple([step * size for step in steps]):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    axes = axes or [(1, (0,) * len(strides))]
    return tuple([size for size, _ in axes]), list(zip(*[steps for _, steps in axes]))


def fold_rows(gemm: Gemm, after: Map) -> tuple[Gemm, Map]:
    """The same product with fewer axes in its batch: neighbours that every tensor walks as one are merged, the innermost
    with m if b is the same for all of it. A batch of one is none; an empty one has no rows and
    no depth."""
    if not gemm.batch:
        return gemm, after
    sizes = [*gemm.batch, gemm.m]
    tensors = gemm.a_steps, gemm.b_steps, gemm.c_steps, *(load.strides for load in after.loads)
    walks = [[steps[axis] for steps in tensors] for axis in range(len(sizes))]
    walks[-1][1] = 0  # b has no rows
    if 0 in gemm.batch:
        sizes, walks = [0], walks[-1:]
    axis = len(sizes) - 2
    while axis >= 0:
        outer, inner, size = walks[axis], walks[axis + 1], sizes[axis + 1]
        joined = [b if sizes[axis] == 1 else a if size == 1 else b for a, b in zip(outer, inner)]
        whole = 1 in (sizes[axis], size) or all(a == b * size for a, b in zip(outer, inner))
        if whole and (axis < len(sizes) - 2 or sizes[axis] == 1 or outer[1] == 0):
            sizes[axis : axis + 2], walks[axis : axis + 2] = [sizes[axis] * size], [joined]
        axis -= 1
    *batch, m = sizes
    a, b, c, *others = zip(*walks)
    moved = gemm._replace(
        m=m,
        k=gemm.k if all(gemm.batch) else 0,  # a and b are empty
        batch=tuple(batch),
        a_steps=(*a, gemm.a_steps[-1]),
        b_steps=(*b[:-1], *gemm.b_steps[-2:]),
        c_steps=(*c, gemm.c_steps[-1]),
    )
    loads = [load._replace(strides=(*steps, load.strides[-1])) for load, steps in zip(after.loads, others)]
    return moved, replace(after, shape=(*batch, m, after.shape[-1]), loads=tuple(loads))
