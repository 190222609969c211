"""Invariant rows: equal rows have equal bits whatever the number of rows, since all numbers of rows get kernels of one numeric class.

Each op that adds up has one class, which depends on the op, its types, the length of its rows and the device; never on the region's
number of rows. It is chosen at the numbers of rows in ROWS, for dense operands. Rows of attention are queries, of one sequence or of
several, over any number of keys: a prompt and each token after it, with a cache of keys, have one class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

from ..device.spec import DeviceSpec
from ..errors import TypeInferenceError
from ..ops.schema import OpSchema, schema_of
from ..rows import RegionOp, RegionSpec
from ..rows.cores import core_of, reduction
from ..rows.reject import Reject
from ..rows.steps import steps_of
from ..types import Shape, TensorDesc, TensorSpec, i32
from .numerics import NumericClass
from .variant import KernelVariant

ROWS = (1, 3, 17, 64, 257, 1024, 4096)
ENTRIES = 8  # of a batch of products, each with a b of its own
CACHED = 1024  # keys of a cache that one query attends to
SEVERAL = 2  # the least size of an axis behind one that is added up: samples may be along it, and with one of them columns look like rows
CONDITION = "numerics"
SHOWN = 4  # classes in a refusal
Refuses = Callable[[KernelVariant], Reject | None]
Shapes = Sequence[Shape | None]


class Choices(Protocol):
    """A Selector, as far as classes need it.

    row_classes  what was found, by the last point of a region in ROWS
    class_times  microseconds of the best kernel of each numeric class that takes a region; `classless`: why the others have none
    free         the best kernel with fused numerics, whatever its class: (the kernel, microseconds); None if none takes the region
    """

    device: DeviceSpec
    row_classes: dict[RegionSpec, NumericClass | Reject]

    def class_times(self, region: RegionSpec) -> dict[NumericClass, float]: ...

    def classless(self, region: RegionSpec) -> Iterable[str]: ...

    def free(self, region: RegionSpec) -> tuple[KernelVariant, float] | None: ...


# --- a region of one op with another number of rows -----------------------------------------------------------------------


def resized(region: RegionSpec, rows: int) -> RegionSpec | Reject:
    """The region of one op with so many rows, over dense tensors.

    Rows of a product are those of a; if b has a batch, there are ENTRIES of them. Rows of a reduction, a softmax or a norm are
    the axes before those that it adds up, and those behind have SEVERAL elements at least; rows of attention the queries of a sequence, and
    of a convolution its images.
    """
    (op,) = region.ops
    schema, operands = schema_of(op.kind), _operands(region, op)
    shapes = [None if t is None else t.shape for t in operands]
    if schema.name == "gemm":
        found = [_product(op, shapes, rows)]
    elif schema.name == "gemm_codes":
        assert shapes[0] is not None
        found = [[(rows, shapes[0][-1]), *shapes[1:]]]
    elif schema.name == "convolution_channels_last":
        assert shapes[0] is not None
        found = [[(rows, *shapes[0][1:]), *shapes[1:]]]
    elif schema.name == "attention":
        ragged = len(operands) > 4 and operands[4] is not None
        return _attention(region, 1, rows, rows, lengths=ragged and not continues(region))
    elif (core := core_of(schema)) is not None and core.reduces:
        found = _reductions(region, op, shapes, rows)
    else:
        return Reject(CONDITION, f"which axes of {schema.name} are rows is not known")
    for new in found:
        made = _inferred(region, op, schema, operands, new)
        if made is not None:
            return made
    return Reject(CONDITION, f"{schema.name} can't have {rows} rows: its rule refuses the shapes")


def _product(op: RegionOp, shapes: Shapes, rows: int) -> list[Shape | None]:
    a, b, c, bias = (*shapes, None, None)[:4]
    assert a is not None and b is not None
    k = a[-2] if op.attrs["trans_a"] else a[-1]
    n = b[-2] if op.attrs["trans_b"] else b[-1]
    entries = (ENTRIES, *(1 for _ in b[3:])) if len(b) > 2 else ()
    matrix = (k, rows) if op.attrs["trans_a"] else (rows, k)
    per_row = bias is not None and bias not in ((1,), (n,))
    made: list[Shape | None] = [
        (*(entries if len(a) > 2 else ()), *matrix), (*entries, *b[-2:]),
        None if c is None else (*entries, rows, n), (rows,) if per_row else bias,
    ]  # fmt: skip
    return made[: len(shapes)]


def decoding(region: RegionSpec, sequences: int) -> RegionSpec | Reject:
    """Attention of one query of each of so many sequences to the keys of a cache."""
    return _attention(region, sequences, 1, CACHED, lengths=True)


def _attention(
    region: RegionSpec, sequences: int, queries: int, keys: int, lengths: bool
) -> RegionSpec | Reject:
    """Attention of so many queries of each sequence. Axes of a mask and of a bias that have one element keep it, but for those of the batch, and
    that of the queries if there is one query: whether all queries would share it is not known then."""
    (op,) = region.ops
    batch, sizes = (sequences,), (queries, keys)
    q, k, v, mask, _, bias = (*_operands(region, op), None, None, None)[:6]
    assert q is not None and k is not None and v is not None
    alone = q.shape[-2] == 1

    def of_scores(x: TensorDesc | None) -> Shape | None:
        if x is None:
            return None
        last = x.shape[-2:]
        repeats = [old == 1 and not (alone and axis == len(last) - 2) for axis, old in enumerate(last)]
        matrix = tuple(1 if one else size for one, size in zip(repeats, sizes[-len(last) :]))
        return (*(batch if len(x.shape) > 3 else ()), *x.shape[-3:-2], *matrix)

    shapes = [(*batch, x.shape[-3], n, x.shape[-1]) for x, n in ((q, queries), (k, keys), (v, keys))]
    of_each = TensorDesc.dense(TensorSpec(batch, i32, q.device)) if lengths else None
    operands = [q, k, v, mask, of_each, bias]
    made = _inferred(
        region, op, schema_of(op.kind), operands, [*shapes, of_scores(mask), batch, of_scores(bias)]
    )
    refused = f"attention can't have {sequences} sequences of {queries} queries: its rule refuses the shapes"
    return made or Reject(CONDITION, refused)


def continues(region: RegionSpec) -> bool:
    """Whether attention may also be of single queries to a cache: causal, without a mask or a bias from memory."""
    operands = _operands(region, region.ops[0])
    return bool(region.attrs["causal"]) and all(x is None for x in (*operands[3:4], *operands[5:]))


def _operands(region: RegionSpec, op: RegionOp) -> list[TensorDesc | None]:
    return [None if t < 0 else region.tensors[t] for t in op.inputs]


def _reductions(region: RegionSpec, op: RegionOp, shapes: Shapes, rows: int) -> list[list[Shape | None]]:
    """Readings of the operands' shapes: one of a rank below that of x may be a vector along the columns, or a column along the rows."""
    x = shapes[0]
    assert x is not None
    axes = _summed_axes(region, op)
    first = min(axes, default=len(x))
    new = tuple(
        (size if i in axes else max(size, SEVERAL)) if i >= first else rows if i == 0 else 1
        for i, size in enumerate(x)
    )

    def readings(shape: Shape | None) -> list[Shape | None]:
        if shape is None:
            return [None]
        if len(shape) == len(x):
            return [tuple(now if size == old else size for size, old, now in zip(shape, x, new))]
        return [shape, tuple(size for i, size in enumerate(new) if i not in axes)]

    return [list(one) for one in product(*(readings(shape) for shape in shapes))]


def _summed_axes(region: RegionSpec, op: RegionOp) -> tuple[int, ...]:
    """The axes of the first operand that an op adds up along: its own, or those of the first reduction among its steps."""
    if "axes" in op.attrs:
        return reduction(op, region.tensors).axes
    steps = steps_of(op, region.tensors)
    assert steps is not None
    tensors = [*region.tensors, *steps.between]
    for step in steps.ops:
        if step.kind.name.startswith("reduce_"):
            return reduction(step, tensors).axes
    return ()


def _inferred(
    region: RegionSpec, op: RegionOp, schema: OpSchema, operands: Sequence[TensorDesc | None], shapes: Shapes
) -> RegionSpec | None:
    """The op over dense operands of these shapes, with the flags of the region; None if its rule refuses them."""
    device = region.tensors[0].device
    specs = [
        None if t is None or shape is None else TensorSpec(shape, t.dtype, device)
        for t, shape in zip(operands, shapes)
    ]
    try:
        results = schema.infer(specs, op.attrs, device)
    except TypeInferenceError:
        return None
    descs = [None if spec is None else TensorDesc.dense(spec) for spec in specs]
    made = RegionSpec.single(op.kind, op.attrs, descs, [TensorDesc.dense(spec) for spec in results])
    return replace(made, strict=region.strict, invariant=region.invariant)


# --- the class of an op ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A region at which the class of an op is chosen: so many `rows`, or sequences."""

    count: int
    of: str
    region: RegionSpec | Reject


def points(region: RegionSpec) -> list[Point]:
    """Where the class of an op is chosen; the last one of ROWS stands for all regions of the op, its types and the length of its rows: there
    sizes that follow the rows differ from those of one element."""
    name = region.kind.name
    found = [
        Point(n, "queries of a sequence" if name == "attention" else "rows", resized(region, n)) for n in ROWS
    ]
    if name == "attention" and continues(region):
        found += [Point(n, "sequences of one query and a cache", decoding(region, n)) for n in ROWS]
    return found


def row_class(region: RegionSpec, selector: Choices) -> NumericClass | Reject:
    """The class of the rows of a region of one op that adds up, for any number of rows: of those that have a kernel at each point, the one
    whose greatest ratio to the time of the free choice is least. A Reject says where each class ends."""
    every = points(region)
    key = every[len(ROWS) - 1].region
    if isinstance(key, Reject):
        return key
    if key not in selector.row_classes:
        selector.row_classes[key] = _chosen(every, selector)
    return selector.row_classes[key]


def _chosen(every: Sequence[Point], selector: Choices) -> NumericClass | Reject:
    asked = [p.region for p in every]
    times = [selector.class_times(r) if isinstance(r, RegionSpec) else {} for r in asked]
    free = [selector.free(r) if isinstance(r, RegionSpec) else None for r in asked]
    reached = [n for n in range(len(asked)) if times[n] or free[n] is not None]  # no kernel has the others
    classes = dict.fromkeys(c for one in times for c in one)
    ratios = {
        c: max(times[n][c] / f[1] if (f := free[n]) else 1.0 for n in reached)
        for c in classes
        if all(c in times[n] for n in reached)
    }
    if ratios:
        return min(ratios, key=lambda c: (float(f"{ratios[c]:.9g}"), str(c)))
    return Reject(
        CONDITION, _without_class(every, {str(c): _ends(c, every, times) for c in classes}, selector)
    )


def _ends(numeric: NumericClass, every: Sequence[Point], times: Sequence[dict[NumericClass, float]]) -> str:
    """The points at which a class has no kernel."""
    ends: dict[str, list[str]] = {}
    for point, one in zip(every, times):
        if numeric not in one:
            ends.setdefault(point.of, []).append(str(point.count))
    return " and ".join(f"{', '.join(counts)} {of}" for of, counts in ends.items())


def _without_class(every: Sequence[Point], ends: dict[str, str], selector: Choices) -> str:
    """Why an op can't have rows of equal bits: each class and where it ends, or why the kernels have none."""
    one = every[len(ROWS) - 1].region
    assert isinstance(one, RegionSpec)
    if ends:
        tried = [f"{name} has no kernel for {where}" for name, where in sorted(ends.items())]
        more = f" and {len(tried) - SHOWN} more classes end" if len(tried) > SHOWN else ""
        return f"no numeric class of {one.kind} has kernels for all of {ROWS[0]} to {ROWS[-1]} rows: {'; '.join(tried[:SHOWN])}{more}"
    reasons = dict.fromkeys(selector.classless(one))
    return (
        f"no kernel of {one.kind} has a numeric class: {'; '.join(list(reasons)[:SHOWN]) or 'none takes it'}"
    )


def refuses(region: RegionSpec, selector: Choices) -> Refuses:
    """Of an invariant region: why a kernel that accepts it would give its rows other bits among other rows."""
    if not any(t.numel for t in region.results):
        return lambda variant: None
    cores = [op for op in region.ops if not schema_of(op.kind).is_map]
    wanted = {_core_class(region, op, selector) for op in cores}

    def of(variant: KernelVariant) -> Reject | None:
        found = variant.numeric_class(region, selector.device)
        if isinstance(found, Reject):
            return found
        for one in wanted:
            if isinstance(one, Reject):
                return one
            if one is None and found.order:
                return Reject(CONDITION, f"adds up ({found}), and what rows it has is not known")
            if one is not None and one != found:
                return Reject(CONDITION, f"is of class {found}; any number of rows gets {one}")
        return None

    return of


def _core_class(region: RegionSpec, op: RegionOp, selector: Choices) -> NumericClass | Reject | None:
    """The class of one op of a region; None of an op whose elements are results of their own."""
    alone = region.only(op)
    found = resized(alone, 1)
    return row_class(alone, selector) if isinstance(found, RegionSpec) else None


@dataclass(frozen=True)
class FreeChoice:
    """What an invariant region would run with fused numerics and whatever class.

    kernel   its id
    us       its time
    numeric  its class, or why it has none
    ratio    the time of the invariant choice to it
    """

    kernel: str
    us: float
    numeric: str
    ratio: float

    def __str__(self) -> str:
        return f"{percent(self.ratio)} against {self.kernel}, which {self.numeric}"


def free_choice(region: RegionSpec, us: float, choices: Choices) -> FreeChoice | None:
    """Of a region whose kernel takes so long; None if it is not invariant."""
    best = choices.free(region) if region.invariant else None
    if best is None:
        return None
    variant, free_us = best
    numeric = variant.numeric_class(replace(region, strict=False, invariant=False), choices.device)
    text = f"has no class: {numeric.reason}" if isinstance(numeric, Reject) else f"is of class {numeric}"
    return FreeChoice(variant.id, free_us, text, us / free_us if free_us else 1.0)


def percent(ratio: float) -> str:
    """`+12 %`, `-3 %`, `+0 %`: a price."""
    return f"{round(100 * (ratio - 1)) + 0:+d} %"


def hint_of(region: RegionSpec) -> str:
    """What to do where no class covers all numbers of rows."""
    kinds = {op.kind.name for op in region.ops}
    tries = (
        ['another policy or precision ("bf16", "tf32")']
        if kinds & {"gemm", "gemm_codes", "attention"}
        else []
    )
    tries += ["K padded to a multiple of 8"] if "gemm" in kinds else []
    tries += (
        ["sums over axes that are neighbours, after a transpose"]
        if any(k.startswith("reduce_") for k in kinds)
        else []
    )
    tries += ["a kernel of your own that declares `numerics`"]
    return f"{', or '.join(tries)}, may have one; without invariant=True all kernels count"
