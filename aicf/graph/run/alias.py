"""Which outputs share their input's storage (C6). Lowered ops are SSA; in place is decided here, after fusion.

must   an optimizer step writes its parameter in place: no later step may read the old value
may    an elementwise result takes over an operand that nobody needs any more
view   a reshape of a dense tensor is the same bytes: no kernel runs
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import AliasError
from ...ir import Graph, LoweredOp, Role
from ...ops.schema import VIEW, schema_of
from ..fuse import Region


def resolve_aliases(
    graph: Graph, ops: Sequence[LoweredOp], regions: Sequence[Region]
) -> tuple[dict[int, int], set[int], list[str]]:
    """(out vid -> root vid, indices of regions that are views, notes in words). Roots are never aliases themselves."""
    values = graph.values
    last_read: dict[int, int] = {}  # vid -> index of the last region that reads it
    for i, region in enumerate(regions):
        for vid in region.in_vids:
            last_read[vid] = i
    last_read.update(
        dict.fromkeys(graph.updates.values(), len(regions))
    )  # copied into their state after the last step
    root: dict[int, int] = {}
    sharers: dict[int, list[int]] = {}
    views: set[int] = set()
    notes: list[str] = []

    def share(out: int, into: int, how: str) -> None:
        root[out] = into
        sharers.setdefault(into, [into]).append(out)
        notes.append(f"%{out} is %{into} ({values[into].name}): {how}")

    for i, region in enumerate(regions):
        for op in ops[region.anchor : region.last + 1]:
            for position, (operand, how) in op.constraints.get("alias", {}).items():
                out, source = op.out_vids[position], op.in_vids[operand]
                if out not in region.out_vids or source not in region.in_vids:
                    continue  # fused away on one side
                into = root.get(source, source)
                group = sharers.get(into, [into])
                late = [v for v in group if last_read.get(v, -1) > i]
                if how == "must":
                    _check_must(graph, regions, i, op, out, into, group, late)
                    share(out, into, "written in place")
                elif region.anchor != region.last:
                    continue  # another op of the region may read the operand in another order
                elif VIEW in schema_of(op.kind).traits:
                    if values[out].role is Role.tmp and out not in graph.updates.values():
                        views.add(i)
                        share(out, into, "a view")
                elif not late and _may(graph, region, out, into, group):
                    share(out, into, "takes over its storage")
    _check_updates(graph, root)
    return root, views, notes


def _may(graph: Graph, region: Region, out: int, into: int, group: list[int]) -> bool:
    values = graph.values
    return (
        values[out].role is Role.tmp
        and out not in graph.updates.values()
        and all(values[v].role is Role.tmp for v in group)
        and values[out].spec == values[into].spec
        and not any(v in region.out_vids for v in group)
    )


def _check_must(
    graph: Graph, regions: Sequence[Region], i: int, op: LoweredOp, out: int, into: int, group: list[int],
    late: list[int],
) -> None:  # fmt: skip
    target = graph.values[into]
    if late:
        reader = next((r for r in regions[i + 1 :] if set(late).intersection(r.in_vids)), None)
        who = reader.spec.signature if reader else "the update of a state"
        raise AliasError(
            f"{op.kind} writes {target.name} in place, and {who} reads the old value later",
            where=op.where,
            expected=f"every read of %{late[0]} before op {op.oid}",
            got=f"ops {reader.anchor}..{reader.last} read it" if reader else "it is copied after the last op",
            hint="emit the update after the last reader, or read a copy: emit.copy(value)",
        )
    if target.role is Role.input or target.constant:
        raise AliasError(
            f"{op.kind} would write over the {'constant' if target.constant else 'input'} {target.name}",
            where=op.where,
            hint="make it a state, or copy it first",
        )
    if any(v in regions[i].out_vids for v in group):
        raise AliasError(
            f"{op.kind} would write two results over {target.name}",
            where=op.where,
            hint="give it two states, or a copy",
        )
    if target.role in (Role.param, Role.state) and graph.updates.get(into) != out:
        raise AliasError(
            f"{op.kind} writes {target.role} {target.name} in place, and nobody declared that as its update",
            where=op.where,
            hint=f"ctx.update({target.name}, result) declares it; emit.copy({target.name}) leaves it alone",
        )


def _check_updates(graph: Graph, root: dict[int, int]) -> None:
    """The new content of a state is written in place or copied into it at the end of a run; never into another's."""
    for old, new in graph.updates.items():
        into = root.get(new, new)
        if into != old and graph.values[into].role in (Role.param, Role.state, Role.input):
            raise AliasError(
                f"the update of {graph.values[old].name} lives in {graph.values[into].name}",
                hint="emit.copy(value) makes it a value of its own",
            )
