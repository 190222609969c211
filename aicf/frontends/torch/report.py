"""What aicf took of PyTorch's graphs and what it left, and why: `aicf.torch.report()`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO
from weakref import WeakSet

from ...graph.run.program import CompiledPlan

KEPT = 256  # graphs that are remembered; the oldest goes first
LATER = "a part, at sizes met later"
TOO_SMALL = "alone among PyTorch's ops: too small to pay"


class CompiledAt(Protocol):
    """A part at sizes that it was compiled for."""

    compiled: CompiledPlan


class ComputedPart(Protocol):
    """Ops that aicf computes, at all sizes so far."""

    @property
    def bound(self) -> Sequence[CompiledAt]: ...


@dataclass
class GraphReport:
    """One compiled graph. Views are not counted: they compute nothing.

    kind     "inference", "forward" or "backward"
    taken    op calls that aicf computes, by name
    left     op calls that PyTorch computes, by (name, why)
    parts    how many parts aicf's ops are in
    refused  why parts were PyTorch's at sizes met later, of how many combinations of sizes
    modules  the parts, while the compiled graph lives
    recognised  what the model says at length and was taken as one op, how often
    """

    name: str
    kind: str
    taken: Counter[str] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    parts: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    modules: WeakSet[ComputedPart] = field(default_factory=WeakSet)
    recognised: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """Of op calls, those that aicf computes."""
        total = self.taken.total() + self.left.total()
        return self.taken.total() / total if total else 1.0

    @property
    def kernels(self) -> Counter[str]:
        """How often each kernel is launched by the parts that are compiled by now, each once, by id."""
        return Counter(
            id for part in self.modules for bound in part.bound for id in bound.compiled.plan.kernel_ids
        )

    def __str__(self) -> str:
        lines = [
            f"{self.name}, {self.kind}: {self.taken.total()} of {self.taken.total() + self.left.total()} op calls "
            f"in {self.parts} parts"
        ]
        lines += [f"  {count:4} recognised: {what}" for what, count in self.recognised.most_common()]
        lines += [f"  {count:4} {op}: {why}" for (op, why), count in self.left.most_common()]
        lines += [f"  {count:4} {LATER}: {why}" for why, count in self.refused.most_common()]
        return "\n".join(lines)


_graphs: deque[GraphReport] = deque(maxlen=KEPT)


def add(graph: GraphReport) -> None:
    _graphs.append(graph)


def graphs() -> list[GraphReport]:
    """The graphs that were compiled since the start or the last `reset`, the oldest first."""
    return list(_graphs)


def reset() -> None:
    """Forget all graphs."""
    _graphs.clear()


def report(file: TextIO | None = None) -> None:
    """Print what was compiled by `torch.compile(..., backend="aicf")`: for each graph how many op calls aicf took, in how many parts,
    and which ones it left to PyTorch, how often and why."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=file)
    if not _graphs:
        console.print('no graph was compiled yet: torch.compile(model, backend="aicf")(x)', markup=False)
        return
    for graph in _graphs:
        total = graph.taken.total() + graph.left.total()
        table = Table(
            title=f"{graph.name}, {graph.kind}: {graph.taken.total()} of {total} op calls taken ({graph.share:.0%}), {graph.parts} parts"
        )
        for column in ("left to PyTorch", "calls", "why"):
            table.add_column(column, justify="right" if column == "calls" else "left")
        for (op, why), count in graph.left.most_common():
            table.add_row(op, str(count), why)
        for why, count in graph.refused.most_common():
            table.add_row(LATER, str(count), why)
        if not graph.left and not graph.refused:
            table.add_row("nothing", "0", "")
        if graph.recognised:
            table.caption = "recognised: " + "; ".join(
                f"{what} ×{n}" for what, n in graph.recognised.most_common()
            )
        console.print(table)
