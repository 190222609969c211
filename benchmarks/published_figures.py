"""Rates that others published for cards, compared with what aicf predicts for the same work on the card's preset: two tables of docs/platforms.md.

published_figures.json has the figures and their sources. A ratio is of rates, predicted over published. aicf's kernels are not those of the libraries,
and nothing ran on these cards here: a ratio compares the prediction for a card with its published figure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path

from aicf.device.spec import DeviceSpec, preset
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec, bf16, f16, f32

from . import sides

PUBLISHED = Path(__file__).with_name("published_figures.json")
DTYPES = {"f32": f32, "f16": f16, "bf16": bf16}
MAPS = {"copy": ("relu", 1), "add": ("add", 2)}  # the op that is predicted, and how many operands it reads
GRADIENTS = {"attention, forward": (False,), "attention, forward + backward": (False, True)}
BACKWARD = 2.5  # products of a backward pass over those of a forward pass
SUMMARY = "GEMM f16, bf16, tf32", "GEMM f32", "attention", "copies and adds"
MMA_SYNC = "(mma.sync)"  # ends the names of such kernels, on cards where a library's use other instructions
BEST = " | "  # between sizes of which a source has the best alone


@dataclass(frozen=True)
class Figure:
    """One published rate: of a kernel or library (`by`) on a board, for a case of an op; `order` is that of a GEMM's operands, as in suite gemm."""

    source: str
    board: str
    by: str
    op: str
    dtype: str
    unit: str
    case: str
    rate: float
    order: str = ""

    @property
    def group(self) -> str:
        if self.op == "gemm":
            return SUMMARY[self.dtype == "f32"]
        return SUMMARY[2] if self.op in GRADIENTS else SUMMARY[3]

    @property
    def device(self) -> DeviceSpec:
        return preset(self.board)

    def regions(self, case: str) -> tuple[list[RegionSpec], float]:
        """What is predicted for a case, and its work: floating-point operations, or bytes."""
        if self.op == "gemm":
            from .suites.gemm import Problem

            problem = Problem(*map(int, case.split("x")), self.dtype, self.order)
            return [problem.region()], problem.flops
        if self.op in GRADIENTS:
            from .suites.attention import Heads

            sizes, mask = case.split()
            batch, heads, length, d = map(int, sizes.split("x"))
            causal, grads = mask == "causal", GRADIENTS[self.op]
            attention = Heads(batch, heads, length, d, causal, dtype=DTYPES[self.dtype])
            share = (0.5 if causal else 1.0) * sum(BACKWARD if grad else 1.0 for grad in grads)
            return [
                attention.region("cuda", grad) for grad in grads
            ], 4.0 * batch * heads * length**2 * d * share
        kind, reads = MAPS[self.op]
        vector = TensorDesc.dense(TensorSpec((int(case),), DTYPES[self.dtype], "cuda"))
        return [sides.one_op(kind, [vector] * reads)], float((reads + 1) * vector.nbytes)

    @cached_property
    def prediction(self) -> tuple[float, tuple[str, ...]]:
        """The predicted rate, of the best of several sizes where the source has that, and the kernels' ids."""
        found = []
        for case in self.case.split(BEST):
            regions, work = self.regions(case)
            chosen = [sides.predicted(region, self.device)[0] for region in regions]
            us = sum(time for _, time in chosen)
            rate = work / us / (1e6 if self.unit == "TFLOP/s" else 1e3)
            found.append((rate, tuple(kernel for kernel, _ in chosen)))
        return max(found)

    @property
    def ratio(self) -> float:
        return self.prediction[0] / self.rate


@dataclass(frozen=True)
class Published:
    figures: tuple[Figure, ...]
    sources: Mapping[str, Mapping[str, str]]


def load(path: Path = PUBLISHED) -> Published:
    """The figures of a file, one for each case, in its order."""
    data = json.loads(path.read_text(encoding="utf-8"))
    figures = (
        Figure(**{name: value for name, value in entry.items() if name != "cases"}, case=case, rate=rate)
        for entry in data["figures"]
        for case, rate in entry["cases"].items()
    )
    return Published(tuple(figures), data["sources"])


def _groups(figures: Iterable[Figure], *names: str) -> dict[tuple[str, ...], list[Figure]]:
    """Figures by the values of these attributes, in the order of their first."""
    found: dict[tuple[str, ...], list[Figure]] = {}
    for figure in figures:
        found.setdefault(tuple(getattr(figure, name) for name in names), []).append(figure)
    return found


def summary(figures: Sequence[Figure]) -> list[str]:
    """A line for each preset: the geometric mean of the ratios of each kind of work, and how many there are.

    Where a library's kernels use other instructions than aicf's, those that do not have a line of their own.
    """
    lines = [f"| card | {' | '.join(SUMMARY)} |", "|---" * (1 + len(SUMMARY)) + "|"]
    by_card: dict[str, list[Figure]] = {}
    for figure in figures:
        card = figure.device.name + (", kernels of mma.sync" if figure.by.endswith(MMA_SYNC) else "")
        by_card.setdefault(card, []).append(figure)
    for card, those in by_card.items():
        cells = [_mean([f.ratio for f in those if f.group == group]) for group in SUMMARY]
        lines.append(f"| {card} | {' | '.join(cells)} |")
    return lines


def _mean(ratios: Sequence[float]) -> str:
    return f"{prod(ratios) ** (1 / len(ratios)):.2f} ({len(ratios)})" if ratios else "none found"


def details(published: Published) -> list[str]:
    """A line for each published series, with its cases one after the other; then the sources."""
    numbers = {key: n for n, key in enumerate(published.sources, 1)}
    lines = [
        "| board | rate of | cases | unit | published | predicted | ratio | kernel | source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    names = "source", "board", "by", "op", "dtype", "order", "unit"
    for (source, board, by, op, dtype, order, unit), those in _groups(published.figures, *names).items():
        kernels = list(dict.fromkeys(_short(kernel) for f in those for kernel in f.prediction[1]))
        cells = (
            board, by, f"{op} {dtype} {order}".strip() + ": " + " · ".join(_case(f.case) for f in those), unit,
            *(" · ".join(map(_digits, values)) for values in ([f.rate for f in those], [f.prediction[0] for f in those])),
            " · ".join(f"{f.ratio:.2f}" for f in those), ", ".join(kernels), f"[{numbers[source]}]({published.sources[source]['url']})",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    for key, n in numbers.items():
        source = published.sources[key]
        lines.append(f"{n}. [{source['name']}]({source['url']}): {source['quoted']}.")
    return lines


def _short(kernel: str) -> str:
    """An id without the device and the version."""
    name, _, config = kernel.removeprefix("cuda.").partition("[")
    return name.rpartition(".")[0] + (f"[{config}" if config else "")


def _case(case: str) -> str:
    parts = case.split(BEST)
    if len(parts) > 1:
        return f"the best of {_case(parts[0])} to {_case(parts[-1])}"
    sizes = case.split("x")
    if len(sizes) == 3 and len(set(sizes)) == 1:
        return f"{sizes[0]}³"
    return f"{int(case):,}" if case.isdecimal() else case


def _digits(rate: float) -> str:
    """Three digits, or all of a whole number."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


@cache
def tables(path: Path = PUBLISHED) -> dict[str, str]:
    """The tables of docs/platforms.md by the names of their marks."""
    published = load(path)
    found = {"published summary": summary(published.figures), "published": details(published)}
    return {name: "\n".join(["", *lines, "", ""]) for name, lines in found.items()}
