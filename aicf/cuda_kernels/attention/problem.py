"""What an attention region is, forward or a gradient: sizes, tensors by name, masks; the checks and arguments that kernels share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ...ops.attention import scale_of
from ...ops.schema import schema_of
from ...registry.variant import Checks, In, Num, NumericClass, Out, Reject, TensorMap, at_least, at_most, cdiv
from ...rows import RegionSpec
from ...rows.program import collapse
from ...types import DType, TensorDesc, bf16, f16, f32, i32, numel
from ..hopper.units import ATOM

UNLIMITED = 2**30  # keys after or before a query, where there is no limit
SMALLEST_SCALE = 1e-30  # times log2(e) a normal f32: products of zeros or subnormals with -inf are NaN
LOG2E = 1.4426950408889634
BATCH = 3  # axes of a batch along which a mask or a bias may have any strides
EXTENT = 2**29  # of queries and keys for tensor cores: positions, and distances between them, are i32
OPTIONAL = "mask", "lengths", "bias"  # operands that may be left out
OF_ROWS = "dout", "q", "k", "v", "out", "dq", "dk", "dv"  # tensors that are matrices of rows of d or dv


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """Queries of `group` heads that share keys are rows of one problem, head after head.

    queries, keys, d, dv  of a head
    batch_heads, heads    heads of keys: of a batch entry, and of all
    ahead, behind         how many keys after and before its position a query attends to; query i is at position i + keys - queries
    tensors               the op's operands and results by name, without those left out, each with a pointer to it
    """

    queries: int
    keys: int
    batch_heads: int
    group: int
    heads: int
    d: int
    dv: int
    ahead: int
    behind: int
    scale: float
    softcap: float
    tensors: dict[str, tuple[TensorDesc, In | Out]]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> TensorDesc:
        return self.tensors[name][0]

    @property
    def rows(self) -> int:
        return self.group * self.queries

    @property
    def query_heads(self) -> int:
        return self.heads * self.group

    @property
    def widest(self) -> int:
        return max(self.d, self.dv)

    @property
    def dtype(self) -> DType:
        return self["q"].dtype

    @property
    def form(self) -> tuple[DType, bool, bool, bool, DType | None]:
        """The fields of an `AttentionForm` that all kernels' forms share."""
        bias = self["bias"].dtype if "bias" in self else None
        return self.dtype, bool(self.softcap), "mask" in self, "lengths" in self, bias

    @property
    def scales_after_maxima(self) -> bool:
        """Whether a kernel may scale scores after their maxima: the order is the same, and a masked score stays -inf."""
        return self.scale >= SMALLEST_SCALE

    def per_query_head(self) -> AttentionProblem:
        """With query heads as heads of their own."""
        return replace(self, batch_heads=self.batch_heads * self.group, group=1, heads=self.query_heads)

    def tiles(self, rows: int, columns: int, minimum: int = 0) -> int:
        """Tiles of scores, of one head of keys, that masks of positions leave; `minimum`: of each tile of rows."""
        count, offset = 0, self.keys - self.queries
        for first in range(0, self.rows, rows):
            last = min(first + rows, self.rows) - 1
            low, high = first % self.queries, last % self.queries
            if first // self.queries != last // self.queries:
                low, high = 0, self.queries - 1
            begin, end = max(low + offset - self.behind, 0), min(high + offset + self.ahead, self.keys - 1)
            count += max(minimum, end // columns - begin // columns + 1)
        return count

    # --- arguments ----------------------------------------------------------------------------------------------------

    def at(self, *names: str) -> tuple[In | Out, ...]:
        return tuple(self.tensors[name][1] for name in names)

    def optional(self, *names: str) -> tuple[tuple[In | Out, ...], ...]:
        """A tuple for each of these operands, empty for one that is left out."""
        return tuple(self.at(name) if name in self else () for name in names)

    def inputs(self) -> tuple[In | Out, ...]:
        """Pointers to the op's operands in its order, without those that may be left out."""
        return tuple(
            at for name, (_, at) in self.tensors.items() if isinstance(at, In) and name not in OPTIONAL
        )

    def numbers(self, tiles: int, parts: int, *scales: float) -> tuple[tuple[Num, ...], ...]:
        """Sizes, grid, limits, scales (of scores, the softcap, and more), strides of mask and of bias."""
        return (
            ints(self.queries, self.keys, self.batch_heads, self.group, self.heads, self.d, self.dv),
            ints(max(1, tiles), parts),
            ints(self.ahead, self.behind),
            tuple(Num(x, f32) for x in (self.scale, self.softcap, *scales)),
            *self.mask_numbers(),
        )

    def mask_numbers(self) -> tuple[tuple[Num, ...], ...]:
        """`mask_strides` of mask and bias, where `mask_checks` accepts them."""
        mask, bias = (mask_strides(self, name) for name in ("mask", "bias"))
        assert not isinstance(mask, Reject) and not isinstance(bias, Reject)
        return mask, bias


def ints(*numbers: int) -> tuple[Num, ...]:
    return tuple(Num(n, i32) for n in numbers)


@lru_cache(maxsize=256)
def problem(region: RegionSpec) -> AttentionProblem:
    """The region's first op, forward or a gradient, read once."""
    op, schema = region.anchor, schema_of(region.kind)
    inputs = {d.name: t for d, t in zip(schema.operands, op.inputs) if t >= 0}
    tensors: dict[str, tuple[TensorDesc, In | Out]] = {
        name: (region.tensors[t], In(region.inputs.index(t))) for name, t in inputs.items()
    }
    tensors |= {name: (t, Out(i)) for i, (name, t) in enumerate(zip(schema.results, region.results))}
    q, k, v = (tensors[name][0] for name in "qkv")
    heads, window = k.shape[-3], op.attrs["window"]
    return AttentionProblem(
        queries=q.shape[-2], keys=k.shape[-2], batch_heads=heads, group=q.shape[-3] // max(heads, 1),
        heads=numel(k.shape[:-2]), d=q.shape[-1], dv=v.shape[-1], ahead=0 if op.attrs["causal"] else UNLIMITED,
        behind=min(window - 1, UNLIMITED) if window else UNLIMITED, scale=scale_of(op.attrs["scale"], q.shape[-1]),
        softcap=op.attrs["softcap"], tensors=tensors,
    )  # fmt: skip


def class_in_order(compute: str, columns: int) -> NumericClass:
    """Of kernels whose tiles of `columns` keys begin at multiples of that, the first one first, with a running maximum that begins at -inf.

    A tile whose keys are all hidden from a query changes none of its bits: before its own tiles its sums are 0 and multiplied by 2^-inf, behind them they are
    multiplied by 1, and 0 is added. So neither the number of keys nor that of queries is part of it.
    """
    return NumericClass(compute, columns, "at a time, in order")


# --- masks and biases -------------------------------------------------------------------------------------------------


def score_strides(p: AttentionProblem, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The scores' shape, and the strides of a mask or a bias along it: 0 where it is repeated."""
    x, shape = p[name], (*p["q"].shape[:-1], p.keys)
    strides = [0 if extent == 1 else stride for extent, stride in zip(x.shape, x.stride)]
    return shape, (*(0,) * (len(shape) - x.rank), *strides)


def mask_strides(p: AttentionProblem, name: str) -> tuple[Num, ...] | Reject:
    """Of a mask or a bias, as `mask_rows` has them: extents of the batch's last two axes; strides along its three, heads, queries and keys."""
    if name not in p:
        return ()
    shape, strides = score_strides(p, name)
    batch, (along,) = collapse(shape[:-3], [strides[:-3]])
    more = BATCH - len(batch)
    if more < 0:
        return Reject(
            name, f"{name} goes along a batch of {shape[:-3]} by steps of {strides[:-3]}: as {len(batch)} axes, at most {BATCH} are taken"
        )  # fmt: skip
    extents = ((1,) * more + batch)[1:]
    return (*ints(*(max(n, 1) for n in extents)), *(Num(s) for s in (*(0,) * more, *along, *strides[-3:])))


def mask_checks(p: AttentionProblem) -> Checks:
    for name in ("mask", "bias"):
        strides = mask_strides(p, name)
        yield strides if isinstance(strides, Reject) else None


# --- tensor cores -----------------------------------------------------------------------------------------------------


class Matrix(NamedTuple):
    """A tensor of `OF_ROWS`: rows of `d` halves of the heads of a batch; pitches: bytes from one row, head and batch entry to the next."""

    extents: tuple[int, int, int, int]
    pitches: tuple[int, int, int]

    @property
    def steps(self) -> tuple[Num, ...]:
        """Elements from one row, head and batch entry to the next."""
        return tuple(Num(pitch // 2) for pitch in self.pitches)


def matrix(p: AttentionProblem, name: str, alignment: int) -> Matrix | Reject:
    """The tensor in any strides, with pointers and rows at multiples of `alignment` bytes."""
    t = p[name]
    if t.alignment < alignment:
        return Reject("aligned", f"{name} is aligned to {t.alignment} bytes, needs {alignment}")
    *batch, heads, rows, d = t.shape
    *batch_strides, head_stride, row_stride, stride = t.stride
    if stride != 1 and d > 1:
        return Reject("rows", f"{name} is {t}, needs rows of neighbours")
    axes, (along,) = collapse(tuple(batch), [tuple(batch_strides)])
    if len(axes) > 1:
        return Reject("batch", f"{name} is {t}, needs a batch of equal steps")
    row_bytes = (
        cdiv(d * t.dtype.itemsize, alignment) * alignment
    )  # for extents of one, whose strides mean nothing
    strides = ((rows, row_stride), (heads, head_stride), (axes[0], along[0]))
    row, head, entry = (s * t.dtype.itemsize if extent > 1 else row_bytes for extent, s in strides)
    if any(pitch % alignment or pitch <= 0 for pitch in (row, head, entry)):
        return Reject(
            "rows",
            f"{name} is {t}, needs rows, heads and batch entries at multiples of {alignment} bytes, one after the other",
        )
    return Matrix((d, rows, heads, axes[0]), (row, head, entry))


def matrices(p: AttentionProblem, alignment: int, *names: str) -> tuple[Matrix, ...]:
    """Of a problem that `matrix_checks` accepts: the tensors by name, or all in the op's order."""
    some = [matrix(p, name, alignment) for name in names or filter(OF_ROWS.__contains__, p.tensors)]
    assert not any(isinstance(m, Reject) for m in some)
    return tuple(m for m in some if isinstance(m, Matrix))


def tensor_map(p: AttentionProblem, name: str, rows: int, alignment: int) -> TensorMap:
    """A tensor map with boxes of 64 columns and `rows` rows."""
    (m,), (t, at) = matrices(p, alignment, name), p.tensors[name]
    return TensorMap(at, t.dtype, m.extents, m.pitches, (ATOM, rows, 1, 1))


def matrix_checks(p: AttentionProblem, alignment: int) -> Checks:
    for name in p.tensors:
        if name in OF_ROWS:
            made = matrix(p, name, alignment)
            yield made if isinstance(made, Reject) else None


def halves_checks(region: RegionSpec) -> Checks:
    """The element types that tensor cores multiply."""
    for name, (t, _) in problem(region).tensors.items():
        if name in OF_ROWS and t.dtype not in (f16, bf16):
            yield Reject("dtype", f"{name} is {t.dtype}, tensor cores multiply weights of f16 or bf16")
    if region.one_sum:
        yield Reject(
            "strict", "weights are rounded to halves before they multiply v; strict takes sums in f32"
        )


def extent_checks(p: AttentionProblem, widest: int) -> Checks:
    """No extent is 0, head sizes are at most `widest`, and i32 holds positions."""
    yield at_most("head size", p.widest, widest)
    yield at_least("least extent", min(p.queries, p.keys, p.heads, p.d, p.dv), 1)
    yield at_most("greatest extent", max(p.queries, p.keys), EXTENT)
