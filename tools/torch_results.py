"""The runs of torch_coverage.py: a line of JSON each, and a page of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch_eager import LEAST, MARGIN

from aicf.frontends.torch.report import FASTER, TOO_SMALL

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- torch -->", "<!-- /torch -->"


@dataclass
class Measured:
    """Of a model in a type: calls taken and left, parts, what is wrong with its numbers, seconds.

    dtype    "" where the name was refused in all types
    wrong    what differs from eager PyTorch's numbers in training and inference
    alone    what is wrong where aicf computes all of it, also what PyTorch computes faster; None where it lacks something, or was not run
    breaks   how often TorchDynamo ended a graph, by its reason
    error    why it failed; then the rest means nothing
    refused  why the name was drawn again
    slow     it took longer than the limit: neither failed nor compared
    """

    name: str
    dtype: str = ""
    taken: int = 0
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    parts: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    wrong: str = ""
    alone: str | None = None
    error: str = ""
    refused: str = ""
    slow: bool = False
    seconds: float = 0.0

    @property
    def library(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def title(self) -> str:
        return f"{self.name} {self.dtype}".rstrip()

    @property
    def calls(self) -> int:
        return self.taken + self.left.total()

    @property
    def differs(self) -> str:
        return self.error or self.wrong or self.alone or ""

    def line(self) -> str:
        return json.dumps(vars(self) | {"left": [[*which, n] for which, n in self.left.items()]})

    @staticmethod
    def of_line(line: str) -> Measured:
        found = json.loads(line)
        left = Counter({(op, why): n for op, why, n in found.pop("left")})
        return Measured(**found | {"left": left, "breaks": Counter(found["breaks"])})


class Results:
    """The runs that ended, as lines of a file: the last of a model in a type counts."""

    def __init__(self, path: Path, again: bool) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        read = {(m.name, m.dtype): m for m in map(Measured.of_line, lines)}
        self.runs = {key: m for key, m in read.items() if not (again and (m.differs or m.slow))}

    def add(self, run: Measured) -> None:
        self.runs[run.name, run.dtype] = run
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(run.line() + "\n")

    def of(self, name: str, types: tuple[str, ...]) -> list[Measured]:
        return [self.runs[name, dtype] for dtype in ("", *types) if (name, dtype) in self.runs]

    def missing(self, name: str, types: tuple[str, ...], each: int) -> tuple[str, ...]:
        """The types in which the model is still to be run, the first of these, until it ran in so many."""
        if (name, "") in self.runs:
            return ()
        new = [t for t in types if (name, t) not in self.runs]
        return tuple(new[: max(0, each - (len(types) - len(new)))])


def write(section: str) -> None:
    """Into the page, in the place of the section that was there; what other scripts wrote stays."""
    path = ROOT / "docs/results/coverage.md"
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    path.write_text(
        f"{before.rstrip()}\n\n{BEGIN}\n{section.rstrip()}\n{END}\n{rest.partition(END)[2].lstrip()}"
    )


def page(done: list[Measured], seed: str) -> str:
    """The section of docs/results/coverage.md that says what ran, what differed, and what was left to PyTorch."""
    compared = [m for m in done if not m.refused and not m.slow]
    ran, failed = [m for m in compared if not m.error], [m for m in compared if m.error]
    taken, total = sum(m.taken for m in ran), sum(m.calls for m in ran)
    left = sum((m.left for m in ran), Counter[tuple[str, str]]())

    def share(n: int) -> str:
        return f"{n:,} ({n / max(total, 1):.1%})"

    faster, small = (
        sum(n for (_, why), n in left.items() if why == reason) for reason in (FASTER, TOO_SMALL)
    )
    alone = [m for m in ran if m.alone is not None]
    breaks = sum((m.breaks for m in ran), Counter[str]())
    lines = [
        "## PyTorch's models",
        "",
        f"Written by `python tools/torch_coverage.py --write --seed {seed}`, with PyTorch {torch.__version__.partition('+')[0]} on the CPU: models that "
        "are drawn from all names of timm, torchvision and transformers, small, without blocks that repeat others, with random weights, each in drawn types,",
        'through `torch.compile(model, backend="aicf")` in inference, and forward and backward. All outputs, gradients and buffers are compared with eager PyTorch\'s:',
        f"no tensor's greatest error, compared with PyTorch in f64, is {MARGIN} times eager PyTorch's own, in its type with the weights as they are or moved by an ulp,",
        f"unless it is below the type's epsilon, or {LEAST:g}, of the tensor's greatest element (of a thousandth of the greatest gradient, if that is more).",
        "Ops that aicf lacks run in PyTorch, between parts that aicf computes. Views are not counted.",
        "",
        *_counts(compared),
        "",
        f"- {sum(not m.differs for m in compared)} of {len(compared)} runs have eager PyTorch's numbers.",
        f"- aicf took {taken:,} of {total:,} op calls ({share(taken).partition('(')[2]}; in {sum(not m.left for m in ran)} runs all.",
        f"- Of those left PyTorch computes {share(faster)} faster, and {share(small)} are cheap and alone among PyTorch's. "
        f"{share(total - taken - small - faster)} are random numbers, or aicf lacks them.",
        f'- {len(alone)} runs were compared with `fallback="error"`, too, where PyTorch computes nothing; {sum(not m.alone for m in alone)} have its numbers.',
        f"- {sum(bool(m.breaks) for m in ran)} runs have graph breaks, {breaks.total()} in all.",
        *_not_compared(done),
        "",
        "### What was left, by calls",
        "",
        *_table(("op", "why", "calls", "models"), _left(ran)),
    ]
    if breaks:
        lines += ["", "### Graph breaks", "", *_table(("why", "breaks"), breaks.most_common())]
    by_share = sorted(ran, key=lambda m: (-m.taken / max(m.calls, 1), m.title))
    lines += [
        "",
        "### Models",
        "",
        *_table(
            ("model", "type", "taken", "op calls", "share", "parts", "breaks", "beside eager", "without PyTorch"),
            [
                (m.name, m.dtype, m.taken, m.calls, f"{m.taken / max(m.calls, 1):.0%}", m.parts, m.breaks.total(), m.wrong or "same",
                 "" if m.alone is None else m.alone or "same")
                for m in by_share
            ],
        ),
    ]  # fmt: skip
    if failed:
        lines += ["", "### Failed", "", *(f"- {m.title}: {_cell(m.error)}" for m in failed)]
    return "\n".join(lines) + "\n"


def _counts(compared: list[Measured]) -> list[str]:
    """A table of how many models of each library ran in each type."""
    types = list(dict.fromkeys(m.dtype for m in compared))
    libraries = sorted({m.library for m in compared})
    rows = [
        (library, *(sum(m.library == library and m.dtype == t for m in compared) for t in types))
        for library in libraries
    ]
    total = ("all", *(sum(m.dtype == t for m in compared) for t in types))
    return _table(("models compared", *types), [*rows, total])


def _not_compared(done: list[Measured]) -> list[str]:
    """Why drawn names are not among the models, by what eager PyTorch or the limit said."""
    refused = Counter(m.refused.removeprefix("Refused: ").partition(":")[0] for m in done if m.refused)
    lines = [
        f"- Drawn and not run: {', '.join(f'{_cell(why)} ({n})' for why, n in refused.most_common())}."
    ] * bool(refused)
    slow = [m.title for m in done if m.slow]
    return [*lines, *[f"- Slower than the limit, and not compared: {', '.join(slow)}."] * bool(slow)]


def _left(ran: list[Measured]) -> list[tuple[object, ...]]:
    left, models = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for m in ran:
        left.update(m.left)
    for name in {m.name for m in ran}:
        models.update(set().union(*(m.left for m in ran if m.name == name)))
    return [(f"`{op}`", why, count, models[op, why]) for (op, why), count in left.most_common()]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(_cell(str(cell)) for cell in row)} |" for row in rows),
    ]


def _cell(text: str) -> str:
    """Text as Markdown shows it in a cell: with no end of a line, of a cell, or of a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
