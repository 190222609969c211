"""What aicf took of PyTorch's graphs and what it left, and why: `aicf.torch.report()`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TextIO
from weakref import WeakSet

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...graph.run.compilations import Compilations
from ...graph.run.plans import CompiledPlan
from ...printing import Printed
from ...text import printable, printable_streams, visible

KEPT = 256  # graphs that are remembered; the oldest goes first
LATER = "a part, at sizes met later"
FASTER = "PyTorch's own is faster"
UNSAID = "step_unsupported"  # PyTorch's reason of a graph break that gives none
RANDOM = "random numbers are PyTorch's: the same seed draws the same"
TOO_SMALL = "alone among PyTorch's ops: too small to pay"


class CompiledAt(Protocol):
    """A part at sizes that it was compiled for."""

    compiled: CompiledPlan


class ComputedPart(Protocol):
    """Ops that aicf computes, at all sizes so far."""

    @property
    def bound(self) -> Sequence[CompiledAt]: ...


@dataclass(frozen=True)
class GraphBreak:
    """Why TorchDynamo ended a graph before its function returned, in PyTorch's words, and the user's line."""

    reason: str
    where: str

    @property
    def brief(self) -> str:
        return (
            "TorchDynamo does not take this line"
            if self.reason == UNSAID
            else self.reason.strip().partition("\n")[0]
        )

    @property
    def advice(self) -> str:
        """What keeps the graph in one piece, where that is known."""
        recurrent = self.reason == UNSAID or "allow_rnn" in self.reason
        return (
            "with torch._dynamo.config.allow_rnn = True it takes nn.LSTM, nn.GRU and nn.RNN"
            if recurrent
            else ""
        )

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"graph break: {self.brief}", self.where, self.advice)))


@dataclass
class GraphReport(Printed):
    """One compiled graph. Views are not counted: they compute nothing.

    kind     "inference", "forward" or "backward"
    taken    op calls that aicf computes, by name
    left     op calls that PyTorch computes, by (name, why)
    first    where in the user's code the first of these is
    parts    how many parts aicf's ops are in
    refused  why parts were PyTorch's at sizes met later, of how many combinations of sizes
    modules  the parts, while the compiled graph lives
    recognised  what the model says at length and was taken as one op, how often
    broken   why TorchDynamo ended the graph early: PyTorch runs what is between it and the next one
    """

    name: str
    kind: str
    taken: Counter[str] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], str] = field(default_factory=dict)
    parts: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    modules: WeakSet[ComputedPart] = field(default_factory=WeakSet)
    recognised: Counter[str] = field(default_factory=Counter)
    broken: GraphBreak | None = None

    def leave(self, op: str, why: str, line: str | None) -> None:
        """Count a call that PyTorch computes."""
        self.left[op, why] += 1
        if line:
            self.first.setdefault((op, why), line)

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

    @property
    def title(self) -> str:
        total = self.taken.total() + self.left.total()
        parts = "1 part" if self.parts == 1 else f"{self.parts} parts"
        return (
            f"{self.name}, {self.kind}: {self.taken.total()} of {total} op calls ({self.share:.0%}), {parts}"
        )

    @property
    def rows(self) -> list[tuple[int, str]]:
        """How often, and what: was recognised; was left, and why, the most frequent first."""
        return [
            *((n, f"recognised: {what}") for what, n in self.recognised.most_common()),
            *((n, f"{op}: {why}") for (op, why), n in self.left.most_common()),
            *((n, f"{LATER}: {why}") for why, n in self.refused.most_common()),
            *([] if self.broken is None else [(1, str(self.broken))]),
        ]

    def _rendering(self) -> RenderableType:
        rows = Table.grid(padding=(0, 1))
        rows.add_column(justify="right", width=6)
        rows.add_column(overflow="fold")
        for count, what in self.rows:
            rows.add_row(str(count), Text(visible(what)))
        return Group(Text(visible(self.title), style="bold"), rows)

    def __str__(self) -> str:
        """Each row on a line of its own, however long."""
        return printable(visible("\n".join([self.title, *(f"{n:6} {what}" for n, what in self.rows)])))


_graphs: deque[GraphReport] = deque(maxlen=KEPT)


_compilations = Compilations('torch.compile(backend="aicf")')


def compilations() -> Compilations:
    """The graphs that were compiled since the start, and the sizes of parts that were met later, each with why it was compiled again. What
    PyTorch's own guards say, TORCH_LOGS=recompiles tells."""
    return _compilations


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
    and which ones it left to PyTorch, how often and why. In a terminal lines are broken at its width, elsewhere each row is one line."""
    console = Console(file=file)
    if not _graphs:
        console.print(
            'no graph was compiled yet: torch.compile(model, backend="aicf")(x)', markup=False, soft_wrap=True
        )
        return
    with printable_streams(console.file):
        for graph in _graphs:
            if not console.is_terminal:
                console.print(str(graph), markup=False, highlight=False, soft_wrap=True)
                continue
            console.print(graph)
        console.print(_summary(), markup=False, highlight=False, soft_wrap=True)


def _summary() -> str:
    taken, left = sum(g.taken.total() for g in _graphs), sum(g.left.total() for g in _graphs)
    whole = sum(not g.left and not g.refused for g in _graphs)
    count = "1 graph" if len(_graphs) == 1 else f"{len(_graphs)} graphs"
    return f"{count}, {whole} of them whole: {taken} of {taken + left} op calls ({taken / max(taken + left, 1):.0%})"
