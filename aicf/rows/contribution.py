"""What an op brings to the attribute rows of a region: derived from its schema, so that a new op fills them by itself."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..ops.schema import LINEAR, MAP, VIEW, OpSchema, schema_of
from ..types import ActKind, DType, TensorDesc, f32
from .cores import core_of, epilogue_reduction_of
from .read import jumps
from .region import RegionOp
from .rows import Around, Attributes, CoreName, Domain, Effect

NO_OTHERS: Mapping[int, int] = MappingProxyType({})


def contribution(
    op: RegionOp,
    tensors: tuple[TensorDesc, ...],
    made: Collection[int],
    escaping: int = 0,
    sync: bool = False,
    strict: bool = False,
    storage: Mapping[int, int] = NO_OTHERS,
    before: Sequence[RegionOp] = (),
) -> Attributes:
    """The rows of one op. Tensors are known by their place in the region's `tensors`.

    made      those that earlier ops of the region make
    escaping  how many values of the region outlive it, were it to end here
    sync      nothing may be fused across the point before this op
    storage   of operands that share storage with others of the region: the one that stands for all
    before    the ops of the region so far
    """
    schema = schema_of(op.kind)
    given = [t for t in op.inputs if t >= 0]
    own = [t for t in given if t in made]
    reads = bool(own)
    rounds = strict or op.kind.name == "convert" or jumps(op, tensors)
    scattered, access = _reads(schema, op, tensors)
    if not schema.is_map:  # a core reads until it is done, and so do the maps before it
        scattered |= set(range(len(tensors))).difference(made, op.outputs)
    scattered |= _sources(scattered.intersection(made), before)
    rows: dict[str, Any] = {
        "program": (op.kind.name,),
        "slot": schema.core,
        "linearity": "linear" if LINEAR in schema.traits else "nonlinear",
        "domain": _domain(schema, op, tensors, reads),
        "access": access,
        "dtype": (_compute(schema, op, tensors), reads),
        "round": "must" if rounds else "free",
        "avail": min([tensors[t].alignment for t in (*given, *op.outputs) if t not in own], default=256),
        "escape": escaping,
    }
    if schema.core != MAP:
        core = core_of(schema)
        behind = frozenset() if strict else epilogue_reduction_of(op, tensors)  # strict: one order of adding
        rows["core"] = CoreName(op.kind.name, schema.core, core is not None and core.reduces, behind)
    if around := _around(schema):
        rows["epilogue"] = around
    if storage:
        scattered = frozenset([storage.get(t, t) for t in scattered])
    written = [op.inputs[operand] for operand, how in schema.alias.values() if how == "must"]
    writes = frozenset([storage.get(t, t) for t in written])
    rng = "rng" in [d.name for d in schema.operands]
    if writes or scattered or rng or sync:
        rows["effects"] = Effect(writes, scattered, rng, sync, "" if schema.is_map else op.kind.name)
    return rows


def together(
    first: Attributes, ops: Sequence[RegionOp], tensors: tuple[TensorDesc, ...], storage: Mapping[int, int]
) -> Attributes:
    """The rows of ops side by side, as one step, from those of the first: others differ in domains, in what they touch, and in
    alignments."""
    if len(ops) == 1:
        return first
    shapes = [tensors[op.outputs[0]].shape for op in ops]
    parts = len(ops) if len(set(shapes)) > 1 else 1
    made = {
        **first,
        "program": (f"{first['program'][0]} ×{len(ops)}",),
        "domain": first["domain"]._replace(shape=shapes[-1], parts=parts),
        "avail": min([tensors[t].alignment for op in ops for t in (*op.inputs, *op.outputs) if t >= 0]),
    }
    if "effects" in first:
        effects: Effect = first["effects"]
        named = [[storage.get(t, t) for t in op.inputs] for op in ops]

        def everyones(touched: frozenset[int]) -> frozenset[int]:
            places = [place for place, t in enumerate(named[0]) if t in touched]
            return frozenset([op[place] for op in named for place in places])

        made["effects"] = replace(
            effects, writes=everyones(effects.writes), scattered=everyones(effects.scattered)
        )
    return made


def resized(rows: Attributes, op: RegionOp, tensors: tuple[TensorDesc, ...]) -> Attributes:
    """The rows of an op, from those of the like op of a region that differs from this one in sizes alone."""
    domain: Domain = rows["domain"]
    source, within = domain.source, domain.within
    if source is not None:
        core = core_of(op.kind)
        assert core is not None and core.prologue is not None
        source = tensors[op.inputs[core.prologue]].shape
    if within is not None:
        within = tensors[op.inputs[0]].shape
    sized = domain._replace(shape=tensors[op.outputs[0]].shape, source=source, within=within)
    return {**rows, "domain": sized}


_FLAGS = {"bias_add": "bias", "scale": "scale", "dropout": "dropout", "add": "residual"}


def _around(schema: OpSchema) -> Around | None:
    if schema.name in _FLAGS:
        return Around(frozenset({_FLAGS[schema.name]}))
    return Around(activations=(schema.name,)) if schema.name in ActKind.__members__ else None


def _domain(schema: OpSchema, op: RegionOp, tensors: tuple[TensorDesc, ...], reads: bool) -> Domain:
    shape = tensors[op.outputs[0]].shape
    if schema.core != MAP:
        core = core_of(schema)
        if core is None or core.prologue is None:
            return Domain(shape, 1, reads=reads)
        source = tensors[op.inputs[core.prologue]].shape
        return Domain(shape, 1, reads=reads, source=source, reduces=core.reduces, wide=core.wide)
    within = tensors[op.inputs[0]].shape if VIEW in schema.traits and reads else None
    return Domain(shape, reads=reads, within=within)


def _reads(
    schema: OpSchema, op: RegionOp, tensors: tuple[TensorDesc, ...]
) -> tuple[frozenset[int], frozenset[str]]:
    """(operands that are read elsewhere than where the result is written, how operands are read)."""
    if not schema.is_map:
        given = frozenset([t for t in op.inputs if t >= 0])
        ways = {schema.core, *(flag for flag in ("trans_a", "trans_b") if op.attrs.get(flag))}
        if False in [tensors[t].contiguous for t in given]:
            ways.add("strided")
        return given, frozenset(ways)
    result = tensors[op.outputs[0]]
    shapes = [tensors[t].shape if t >= 0 else None for t in op.inputs]
    scattered, ways, whole = set(), set(), tuple(range(result.rank))
    for access in schema.accesses(shapes, result.rank, op.attrs):
        if access.operand is None:
            ways.add("index")
            continue
        t = op.inputs[access.operand]
        in_place = access.in_order or (
            tensors[t].shape == result.shape and access.axes == whole and access.plain
        )
        ways.add("masked" if access.masked else "in place" if in_place else "broadcast")
        if not in_place:
            scattered.add(t)
    return frozenset(scattered), frozenset(ways)


def _sources(values: Iterable[int], before: Sequence[RegionOp]) -> frozenset[int]:
    """What values of the region are computed from: to read them elsewhere is to read all that elsewhere."""
    found = set(values)
    for op in reversed(before):
        if not found.isdisjoint(op.outputs):
            found.update([t for t in op.inputs if t >= 0])
    return frozenset(found)


def _compute(schema: OpSchema, op: RegionOp, tensors: tuple[TensorDesc, ...]) -> DType:
    for declared, t in zip(schema.declared(len(op.inputs)), op.inputs):
        if t >= 0 and declared.type.shared:
            return tensors[t].dtype.compute
    return f32
