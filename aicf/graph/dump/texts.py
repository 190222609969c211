"""The stages of a compilation as text."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import unified_diff
from typing import Any

from ...code_cache.digest import version
from ...ir import Graph, LoweredOp, Op
from ...registry.select import Selector
from ...registry.trace import microseconds
from ...types import Precision
from ..emit.trace import Recipe
from ..fuse import Region

PACKAGES = ("aicf", "numpy", "numba", "llvmlite", "numba-cuda", "cuda-core", "cuda-bindings", "nvidia-nvjitlink", "nvidia-nvvm", "torch",
            "jax", "onnx")  # fmt: skip


def about(recipe: Recipe, sizes: Mapping[str, int], phase: str, selector: Selector, **how: Any) -> str:
    """What was compiled, with what, for what."""
    compiled = {
        "model": f"{type(recipe.model).__name__}", "mode": recipe.mode, "phase": phase,
        "sizes": ", ".join(f"{name}={n}" for name, n in sizes.items()) or "none are named", "loss": _named(recipe.loss),
        "optimizer": _named(recipe.optimizer), "accumulate": recipe.accumulate, "precision": Precision(recipe.attrs["precision"]).name,
        "policy": recipe.policy, "numerics": "invariant" if selector.invariant else "strict" if selector.strict else "fused",
        "required of kernels": ", ".join(sorted(selector.required)) or "nothing",
        "tuning": "measured times" if selector.tuning else "predictions alone", **how,
    }  # fmt: skip
    device = {f.name: getattr(selector.device, f.name) for f in fields(selector.device)}
    device |= {"target": selector.device.target, "features": ", ".join(sorted(selector.device.features))}
    settings = {
        name: value for name, value in sorted(os.environ.items()) if name.startswith(("AICF_", "NUMBA_"))
    }
    versions = {"Python": platform.python_version(), "system": platform.platform()}
    versions |= {name: found for name in PACKAGES if (found := version(name))}
    parts = {"compiled": compiled, "device": device, "settings": settings, "versions": versions}
    return "\n\n".join(f"{title}\n{_table(rows)}" for title, rows in parts.items())


def _named(part: Any) -> str:
    return "none" if part is None else type(part).__name__


def _table(rows: Mapping[str, Any]) -> str:
    width = max(map(len, rows), default=0)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items()) or "  none are set"


# --- the graph --------------------------------------------------------------------------------------------------------


def op_line(graph: Graph, op: Op) -> str:
    types = ", ".join(str(graph.values[v].spec) for v in op.outputs)
    return f"{op} : {types}" + _at(op.where)


def _at(where: str) -> str:
    return f"   # {where}" if where else ""


def op_lines(graph: Graph) -> list[str]:
    return [op_line(graph, op) for op in graph.ops]


def graph_text(graph: Graph) -> str:
    """Values from outside, then the ops in order, each with its type and the line it came from, then what is returned and updated."""
    lines = [f"{value!r}{_at(value.where)}" for value in graph.externals()]
    lines += ["", *op_lines(graph), ""]
    lines += [f"return %{value.vid} {value.name}: {value.spec}" for value in graph.outputs]
    lines += [f"update %{vid} {graph.values[vid].name} = %{new}" for vid, new in graph.updates.items()]
    return "\n".join(lines)


def recognised_text(graph: Graph, before: Sequence[str]) -> str:
    """What recognition found, what came close, and what it changed, as a diff of ops."""
    lines = [
        f"{'recognised' if note.ops else 'close to'} {note.what}: {note.told}"
        + (f" (from {note.ops} ops)" if note.ops else "")
        + _at(note.where)
        for note in graph.recognised
    ]
    diff = list(unified_diff(before, op_lines(graph), "as emitted", "recognised", lineterm=""))
    return "\n".join([*(lines or ["nothing was recognised"]), "", *(diff or ["no op was changed"])])


def optimized_text(graph: Graph, before: Sequence[str]) -> str:
    left = Counter(before)
    left.subtract(op_lines(graph))
    dropped = [line for line in dict.fromkeys(before) if left[line] > 0]
    told = ["", f"dropped, since nothing needs them: {len(dropped)}", *(f"  {line}" for line in dropped)]
    return "\n".join([graph_text(graph), *told])


# --- lowered ops ------------------------------------------------------------------------------------------------------


def lowered_text(ops: Sequence[LoweredOp], graph: Graph) -> str:
    return "\n".join(line for n, op in enumerate(ops) for line in _lowered(n, op, graph))


def _lowered(n: int, op: LoweredOp, graph: Graph) -> Iterator[str]:
    outs, ins = (", ".join(f"%{v}" if v >= 0 else "none" for v in vids) for vids in (op.out_vids, op.in_vids))
    yield f"{n:4} {outs} = {op.kind.name}({ins}){_at(op.where)}"
    yield f"       op {op.oid}, kind {op.kind_id:#x}, schema {op.attr_schema}, blob {op.attr_blob.hex() or 'empty'}: {op.attrs}"
    yield from (f"       {name} {value}" for name, value in op.constraints.items())
    for vid in op.out_vids:
        if (view := graph.views.get(vid)) is not None:
            yield f"       %{vid} lies in %{view.base} from element {view.start} on, strides {view.stride}"


def schedule_text(ops: Sequence[LoweredOp], before: Sequence[LoweredOp]) -> str:
    """In the order in which regions form, each op with its place among the lowered ones."""
    places = {op.oid: n for n, op in enumerate(before)}
    lines = ["place  lowered"]
    for n, op in enumerate(ops):
        outs, ins = (", ".join(f"%{v}" for v in vids if v >= 0) for vids in (op.out_vids, op.in_vids))
        lines.append(f"{n:5}  {places[op.oid]:7}  {outs} = {op.kind.name}({ins}){_at(op.where)}")
    return "\n".join(lines)


# --- the online walk --------------------------------------------------------------------------------------------------


def states_text(regions: Iterable[Region], selector: Selector) -> str:
    """Of each region each step: the rows that it changed, the candidates that are left; then why it ended, and who was left."""
    return "\n\n".join("\n".join(_states(n, region, selector)) for n, region in enumerate(regions))


def _states(n: int, region: Region, selector: Selector) -> Iterator[str]:
    yield f"region {n}: ops {region.anchor}..{region.last}"
    at = region.anchor
    for step in region.steps:
        best = f"best {step.best}, {microseconds(step.us)}" if step.us is not None else "none takes just this"
        yield f"  op {at} {step.op}: {step.candidates} candidates, {best}" + (
            f"; kept: {step.near}" if step.near else ""
        )
        yield from (f"      {row}: {text}" for row, text in step.changed.items())
        at += step.count
    ended = region.ended
    yield f"  ended, {ended.trigger}: {ended.sentence}"
    if ended.row:
        yield f"      {ended.row}: {ended.left} | {ended.right}"
    if region.state.invalid_reason is not None:
        yield f"      invalid: {region.state.invalid_reason}"
    yield f"  flushed with {region.kernel_id}, {microseconds(region.selection.chosen.us)}"
    left = sorted(v.id for v in selector.index.members(region.state.candidates))
    yield f"  candidates left: {', '.join(left) or 'none'}"
