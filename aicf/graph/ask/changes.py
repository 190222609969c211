"""Small changes of a region: an extent, an element type, a layout, an alignment, a precision, fewer ops. Each is a region of its own,
typed anew by its ops' rules, so that selection can be asked of it as of any other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

from ...errors import AicfError
from ...ops.gemm import bias_kind
from ...ops.schema import VIEW, schema_of
from ...rows import RegionOp, RegionSpec
from ...rows.structure import structure
from ...types import AttrPack, DType, Precision, TensorDesc, TensorSpec, bf16, f16, f32, row_major

MULTIPLES = 2, 4, 8, 16, 32, 64, 128, 256
POWERS = tuple(2**n for n in range(17))
MANY = 12  # axes, operands, ops: of more, such as an optimizer's step over all parameters, not every choice is tried
TOGETHER = 3  # axes that change with one axis, at most: a, b, c and a bias share an extent
ALIGNMENTS = 4, 8, 16, 32, 64, 128, 256

Axis = tuple[int, int]  # of which operand of the region, which axis


@dataclass(frozen=True)
class RegionChange:
    """One step away from what was asked.

    subject  what it changes; two changes of one subject don't go together
    text     `k 100 → 104`
    how      what to write for it
    rest     regions that the other ops become, where this leaves some to kernels of their own
    """

    subject: str
    text: str
    how: str = ""
    rest: tuple[RegionSpec, ...] = ()

    def __str__(self) -> str:
        return self.text


Changed = tuple[RegionChange, RegionSpec]


def changes(region: RegionSpec, reason: str = "") -> Iterator[Changed]:
    """Those of layout and meaning first, then extents, the nearest first; fewer ops last. Numbers of a refusal's reason are tried as extents."""
    yield from _laid_out(region)
    yield from _precise(region)
    yield from _typed(region)
    for extent in extents(region):
        yield from sized(region, extent, _values(extent.size, reason))
    yield from _shortened(region)


# --- extents ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FreeExtent:
    """Axes of a region's operands that have one size."""

    name: str
    size: int
    axes: frozenset[Axis]


def sized(region: RegionSpec, extent: FreeExtent, values: Sequence[int]) -> Iterator[Changed]:
    """The region with this extent, of each of these sizes that its ops take."""
    for value in values:
        made = _resized(region, extent.axes, value)
        if made is not None:
            how = f"pad it with zeros to {value}" if extent.size < value < 2 * extent.size else ""
            yield RegionChange(f"extent {extent.name}", f"{extent.name} {extent.size} → {value}", how), made


@lru_cache(maxsize=1024)
def extents(region: RegionSpec) -> tuple[FreeExtent, ...]:
    """The extents that can be changed by themselves: each is the fewest axes of one size that the ops' rules let change together."""
    names = _names(region)
    found: list[FreeExtent] = []
    if len(region.operands) > MANY:
        return ()
    for i, operand in enumerate(region.operands):
        for axis, size in enumerate(operand.shape):
            at = (i, axis)
            if operand.numel > 1 and not any(at in e.axes for e in found):
                axes = _moving_with(region, at, size)
                if axes:
                    named = dict.fromkeys(names[a] for a in sorted(axes) if a in names)
                    found.append(FreeExtent(" = ".join(named) or f"axis {axis} of operand {i}", size, axes))
    return tuple(found)


def _moving_with(region: RegionSpec, at: Axis, size: int) -> frozenset[Axis] | None:
    others = [
        (i, axis)
        for i, t in enumerate(region.operands)
        for axis, extent in enumerate(t.shape)
        if extent == size and (i, axis) != at
    ]
    used = {extent for t in region.tensors for extent in t.shape}
    probe = next(n * max(size, 1) for n in range(2, 2 + len(used) + 1) if n * max(size, 1) not in used)
    for count in range(min(TOGETHER, len(others)) + 1):
        for more in combinations(others, count) if len(others) <= MANY else ():
            axes = frozenset({at, *more})
            if _resized(region, axes, probe) is not None:
                return axes
    whole = frozenset({at, *others})
    return whole if _resized(region, whole, probe) is not None else None


def _names(region: RegionSpec) -> Mapping[Axis, str]:
    """m, n, k and batch of a product that the region begins with."""
    if region.kind.name != "gemm":
        return {}
    place = {t: i for i, t in enumerate(region.inputs)}
    names: dict[Axis, str] = {}
    for t, flag, last in zip(region.anchor.inputs, ("trans_a", "trans_b"), (("m", "k"), ("k", "n"))):
        rank, i = len(region.tensors[t].shape), place[t]
        names.update({(i, axis): "batch" for axis in range(rank - 2)})
        order = last[::-1] if region.attrs[flag] else last
        names.update({(i, rank - 2): order[0], (i, rank - 1): order[1]})
    return names


def _resized(region: RegionSpec, axes: frozenset[Axis], value: int) -> RegionSpec | None:
    operands = list(region.operands)
    for i, axis in axes:
        shape = operands[i].shape
        operands[i] = _of_shape(operands[i], (*shape[:axis], value, *shape[axis + 1 :]))
    made = _with_operands(region, operands)
    return made if made is not None and _biases(made) == _biases(region) else None


def _biases(region: RegionSpec) -> list[str | None]:
    """How each bias meets its product: a length that is both m and n must not become the other one."""
    found: list[str | None] = []
    for op in region.ops:
        bias = (
            op.inputs[1]
            if op.kind.name == "bias_add"
            else (*op.inputs, -1, -1)[3]
            if op.kind.name == "gemm"
            else -1
        )
        if bias >= 0:
            found.append(bias_kind(region.tensors[bias].numel, *region.tensors[op.outputs[0]].shape[-2:]))
    return found


def _values(size: int, reason: str) -> list[int]:
    """Sizes to try, the nearest first: by ratio, since going from 64 to 128 is as far as to 32."""
    numbers = [int(n) for n in re.findall(r"\b\d{1,9}\b", reason)]
    found = {v for n in numbers for v in (n - 1, n, n + 1)} | set(POWERS)
    found |= (
        {-(-size // m) * m for m in MULTIPLES} | {size // m * m for m in MULTIPLES} | {size - 1, size + 1}
    )
    return sorted(
        {v for v in found if v > 0 and v != size}, key=lambda v: (max(v, size) / max(min(v, size), 1), -v)
    )


# --- layout -----------------------------------------------------------------------------------------------------------


def _laid_out(region: RegionSpec) -> Iterator[Changed]:
    for i, t in enumerate(region.operands):
        if not t.contiguous:
            made = _with_operand(region, i, replace(t, stride=row_major(t.shape)))
            if made is not None:
                yield RegionChange(f"layout {i}", f"operand {i} row-major", "feed a contiguous copy"), made
    least = min((t.alignment for t in region.tensors), default=256)
    for nbytes in (n for n in ALIGNMENTS if n > least):
        tensors = tuple([replace(t, alignment=max(t.alignment, nbytes)) for t in region.tensors])
        text = f"alignment {least} → {nbytes} bytes"
        yield (
            RegionChange("alignment", text, f"feed what begins at a multiple of {nbytes} bytes"),
            replace(region, tensors=tensors),
        )
    if region.kind.name == "gemm":
        yield from _transposed(region)


def _transposed(region: RegionSpec) -> Iterator[Changed]:
    """A product's operand, stored the other way round."""
    for position, name in enumerate("ab"):
        flag, t = f"trans_{name}", region.anchor.inputs[position]
        read_by = sum(t in op.inputs for op in region.ops) + region.anchor.inputs[:2].count(t)
        if read_by > 2 or t not in region.inputs:
            continue
        attrs = schema_of(region.kind).pack({**region.attrs, flag: not region.attrs[flag]})
        ops = (region.anchor._replace(attrs=attrs), *region.ops[1:])
        shape = region.tensors[t].shape
        i = region.inputs.index(t)
        turned = _of_shape(region.operands[i], (*shape[:-2], shape[-1], shape[-2]), dense=True)
        made = _with_operand(replace(region, ops=ops), i, turned)
        if made is not None:
            stored = "×".join(map(str, turned.shape))
            yield (
                RegionChange(
                    f"transpose {name}", f"{name} stored as {stored}", f"{flag}={not region.attrs[flag]}"
                ),
                made,
            )


# --- types and precision ----------------------------------------------------------------------------------------------


def _precise(region: RegionSpec) -> Iterator[Changed]:
    if region.strict:
        yield (
            RegionChange(
                "numerics", "numerics fused", "invariant=False" if region.invariant else 'numerics="fused"'
            ),
            replace(region, strict=False, invariant=False),
        )
    asked = [op.attrs["precision"] for op in region.ops if "precision" in op.attrs]
    if not asked or not any(t.dtype is f32 for t in region.operands):
        return
    for wanted in (Precision.exact, Precision.tf32x3, Precision.tf32):
        if asked[0] != wanted:
            ops = tuple([_of_precision(op, wanted) for op in region.ops])
            yield (
                RegionChange("precision", f"precision {wanted.name}", f'precision="{wanted.name}"'),
                replace(region, ops=ops),
            )


def _of_precision(op: RegionOp, wanted: Precision) -> RegionOp:
    if "precision" not in op.attrs:
        return op
    return op._replace(attrs=schema_of(op.kind).pack({**op.attrs, "precision": wanted}))


def _typed(region: RegionSpec) -> Iterator[Changed]:
    """All operands of a float type in another one."""
    for old in dict.fromkeys(t.dtype for t in region.operands):
        for new in (t for t in (bf16, f16, f32) if old in (f32, bf16, f16, DType.f64) and t is not old):
            made = _with_operands(
                region, [replace(t, dtype=new) if t.dtype is old else t for t in region.operands]
            )
            if made is not None:
                how = f'policy="{new}"' if old is f32 else f"inputs of {new}"
                yield RegionChange("type", f"{old} → {new}", how), made


# --- fewer ops --------------------------------------------------------------------------------------------------------


def _shortened(region: RegionSpec) -> Iterator[Changed]:
    """Without ops at its end, then each op by itself; but not views alone, which run nothing."""
    ops, n = region.ops, len(region.ops)
    for last in range(n - 1, 0, -1) if n <= MANY else (1,):
        kinds = [op.kind.name for op in ops[last:]]
        text = (
            f"without {' + '.join(kinds)}"
            if len(kinds) < 4
            else f"without {kinds[0]} and {len(kinds) - 1} ops more"
        )
        if not _views(ops[:last]):
            yield (
                RegionChange("ops", f"{text} behind it", rest=_parts(region, ops[last:])),
                _part(region, ops[:last]),
            )
    for i in range(1, n) if n <= MANY else ():
        if not _views(ops[i : i + 1]):
            rest = _parts(region, ops[:i], ops[i + 1 :])
            yield RegionChange("ops", f"{ops[i].kind} by itself", rest=rest), _part(region, (ops[i],))


def _views(ops: tuple[RegionOp, ...]) -> bool:
    return all(VIEW in schema_of(op.kind).traits for op in ops)


def _parts(region: RegionSpec, *runs: tuple[RegionOp, ...]) -> tuple[RegionSpec, ...]:
    return tuple([_part(region, run) for run in runs if run and not _views(run)])


def _part(region: RegionSpec, ops: tuple[RegionOp, ...]) -> RegionSpec:
    """Some ops, which leave what is read by others or outlives the region."""
    made = [t for op in ops for t in op.outputs]
    others = [op for op in region.ops if op not in ops]
    needed = {*region.outputs, *(t for op in others for t in op.inputs)}
    outputs = tuple(t for t in made if t in needed)
    return region.only(*ops, outputs=outputs or tuple(made))


# --- a region, made again ---------------------------------------------------------------------------------------------


def moved(region: RegionSpec, device: str) -> RegionSpec:
    """The same on another kind of device."""
    return replace(region, tensors=tuple([replace(t, device=device) for t in region.tensors]))


def _with_operand(region: RegionSpec, i: int, operand: TensorDesc) -> RegionSpec | None:
    return _with_operands(region, [operand if n == i else t for n, t in enumerate(region.operands)])


def _with_operands(region: RegionSpec, operands: Sequence[TensorDesc]) -> RegionSpec | None:
    """The ops on these operands, every type inferred again; None if a rule refuses them or the region becomes another structure."""
    tensors = list(region.tensors)
    for t, operand in zip(region.inputs, operands):
        tensors[t] = operand
    ops: list[RegionOp] = []
    for op in region.ops:
        schema = schema_of(op.kind)
        specs = [_spec(tensors[t]) if t >= 0 else None for t in op.inputs]
        try:
            attrs: AttrPack = schema.pack(schema.normalized(specs, op.attrs))
            results = schema.infer(specs, attrs, tensors[op.outputs[0]].device)
        except AicfError:
            return None
        for t, spec in zip(op.outputs, results):
            tensors[t] = replace(_of_shape(region.tensors[t], spec.shape), dtype=spec.dtype)
        ops.append(op._replace(attrs=attrs))
    made = replace(region, ops=tuple(ops), tensors=tuple(tensors))
    return made if made != region and structure(made) == structure(region) else None


def _spec(t: TensorDesc) -> TensorSpec:
    return TensorSpec(t.shape, t.dtype, t.device)


def _of_shape(t: TensorDesc, shape: tuple[int, ...], dense: bool = False) -> TensorDesc:
    """A descriptor of another shape, without gaps, its axes in the order in memory that they have."""
    if dense or t.contiguous or len(shape) != len(t.shape):
        return replace(t, shape=shape, stride=row_major(shape))
    order = sorted(range(len(shape)), key=lambda axis: -t.stride[axis])
    steps = row_major(tuple([shape[axis] for axis in order]))
    placed = dict(zip(order, steps))
    return replace(t, shape=shape, stride=tuple([placed[axis] for axis in range(len(shape))]))
