"""What `explanation.want(kernel)` and `aicf explain --want` tell: region by region why not, and what it would take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...errors import AicfError
from ...lazy import lazy
from ...pages.markup import joined, tag
from ...pages.notebook import InNotebook, folded, headline, output, ruled
from ...printing import Printed, labelled
from ...registry.measured import counted
from ...registry.naming import matching
from ...registry.nearby import TERM
from ...registry.select import Candidate, Selection
from ...registry.trace import microseconds, why_lost
from ...rows import RegionSpec
from ..fuse import Region
from .want import Advice, Answer, answer, begins

OPERANDS = 4  # that are told of a region
OPENED = 6  # regions that a notebook shows at once


@dataclass(frozen=True, repr=False)
class Wanted(InNotebook, Printed):
    """`print(w)` is text, `w.to_json()` data.

    kernel   as it was asked for
    answers  with the numbers of the regions that each is about: equal regions have one
    silent   how many regions have no op that the kernel begins with
    """

    kernel: str
    device: str
    answers: tuple[tuple[tuple[int, ...], Answer], ...]
    silent: int

    @lazy
    def chosen(self) -> int:
        """Of how many regions it is the kernel already."""
        return sum(len(numbers) for numbers, answer in self.answers if answer.chosen)

    def _facts(self) -> list[str]:
        total = sum(len(numbers) for numbers, _ in self.answers)
        told = [f"chosen in {self.chosen} of {counted(total, 'region')} that it could begin"]
        return told + [f"{self.silent} more have no op that it begins with"] * bool(self.silent)

    def _rendering(self) -> RenderableType:
        head = Text(f"{self.kernel} on {self.device}", style="bold")
        parts: list[RenderableType] = [
            head.append("".join(f" · {fact}" for fact in self._facts()), style="none")
        ]
        for numbers, said in self.answers:
            text = Text(f"\n{_title(numbers):<9}  ").append(
                said.selection.region.signature, style="bold cyan"
            )
            parts += [text.append(f"   {_operands(said.selection.region)}"), labelled(_lines(said))]
        return Group(*parts)

    def _repr_html_(self) -> str:
        parts = [headline(f"{self.kernel} on {self.device}", *self._facts())]
        for numbers, said in self.answers:
            region = said.selection.region
            title = joined([f"{_title(numbers)} ", tag("b", region.signature), f" {_operands(region)}"])
            rows = [(label, joined(text.split("\n"), tag("br"))) for label, _, text in _lines(said)]
            parts.append(
                folded(title, ruled((("", ""), rows, frozenset())), opened=len(self.answers) <= OPENED)
            )
        return output(*parts)

    def __repr__(self) -> str:
        return f"<{self.kernel} on {self.device}: {len(self.answers)} answers; print it>"

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "device": self.device,
            "regions": [{"regions": list(numbers), **_answer_json(said)} for numbers, said in self.answers],
        }


def want(regions: Sequence[tuple[int, Region]], kernel: str, device: str) -> Wanted:
    """Of each of these regions, under their numbers, why no such kernel is chosen and what would change that."""
    if not regions:
        raise AicfError("there are no regions: nothing had to be chosen", hint="a model with at least one op")
    selector = regions[0][1].selection.selector
    assert selector is not None
    wanted = matching(selector.registry, kernel, selector.device.kind)
    alike: dict[RegionSpec, list[int]] = {}
    first: dict[RegionSpec, Region] = {}
    silent = 0
    for n, region in regions:
        if begins(region.selection, wanted):
            alike.setdefault(region.spec, []).append(n)
            first.setdefault(region.spec, region)
        else:
            silent += 1
    answers = tuple(
        (tuple(numbers), answer(first[spec].selection, wanted)) for spec, numbers in alike.items()
    )
    return Wanted(kernel, device, answers, silent)


# --- text -------------------------------------------------------------------------------------------------------------


def _title(numbers: Sequence[int]) -> str:
    return f"region {numbers[0]}" if len(numbers) == 1 else f"regions {', '.join(map(str, numbers))}"


def _operands(region: RegionSpec) -> str:
    shown = [str(t) for t in region.operands[:OPERANDS]]
    more = len(region.operands) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _lines(said: Answer) -> list[tuple[str, str, str]]:
    chosen = said.selection.chosen
    lines = [("chosen", "green", f"{chosen.variant.id}  {microseconds(chosen.us)}")]
    if said.chosen:
        return lines
    if said.candidate is not None:
        lost = f"{said.candidate.variant.id}  {microseconds(said.candidate.us)}\n{why_lost(chosen, said.candidate)}"
        lines.append(("lost", "", f"{lost}{_enough(chosen, said.candidate)}"))
    elif said.reject is not None:
        more = len(said.wanted) - 1
        text = f"{said.kernel.id}: {said.reject.reason}" + (f" · and {more} more like it" if more else "")
        lines.append(("refused", "red", text))
    ways = [way for way in said.to_take if not way.chosen]
    lines += [("taken if" if n == 0 else "or", "", _told(way)) for n, way in enumerate(ways)]
    lines += [("chosen if" if n == 0 else "or", "green", _told(way)) for n, way in enumerate(said.to_choose)]
    if not said.to_take and said.candidate is None:
        lines.append(("in the way", "red", _stuck(said)))
    elif not said.to_choose:
        lines.append(("", "dim", "no small change that was tried makes it the fastest"))
    return lines


def _told(way: Advice) -> str:
    """`k 100 → 104 (pad it with zeros to 104): 3.1 us, where cuda.x.v1 takes 2.9 us`."""
    steps = " and ".join(
        f"{change.text} ({change.how})" if change.how else change.text for change in way.changes
    )
    text = f"{steps}: {way.candidate.variant.id} takes {microseconds(way.candidate.us)}{_with_the_rest(way)}"
    if not way.chosen:
        best = way.selection.chosen
        return f"{text}, and {best.variant.id} is chosen with {microseconds(best.us)}"
    others = [c for c in way.selection.ranked if c.variant.id != way.candidate.variant.id]
    return text + (f", next {others[0].variant.id} {microseconds(others[0].us)}" if others else "")


def _with_the_rest(way: Advice) -> str:
    """What all takes, where the other ops are then kernels of their own."""
    rest = [region for change in way.changes for region in change.rest]
    selector = way.selection.selector
    asked = [selector.ask(region) for region in rest] if selector else []
    if not asked or not all(isinstance(said, Selection) for said in asked):
        return ""
    us = math.fsum(said.chosen.us for said in asked if isinstance(said, Selection))
    return f", with what is then a kernel of its own {microseconds(way.candidate.us + us)}"


def _enough(best: Candidate, other: Candidate) -> str:
    """The one term of a loser's prediction that would have to be smaller, and how small."""
    terms = dict(other.cost.terms)
    share = other.us / (
        other.us - terms.pop(TERM, 0.0)
    )  # of each microsecond that a term is less: corrections follow the sum
    gap = (other.us - best.us) / share
    over = {name: us - best.cost.terms.get(name, 0.0) for name, us in terms.items()}
    able = [name for name, us in terms.items() if us >= gap and over[name] > 0]
    if best.order[0] == other.order[0] or "measured" in other.cost.terms:
        return ""
    if not able:
        return "\nno term alone makes up for that"
    term = max(able, key=lambda name: over[name])
    us = terms[term]
    return f"\nit would win with {term} under {max(us - gap, 0.0):.3g} us, predicted {us:.3g}"


def _stuck(said: Answer) -> str:
    if said.furthest is None:
        return "no padding, type, precision, layout, alignment, other device or fewer ops changes that"
    steps, reject = said.furthest
    return f"with {' and '.join(map(str, steps))} it is next that {reject.reason}; no further small change mends that"


# --- JSON -------------------------------------------------------------------------------------------------------------


def _answer_json(said: Answer) -> dict[str, Any]:
    return {
        "region": said.selection.region.signature,
        "operands": [str(t) for t in said.selection.region.operands],
        "chosen": said.selection.kernel_id,
        "us": said.selection.chosen.us,
        "wanted": said.kernel.id,
        "wanted_us": said.candidate.us if said.candidate else None,
        "rejected": {"condition": said.reject.condition, "reason": said.reject.reason}
        if said.reject
        else None,
        "to_take": [_way_json(way) for way in said.to_take],
        "to_choose": [_way_json(way) for way in said.to_choose],
        "furthest": {"changes": [c.text for c in said.furthest[0]], "reason": said.furthest[1].reason}
        if said.furthest
        else None,
    }


def _way_json(way: Advice) -> dict[str, Any]:
    return {
        "changes": [{"subject": c.subject, "text": c.text, "how": c.how} for c in way.changes],
        "operands": [str(t) for t in way.selection.region.operands],
        "device": way.selection.device.name,
        "kernel": way.candidate.variant.id,
        "us": way.candidate.us,
        "chosen": way.selection.kernel_id,
        "chosen_us": way.selection.chosen.us,
    }
