"""Which ops of a graph aicf takes, and the parts that they form between those that PyTorch runs."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from ...errors import AicfError, VerifyError
from ...registry.select import Selector
from .aliases import under, views_for_readers, views_of_results
from .emit import is_size, line_of, meta_of, name_of, tensors_of
from .part import DEFAULT, Numerics, PartModule, Target, target
from .report import FASTER, RANDOM, TOO_SMALL, GraphReport
from .rules import HEAVY, SLOWER, STRIDES, VIEWS, rules
from .scalars import fold_constants
from .types import Unsupported, is_dense

INVARIANT_ALONE = "without invariant=True it runs by any kernel, or in PyTorch between parts of aicf: its rows may then depend on their number"
MOST_TOLD = 9  # ops that a refusal names beside the first
WORTH = 2  # cheap ops that make a part worth a launch of its own; of those in HEAVY one does


def cut(
    graph: GraphModule, report: GraphReport, numerics: Numerics = DEFAULT, all_of_it: bool = False
) -> GraphModule:
    """The graph with parts in the place of what aicf takes. `report` is told what was left and why.

    all_of_it  also what PyTorch computes faster
    """
    targets: dict[Node, Target] = {}
    shown = views_of_results(graph, report.kind)
    for node in _ops(graph):
        if node in shown:
            continue
        asked = not all_of_it and name_of(node) in SLOWER
        slower = asked and SLOWER[name_of(node)](node, _selector(node, numerics))
        why = FASTER if slower else _why_left(node, targets, numerics)
        if why is not None and not _is_view(node):
            report.leave(name_of(node), why, line_of(node))
    _keep_memory(graph, targets, report)
    taken = _without_idle_views(targets)
    proposed = _Partitioner(graph, taken).partitions()
    kept = []
    for nodes in proposed:
        if all_of_it or _pays(nodes):
            kept.append(nodes)
        else:
            for node in nodes:
                if node in targets and not _is_view(node):
                    report.leave(name_of(node), TOO_SMALL, line_of(node))
    kept = fold_constants(graph, views_for_readers(graph, kept))
    _fuse(graph, kept)
    _install(graph, targets, report, all_of_it)
    return graph


def _ops(graph: GraphModule) -> list[Node]:
    """The calls of ops: not getitem, and not what computes sizes."""
    return [
        n
        for n in graph.graph.nodes
        if n.op == "call_function" and n.target is not operator.getitem and not is_size(n)
    ]


def _is_view(node: Node) -> bool:
    return name_of(node) in VIEWS


def _device_of(node: Node) -> torch.device | None:
    made = meta_of(node)
    found = made if isinstance(made, (list, tuple)) else [made]
    return next((m.device for m in found if isinstance(m, torch.Tensor)), None)


def _why_left(node: Node, targets: dict[Node, Target], numerics: Numerics) -> str | None:
    device = _device_of(node)
    if device is None:
        return "it makes no tensor"
    if device.type not in ("cpu", "cuda"):
        return f"device {device.type}"
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and name_of(node) not in rules():
        return RANDOM
    on = target(device, numerics)
    why = on.takes(node)
    if why is None:
        targets[node] = on
    return why


def _selector(node: Node, numerics: Numerics) -> Selector | None:
    device = _device_of(node)
    if device is None or device.type not in ("cpu", "cuda"):
        return None
    return target(device, numerics).selector


def _keep_memory(graph: GraphModule, targets: dict[Node, Target], report: GraphReport) -> None:
    """What PyTorch reads by places in memory lies as in PyTorch: a part would make a dense tensor of it."""
    for node in _ops(graph):
        if name_of(node) not in STRIDES or node in targets:
            continue
        source = node.args[0]
        assert isinstance(source, Node)
        for read in (source, *under(source)):
            if read in targets and (_is_view(read) or not is_dense(meta_of(read))):
                del targets[read]
                if not _is_view(read):
                    report.leave(name_of(read), "PyTorch reads it by places in memory", line_of(read))


def _without_idle_views(targets: dict[Node, Target]) -> dict[Node, Target]:
    """Views are taken beside ops that read or make what they show; the others cost nothing where they are."""
    kept = {n: t for n, t in targets.items() if not _is_view(n)}
    views = [n for n in targets if _is_view(n)]
    for node in views:  # behind ops that are taken
        if any(_source(read) in kept for read in tensors_of(node)):
            kept[node] = targets[node]
    for node in reversed(views):  # before them
        readers = [
            u for user in node.users for u in ([user] if user.target is not operator.getitem else user.users)
        ]
        if node.users and any(user in kept for user in readers):
            kept[node] = targets[node]
    return kept


def _source(node: Node) -> Node:
    return node.args[0] if node.target is operator.getitem else node


def _pays(nodes: Iterable[Node]) -> bool:
    """Whether a part saves more than its launch costs: it has an op that is worth one, or a few that fuse."""
    names = [name_of(n) for n in nodes if n.target is not operator.getitem]
    return any(n in HEAVY for n in names) or len([n for n in names if n not in VIEWS]) >= WORTH


class _Partitioner:
    """PyTorch's partitioner, which keeps to what depends on what, over the ops that are taken."""

    def __init__(self, graph: GraphModule, taken: dict[Node, Any]) -> None:
        class Support(OperatorSupportBase):
            def is_node_supported(self, submodules: Any, node: Node) -> bool:
                return node.op == "call_function" and _source(node) in taken

        self._inner = CapabilityBasedPartitioner(graph, Support(), allows_single_node_partition=True)

    def partitions(self) -> list[list[Node]]:
        """One device each. Of another device an op that is taken reads CPU scalars alone, so parts on the CPU depend on no other."""
        found: list[list[Node]] = []
        for proposed in self._inner.propose_partitions():
            by_device: dict[torch.device | None, list[Node]] = {}
            for node in proposed.nodes:
                by_device.setdefault(_device_of(_source(node)), []).append(node)
            found += by_device.values()
        return found


def _fuse(graph: GraphModule, parts: list[list[Node]]) -> None:
    """Replace the nodes of each part by a call of a module that has them."""
    order = {n: i for i, n in enumerate(graph.graph.nodes)}
    ordered = [dict.fromkeys(sorted(nodes, key=order.__getitem__)) for nodes in parts]
    try:
        fuse_by_partitions(graph, ordered, prefix="aicf_part_")
    except (TypeError, AttributeError):  # before PyTorch 2.7 partitions were lists
        fuse_by_partitions(graph, [list(nodes) for nodes in ordered], prefix="aicf_part_")


def _install(graph: GraphModule, targets: dict[Node, Target], report: GraphReport, all_of_it: bool) -> None:
    """Compile each part; one that can't be stays PyTorch's, and the report says so."""
    for node in list(graph.graph.nodes):
        if node.op != "call_module" or not str(node.target).startswith("aicf_part_"):
            continue
        inner: Any = getattr(graph, node.target)
        places = {n: d for n in _ops(inner) if (d := _device_of(n)) is not None}
        device = next((d for d in places.values() if d.type != "cpu"), torch.device("cpu"))
        ops = [n for n, place in places.items() if place == device and not _is_view(n)]
        try:
            part = PartModule(inner, device, target_of(targets, device), None if all_of_it else report)
        except (AicfError, Unsupported) as error:
            lines = str(error).splitlines()
            why = "the part did not compile: " + " ".join(
                lines[:1] + [one.strip() for one in lines[1:] if all_of_it and "numeric" in one][:1]
            )
            for op in ops:
                report.leave(name_of(op), why, line_of(op))
            continue
        setattr(graph, node.target, part)
        report.modules.add(part)
        report.taken.update(name_of(n) for n in ops)
        report.parts += 1
    graph.recompile()


def target_of(targets: dict[Node, Target], device: torch.device) -> Target:
    """The target that ops of a device were tried on."""
    return next(t for n, t in targets.items() if _device_of(n) == device)


def refuse_left(report: GraphReport, invariant: bool = False) -> None:
    """fallback="error", or `invariant` rows: VerifyError for the first op that PyTorch would run, with the others."""
    if not report.left:
        return
    (op, why), count = next(iter(report.left.items()))
    others = list(report.left.items())[1:]
    raise VerifyError(
        f"{report.name}, {report.kind}: {op} would run in PyTorch, {_times(count)}",
        details=[f"also {other}, {_times(n)}: {reason}" for (other, reason), n in others[:MOST_TOLD]]
        + [f"and {len(others) - MOST_TOLD} more"] * (len(others) > MOST_TOLD),
        where=report.first.get((op, why)), got=why, expected="ops that aicf takes, alone",
        hint=INVARIANT_ALONE if invariant else 'options={"fallback": "eager"}, the default, runs it in PyTorch between parts of aicf',
    )  # fmt: skip


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"
