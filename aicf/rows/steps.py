"""Ops that expand: one op in the schedule, several in a region, where other ops' steps meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ..errors import AicfError, RegistryError
from ..ops import record
from ..ops.schema import OpSchema, schema_of
from ..ops.whose_line import definition, place, told
from ..types import AttrPack, OpKind, TensorDesc, TensorSpec
from .region import RegionOp, RegionSpec


class StepValue(NamedTuple):
    """A value of an expansion: its number among the tensors, and its type."""

    number: int
    spec: TensorSpec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> Any:
        return self.spec.dtype

    @property
    def rank(self) -> int:
        return self.spec.rank


class _StepEmitter:
    """What an expansion writes its ops with. Numbers become ops that make them."""

    def __init__(self, operands: tuple[TensorDesc | None, ...]) -> None:
        self.tensors: list[TensorDesc] = [d for d in operands if d is not None]
        self.ops: list[RegionOp] = []

    def __getattr__(self, kind: str) -> Any:
        if kind.startswith("_"):
            raise AttributeError(kind)
        return partial(self.op, kind)

    def op(self, kind: str, *operands: StepValue | float | None, **attrs: Any) -> Any:
        schema = schema_of(kind)
        typed = zip(schema.operands, operands)
        dtype = next((x.dtype for d, x in typed if isinstance(x, StepValue) and d.type.shared), None)
        given = [
            x if x is None or isinstance(x, StepValue) else self._constant(float(x), dtype) for x in operands
        ]
        specs = [None if x is None else x.spec for x in given]
        pack = schema.pack(schema.normalized(specs, attrs))
        made = [
            self._made(TensorDesc.dense(spec)) for spec in schema.infer(specs, pack, self.tensors[0].device)
        ]
        ins = tuple([-1 if x is None else x.number for x in given])
        self.ops.append(RegionOp(schema.kind, pack, ins, tuple([m.number for m in made])))
        return made[0] if len(made) == 1 else tuple(made)

    def _constant(self, value: float, dtype: Any) -> StepValue:
        return self.op("number", value=value, dtype=dtype)

    def _made(self, desc: TensorDesc) -> StepValue:
        self.tensors.append(desc)
        return StepValue(len(self.tensors) - 1, TensorSpec(desc.shape, desc.dtype, desc.device))


class _Expansion(NamedTuple):
    """Tensors are numbered: the op's operands that there are, and what is made; `results` are those of the op."""

    ops: tuple[RegionOp, ...]
    tensors: tuple[TensorDesc, ...]
    results: tuple[int, ...]


@lru_cache(maxsize=4096)
def _expansion(
    kind: OpKind, attrs: AttrPack, operands: tuple[TensorDesc | None, ...], schema_epoch: int
) -> _Expansion:
    schema, emit = schema_of(kind), _StepEmitter(operands)
    assert schema.expand_fn is not None
    numbers = iter(range(len(operands)))
    given = [
        None if d is None else StepValue(next(numbers), TensorSpec(d.shape, d.dtype, d.device))
        for d in operands
    ]
    given += [None] * (len(schema.declared(len(given))) - len(given))  # left out at the end
    try:
        made = schema.expand_fn(emit, *given, **schema.values(attrs))
    except AicfError as error:
        error.add_note(f"in the expansion of {kind}, {definition(schema.expand_fn)}")
        raise
    except Exception as error:
        raise RegistryError(
            f"the expansion of {kind} failed", where=place(error, schema.expand_fn), got=told(error),
            hint="write it with emit alone, emit.add(a, b) for a + b; docs/add-an-op.md shows one",
        ) from error  # fmt: skip
    results = made if isinstance(made, tuple) and not isinstance(made, StepValue) else (made,)
    _check_results(schema, attrs, [None if g is None else g.spec for g in given], results)
    return _Expansion(tuple(emit.ops), tuple(emit.tensors), tuple([r.number for r in results]))


def _check_results(
    schema: OpSchema, attrs: AttrPack, operands: list[TensorSpec | None], made: tuple[Any, ...]
) -> None:
    """What an expansion returns has the types that the op's rule says, or kernels would compute something else."""
    device = next((x.device for x in operands if x is not None), "cpu")
    expected = schema.infer(operands, attrs, device)
    got = [m.spec if isinstance(m, StepValue) else m for m in made]
    if list(expected) != got:
        raise RegistryError(
            f"the expansion of {schema.name} returns other types than its rule",
            expected=", ".join(map(str, expected)), got=", ".join(map(str, got)),
            where=definition(schema.expand_fn), hint="make the two agree; emit.convert and keepdims=True are what is missing most often",
        )  # fmt: skip


def expanded(region: RegionSpec) -> RegionSpec:
    """The region with steps in the place of the ops that expand. Its own tensors keep their numbers."""
    if not any(schema_of(op.kind).expand_fn for op in region.ops):
        return region
    known = region.__dict__.get("_expanded")
    if known is None or known[0] != record.schema_epoch:
        known = record.schema_epoch, _expanded(region)
        object.__setattr__(region, "_expanded", known)
    return known[1]


def _expanded(region: RegionSpec) -> RegionSpec:
    tensors, ops = list(region.tensors), list[RegionOp]()
    for op in region.ops:
        steps = steps_of(op, tensors)
        if steps is None or steps.again:
            ops.append(op)
            continue
        ops += steps.ops
        tensors += steps.between
    strict = region.strict and len(region.ops) > 1  # between the steps of one op nothing is rounded
    return replace(region, ops=tuple(ops), tensors=tuple(tensors), strict=strict)


class Steps(NamedTuple):
    """Of an op, among tensors: `between` are numbered after those; `again`: results that are another's value -> the other."""

    ops: tuple[RegionOp, ...]
    between: tuple[TensorDesc, ...]
    again: Mapping[int, int]


def steps_of(op: RegionOp, tensors: Sequence[TensorDesc]) -> Steps | None:
    """None of an op that does not expand."""
    if schema_of(op.kind).expand_fn is None:
        return None
    descs = tuple([None if t < 0 else tensors[t] for t in op.inputs])
    expansion = _expansion(op.kind, op.attrs, descs, record.schema_epoch)
    place = dict(enumerate([t for t in op.inputs if t >= 0]))
    again: dict[int, int] = {}
    for n, t in zip(expansion.results, op.outputs):  # results have the op's own tensors
        if place.setdefault(n, t) != t:
            again[t] = place[n]
    between = [n for n in range(len(expansion.tensors)) if n not in place]
    place.update((n, len(tensors) + i) for i, n in enumerate(between))
    ops = [
        RegionOp(
            step.kind,
            step.attrs,
            tuple([-1 if t < 0 else place[t] for t in step.inputs]),
            tuple([place[t] for t in step.outputs]),
        )
        for step in expansion.ops
    ]
    return Steps(tuple(ops), tuple([expansion.tensors[n] for n in between]), again)
