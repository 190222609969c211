"""Regions as text: a row of a table each, or a paragraph with all that was weighed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from ...errors import Immovable
from ...ops.schema import schema_of
from ...printing import Printed, cut, labelled, rows_table
from ...registry.bodies import plans_of
from ...registry.trace import describe_product, lost_in_short, microseconds, selection_lines
from ...text import visible
from ..fuse import Ended, Region
from .picture import brief
from .plan import Slot, Step

OPERANDS = 4  # of a region, in its paragraph
LIKE = 12  # regions that are like it, in its paragraph
ROWS = 64  # of a table
KERNEL = 26  # characters of a kernel's name
NARROW, MIDDLE, WIDE = 60, 100, 140  # columns of a terminal from which on a row says more: the levels 1, 2, 3


@dataclass(frozen=True, repr=False)
class RegionStory(Immovable, Printed):
    """One region of an explanation, in full; `verbose()` has every candidate and every kernel that was rejected.

    number  its place among the regions
    slots   where values lie, of the plan and its setup
    once    it is the setup's
    like    the regions that differ from it in shapes at most
    notes   lines after it
    """

    number: int
    region: Region
    step: Step
    slots: Mapping[int, Slot]
    once: bool = False
    like: tuple[int, ...] = ()
    everything: bool = False
    notes: tuple[str, ...] = ()
    instead = "str(story) is its text"

    def verbose(self) -> RegionStory:
        return replace(self, everything=True)

    def __repr__(self) -> str:
        return f"<region {self.number}, {self.ops}: {self.step.kernel_id or 'a view'}; print it>"

    @property
    def ops(self) -> str:
        return brief([op.kind.name for op in self.region.spec.ops])

    @property
    def us(self) -> float:
        """Microseconds, predicted or measured; a view takes none."""
        return self.region.selection.chosen.us if self.step.kernel_id else 0.0

    def _rendering(self) -> RenderableType:
        return Group(
            self._title(), labelled([*self._reads(), *self._likes()]), self._choice(), *map(Text, self.notes)
        )

    def _title(self) -> Text:
        region = self.region
        ops = f"op {region.anchor}" if region.anchor == region.last else f"ops {region.anchor}..{region.last}"
        text = Text(f"region {self.number:<3} ").append(visible(self.ops), style="bold cyan")
        return text.append(f"   {ops}{', once' * self.once}{describe_product(region.selection)}")

    def _reads(self) -> Iterator[tuple[str, str, str]]:
        operands = [str(t) for t in self.region.spec.operands]
        more = f" and {len(operands) - OPERANDS} more" if len(operands) > OPERANDS else ""
        yield "on", "dim", ", ".join(operands[:OPERANDS]) + more
        for op in self.region.instead:
            yield "instead", "dim", op
        if self.step.kernel_id and schema_of(self.region.spec.kind).has_body:
            yield from self._body()

    def _body(self) -> Iterator[tuple[str, str, str]]:
        """The kernels of each step."""
        for name, plan in plans_of(self.region.spec, self.region.selection.device):
            for n, step in enumerate(plan.steps):
                ops = brief([op.kind.name for op in step.region.ops])
                text = f"{step.variant.id}  {microseconds(step.us)}  {ops}"
                yield name if n == 0 else "", "dim", text

    def _likes(self) -> Iterator[tuple[str, str, str]]:
        if self.like and not self.everything:
            more = f" and {len(self.like) - LIKE} more" if len(self.like) > LIKE else ""
            yield "like it", "dim", ", ".join(map(str, self.like[:LIKE])) + more

    def _choice(self) -> RenderableType:
        region = self.region
        if not self.step.kernel_id:
            slots = [self.slots[v] for v in (*region.in_vids, *region.out_vids)]
            lies = [f"; %{s.vid} is %{s.alias_of}{s.strided}" for s in slots if s.strided]
            return Text("  a view: nothing runs" + "".join(lies), style="dim")
        return selection_lines(region.selection, self.everything, region.ended.sentence, self._grew())

    def _grew(self) -> list[str]:
        """`gemm 7 candidates · bias_add 7 · relu 7`; verbose, a line for each op with the rows it changed."""
        steps = self.region.steps
        if self.everything:
            width = max(len(step.op) for step in steps)
            return [
                f"{step.op:<{width}}  {step.candidates} left"
                + (f", {microseconds(step.us)}" if step.us is not None else ", none takes just this")
                + "".join(f" · {row} {text}" for row, text in step.changed.items())
                + (f" · kept: {step.near}" if step.near else "")
                for step in steps
            ]
        if len(steps) == 1:
            return []
        first, *others = steps
        plural = "s" if first.candidates != 1 else ""
        text = f"{first.op} {first.candidates} candidate{plural}"
        kept = (f" (kept: {step.near})" if step.near else "" for step in others)
        return [text + "".join(f" · {step.op} {step.candidates}{near}" for step, near in zip(others, kept))]


class RegionTable:
    """A row for each group of regions that are alike, told of the first of them; the groups that take longest, if there are many.

    Narrow terminals get fewer words: what is left of a row keeps to one line at any width.
    """

    def __init__(self, groups: Sequence[Sequence[RegionStory]]) -> None:
        times = [math.fsum(story.us for story in group) for group in groups]
        longest = sorted(range(len(groups)), key=lambda n: -times[n])[:ROWS]
        self.shown = [(groups[n], times[n]) for n in sorted(longest)]
        self.total = math.fsum(times)
        self.left = sum(map(len, groups)) - sum(len(group) for group, _ in self.shown)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        level = sum(options.max_width >= least for least in (NARROW, MIDDLE, WIDE))
        columns = ["region", "ops", "kernel", "time", *(["share"] if level == 3 else [])]
        whole = (
            {"region": None, "kernel": KERNEL} if level > 1 else {"region": None, "next": None, "ended": None}
        )
        table = rows_table(
            *columns, *(["next", "ended"] if level else []), numbers=("time", "share"), whole=whole
        )
        for group, us in self.shown:
            table.add_row(*self._cells(group, us, level))
        yield table
        if self.left:
            share = 1 - math.fsum(us for _, us in self.shown) / self.total if self.total else 0.0
            yield Text(f"and {self.left} more regions, which take {share:.1%} of the time", style="dim")

    def _cells(self, group: Sequence[RegionStory], us: float, level: int) -> Iterator[Text]:
        first = group[0]
        selection, runs = first.region.selection, bool(first.step.kernel_id)
        variant, measured = selection.chosen.variant, selection.chosen.cost.is_measured
        yield Text(f"{first.number}" + f" ×{len(group)}" * (len(group) > 1) + " once" * first.once)
        yield cut(first.ops if level > 1 else first.ops.replace(" + ", "+"), "cyan")
        name = variant.name + (f" [{variant.origin}]" if variant.origin != "aicf" else "")
        yield cut(name, "bold green") if runs else cut("a view", "dim")
        yield Text(microseconds(us) + " measured" * measured if runs else "")
        if level == 3:
            yield Text(f"{us / self.total:.1%}" if runs and self.total else "", style="dim")
        if level:
            yield cut(_next(first, level) if runs else "")
            yield cut(_ended(first.region.ended, level), "yellow")


def _next(story: RegionStory, level: int) -> str:
    """`+2.07 us: sum of parts`: what the runner-up lost by."""
    if len(story.region.selection.ranked) < 2:
        return "no other" if level > 1 else "none"
    name, gap, term = lost_in_short(story.region.selection)
    return gap if level == 1 else f"{gap}: {term}" if level == 2 else f"{name} {gap}: {term}"


def _ended(ended: Ended, level: int) -> str:
    """`core`, or `core: gemm meets gemm`."""
    if ended.trigger in ("conflict", "barrier"):
        word, why = ended.row, f"{ended.left} meets {ended.right}"
    else:
        word, why = ended.trigger, ended.sentence.removeprefix("the next op, ").removeprefix("is ")
    return f"{word}: {why}" if level > 1 else word
