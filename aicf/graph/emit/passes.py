"""What happens to a graph between emission and fusion: optimize, verify, lower."""

from __future__ import annotations

from collections.abc import Iterable

from ...config import verify_passes
from ...errors import AicfError, CallSpecError, VerifyError
from ...ir import EXTERNAL, Graph, LoweredOp, Op, Value
from ...ops.collectives import COLLECTIVE
from ...ops.schema import schema_of
from ...types import AttrPack, TensorSpec


def optimize(graph: Graph) -> Graph:
    """Drop ops that no output and no update needs. Values keep their vids, which are slot numbers.

    A collective stays: other ranks may need what this one only sends. A fence before an op that is dropped stands before the next one.
    """
    needed = {v.vid for v in graph.outputs} | set(graph.updates.values())
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs) or schema_of(op.kind).core == COLLECTIVE:
            needed.update(v for v in op.inputs if v >= 0)
            kept.append(op)
    kept.reverse()
    live = set(map(id, kept))
    fence = False
    for op in graph.ops:
        fence = fence or bool(op.constraints.get("sync"))
        if fence and id(op) in live:
            op.constraints, fence = {**op.constraints, "sync": True}, False
    for value in graph.values:
        value.users = [op for op in value.users if id(op) in live]
        if value.producer is not None and id(value.producer) not in live:
            value.producer = None
    graph.ops = kept
    return graph


def makers(graph: Graph, values: Iterable[Value]) -> list[Op]:
    """The ops that these values are computed by."""
    needed, found = {value.vid for value in values}, []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            needed.update(v for v in op.inputs if v >= 0)
            found.append(op)
    return found


def verify(graph: Graph) -> Graph:
    """After emission: values before their uses, each made once, types as `infer` says, call specs that fit."""
    made: set[int] = {v.vid for v in graph.values if v.role in EXTERNAL}
    for op in graph.ops:
        for vid in op.inputs:
            if vid >= 0 and vid not in made:
                raise VerifyError(f"{op} reads %{vid} before it is made", where=op.where)
        for vid in op.outputs:
            if vid in made:
                raise VerifyError(f"{op} makes %{vid} again", where=op.where)
        made.update(op.outputs)
        _verify_types(graph, op)
    for vid, new in graph.updates.items():
        if new not in made:
            raise VerifyError(f"the update of {graph.values[vid].name} is never made")
    for value in graph.outputs:
        if value.vid not in made:
            raise VerifyError(f"output {value.name} is never made", where=value.where)
    return graph


def verify_after(stage: str, graph: Graph) -> Graph:
    """What AICF_VERIFY asks for: that `verify` accepts the graph behind a pass. VerifyError names the pass that broke it."""
    if not verify_passes():
        return graph
    try:
        return verify(graph)
    except AicfError as error:
        raise VerifyError(
            f"{stage} broke the graph: {error.what}",
            where=error.where,
            expected=error.expected,
            got=error.got,
            details=error.details,
        ) from error


def _verify_types(graph: Graph, op: Op) -> None:
    schema = schema_of(op.kind)
    inferred = schema.infer_again(
        [graph.values[v] if v >= 0 else None for v in op.inputs], schema.pack(op.attrs)
    )
    given = [graph.values[v].spec for v in op.outputs]
    for name, want, got in zip(schema.named_results(len(given)), inferred, given):
        if not compatible(want, got):
            raise VerifyError(f"{op}: {name} is not what infer says", where=op.where, expected=want, got=got)


def compatible(inferred: TensorSpec, given: TensorSpec) -> bool:
    """A given type fits an inferred one: same element type and rank, and equal wherever both dimensions are known."""
    return inferred is given or (
        inferred.dtype is given.dtype
        and inferred.rank == given.rank
        and all(
            a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(inferred.shape, given.shape)
        )
    )


def lower(graph: Graph) -> list[LoweredOp]:
    """Ops as the run time knows them. Serialises only: what the emitter filled in is what is launched."""
    return [_lower(op) for op in graph.ops]


def _lower(op: Op) -> LoweredOp:
    if op.kind_id is None or op.attr_schema is None or op.attr_blob is None:
        missing = [n for n in ("kind_id", "attr_schema", "attr_blob") if getattr(op, n) is None]
        raise CallSpecError(
            f"op {op.oid} ({op}) has no call spec: {', '.join(missing)} not set",
            where=op.where,
            hint="emit it through the emitter, which fills the call spec in",
        )
    schema = schema_of(op.kind)
    if op.attr_schema != schema.attr_schema:
        raise CallSpecError(
            f"op {op.oid} ({op}) was emitted for another version of {op.kind}",
            where=op.where,
            expected=schema.attr_schema,
            got=op.attr_schema,
            hint="emit the model again with this version of aicf",
        )
    if op.kind_id != schema.kind.id or op.attr_blob != schema.pack(op.attrs).blob:
        raise CallSpecError(
            f"op {op.oid} ({op}): its call spec says something else than its attributes",
            where=op.where,
            expected=str(schema.pack(op.attrs)),
            got=str(AttrPack.from_blob(op.attr_blob)),
        )
    return LoweredOp(
        op.kind_id,
        op.attr_schema,
        op.attr_blob,
        op.inputs,
        op.outputs,
        op.constraints,
        op.oid,
        op.where,
        op.layer,
    )
