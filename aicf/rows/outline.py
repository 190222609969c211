"""A RegionProgram without numbers: all that is read of a region, but sizes and strides. Regions of one form share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..ops.windows import transposed_windows, windows_of
from ..types import AttrPack, DType, Precision, TensorDesc, i64, numel, row_major
from .factors import Groups, around_gemm, around_reduction
from .index_map import Coordinate, IndexMap
from .program import (
    Apply,
    Bound,
    ColumnSums,
    CoreOp,
    Gemm,
    Load,
    Map,
    Reduction,
    RegionProgram,
    Shape,
    fold_rows,
)
from .region import RegionSpec
from .reject import Reject


class IndexedLoad(NamedTuple):
    """A Load of a tensor at an index map.

    operand   position in `region.operands`; None for the index of a point in the tensor's shape
    at        the index map: where, at each point of the domain
    bounds    what masks it
    in_order  `at` is one coordinate, the element's row-major position; the tensor is dense
    """

    operand: int | None
    tensor: int
    dtype: DType
    at: IndexMap
    bounds: tuple[Bound, ...] = ()
    in_order: bool = False

    @property
    def axes(self) -> set[int]:
        """Of the domain, that it moves along."""
        return {axis for coordinate in self.at for axis, _ in coordinate.terms}

    def load(self, tensors: Sequence[TensorDesc], rank: int) -> Load:
        desc = tensors[self.tensor]
        strides = desc.stride if self.operand is not None else row_major(desc.shape)
        strides = (1,) if self.in_order else strides
        steps = [0] * rank
        offset = 0
        for (start, terms), stride in zip(self.at, strides):
            offset += start * stride
            for axis, step in terms:
                steps[axis] += step * stride
        return Load(self.operand, self.dtype, tuple(steps), offset, self.bounds)


@dataclass(frozen=True)
class Position:
    """A Load of a coordinate of the domain's point."""

    at: Coordinate
    dtype: ClassVar[DType] = i64

    def load(self, tensors: Sequence[TensorDesc], rank: int) -> Load:
        steps = dict(self.at.terms)
        return Load(None, i64, tuple([steps.get(axis, 0) for axis in range(rank)]), self.at.start)


@dataclass(frozen=True)
class Extent:
    """A Load of a number: a tensor's size along an axis, or its stride."""

    tensor: int
    axis: int
    stride: bool = False
    dtype: ClassVar[DType] = i64

    def load(self, tensors: Sequence[TensorDesc], rank: int) -> Load:
        desc = tensors[self.tensor]
        return Load(None, i64, (0,) * rank, (desc.stride if self.stride else desc.shape)[self.axis])


@dataclass(frozen=True)
class Mask:
    """A Load of whether bounds hold."""

    bounds: tuple[Bound, ...]
    dtype: ClassVar[DType] = DType.bool

    def load(self, tensors: Sequence[TensorDesc], rank: int) -> Load:
        return Load(None, DType.bool, (0,) * rank, 0, self.bounds)


Source = IndexedLoad | Position | Extent | Mask


class MapOutline(NamedTuple):
    """A Map over the shape of a tensor. `factors`: of each of its axes, those that it is split into; None if none is."""

    domain: int
    core_results: int
    sources: tuple[Source, ...]
    applies: tuple[Apply, ...]
    dtypes: tuple[DType, ...]
    rounded: frozenset[int]
    stores: tuple[tuple[int, int], ...]
    core_input: int | None
    factors: tuple[Shape, ...] | None = None
    for_halves: bool = False

    def groups(self, tensors: Sequence[TensorDesc]) -> Groups:
        return self.factors or tuple([(size,) for size in tensors[self.domain].shape])

    def map(self, tensors: Sequence[TensorDesc]) -> Map:
        shape = tuple([size for group in self.groups(tensors) for size in group])
        loads = tuple([source.load(tensors, len(shape)) for source in self.sources])
        return Map(
            shape,
            self.core_results,
            loads,
            self.applies,
            self.dtypes,
            self.rounded,
            self.stores,
            self.core_input,
            self.for_halves,
        )


class Factor(NamedTuple):
    """a, b or c of a product: its tensor, -1 for none; and its position in `region.operands`."""

    tensor: int
    position: int | None
    transposed: bool = False

    def steps(self, tensors: Sequence[TensorDesc], batch: int) -> Shape:
        """Strides along a batch of so many axes, and along rows and columns; 0 where there is no tensor, or no axis."""
        if self.tensor < 0:
            return (0,) * (batch + 2)
        *outer, rows, columns = tensors[self.tensor].stride
        outer = outer or [0] * batch
        return (*outer, columns, rows) if self.transposed else (*outer, rows, columns)


class GemmOutline(NamedTuple):
    result: int
    a: Factor
    b: Factor
    c: Factor
    attrs: AttrPack

    def gemm(self, tensors: Sequence[TensorDesc]) -> Gemm:
        (*batch, m, n), attrs = tensors[self.result].shape, self.attrs
        a, b, c = self.a, self.b, self.c
        assert a.position is not None and b.position is not None
        return Gemm(
            m, n, tensors[a.tensor].shape[-2 if a.transposed else -1], tuple(batch), a.position, b.position,
            c.position, a.steps(tensors, len(batch)), b.steps(tensors, len(batch)),
            c.steps(tensors, len(batch)), attrs["alpha"], attrs["beta"],
            a.transposed, b.transposed, tensors[a.tensor].dtype, tensors[b.tensor].dtype,
            Precision(attrs["precision"]),
        )  # fmt: skip


class ConvolutionOutline(NamedTuple):
    """Channels last: the matrix of windows, (N and windows) x (places of a kernel, channels), times the kernel's transpose."""

    result: int
    x: Factor
    w: Factor
    attrs: AttrPack

    def gemm(self, tensors: Sequence[TensorDesc]) -> Gemm:
        (*batch, m, n), kernel = tensors[self.result].shape, tensors[self.w.tensor]
        assert self.x.position is not None and self.w.position is not None
        attrs = {
            name: tuple(self.attrs[name]) for name in ("strides", "dilation", "low", "high", "input_dilation")
        }
        k, dtype = numel(kernel.shape[1:]), tensors[self.x.tensor].dtype
        *outer, _ = row_major((*batch, m, k))
        return Gemm(
            m, n, k, tuple(batch), self.x.position, self.w.position, None, (*outer, 1), (*(0 for _ in batch), 1, k),
            (0,) * (len(batch) + 2), 1.0, 1.0, False, True, dtype, dtype, Precision.exact,
            windows_of(kernel.shape[1:-1], **attrs),
        )  # fmt: skip


class DataGradientOutline(NamedTuple):
    """A convolution's gradient, channels last: the matrix of windows over dy that reach each element of x, times the kernel with its places in
    reverse. `windows` are those over dy; of a strided convolution they have dy spread."""

    result: int
    dy: Factor
    w: Factor
    attrs: AttrPack

    def gemm(self, tensors: Sequence[TensorDesc]) -> Gemm:
        (*batch, m, n), w, dy = tensors[self.result].shape, tensors[self.w.tensor], tensors[self.dy.tensor]
        assert self.dy.position is not None and self.w.position is not None
        kernel, k = w.shape[1:-1], numel(w.shape[:-1])
        *outer, _ = row_major((*batch, m, k))
        return Gemm(
            m, n, k, tuple(batch), self.dy.position, self.w.position, None, (*outer, 1), (*(0 for _ in batch), n, 1),
            (0,) * (len(batch) + 2), 1.0, 1.0, False, False, dy.dtype, dy.dtype, Precision.exact,
            transposed_windows(kernel, tuple(self.attrs["sizes"]), dy.shape[1:-1], self.attrs),
        )  # fmt: skip


class CodesOutline(NamedTuple):
    """A product with b as rows of codes along k, of `bits` each, and their scales: what these make of it is the kernel's own."""

    result: int
    x: Factor
    w: Factor
    bits: int

    def gemm(self, tensors: Sequence[TensorDesc]) -> Gemm:
        *batch, m, n = tensors[self.result].shape
        assert self.x.position is not None and self.w.position is not None
        x, w = tensors[self.x.tensor], tensors[self.w.tensor]
        codes = 8 * w.dtype.itemsize // self.bits
        return Gemm(
            m, n, x.shape[-1], tuple(batch), self.x.position, self.w.position, None, self.x.steps(tensors, len(batch)),
            (*(0 for _ in batch), 1, w.stride[0] * codes), (0,) * (len(batch) + 2), 1.0, 1.0, False, True, x.dtype, w.dtype, Precision.exact,
        )  # fmt: skip


CoreOutline = GemmOutline | ConvolutionOutline | DataGradientOutline | CodesOutline | Reduction | CoreOp


class Outline(NamedTuple):
    core: CoreOutline | None
    before: MapOutline | None
    after: MapOutline
    epilogue_reduction: ColumnSums | None = None

    def program(self, region: RegionSpec) -> RegionProgram | Reject:
        tensors, core = region.tensors, self.core
        after = self.after.map(tensors)
        if not isinstance(core, GemmOutline | ConvolutionOutline | DataGradientOutline | CodesOutline):
            before = self.before.map(tensors) if self.before else None
            split = self.after.factors or (self.before and self.before.factors)
            if core is None or not split:
                return RegionProgram(core, before, after)
            if not isinstance(core, Reduction) or self.before is None or before is None:
                return Reject("domain", f"axes are split into {split} around a core that is no reduction")
            around = around_reduction(
                core, before, self.before.groups(tensors), after, self.after.groups(tensors)
            )
            return around if isinstance(around, Reject) else RegionProgram(*around)
        product = core.gemm(tensors)
        if self.after.factors is not None:
            rows = around_gemm(product, after, self.after.factors)
            if isinstance(rows, Reject):
                return rows
            product, after = rows
        product, after = fold_rows(product, after)
        if self.epilogue_reduction is not None and product.batch:
            found = f"{region.ops[-1].kind} is over a batch of {product.batch}"
            return Reject("domain", f"{found}, whose rows are not those of one matrix")
        return RegionProgram(product, None, after, self.epilogue_reduction)
