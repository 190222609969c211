"""How a choice is told: short by default (chosen, why the runner-up lost), everything when verbose, JSON for tools."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from .select import Candidate, Selection
    from .variant import KernelVariant, Reject


def render(renderable: RenderableType, width: int = 118) -> str:
    """Plain text, the same on every machine: no colour, fixed width."""
    console = Console(file=io.StringIO(), width=width, no_color=True, legacy_windows=False, highlight=False)
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def microseconds(us: float) -> str:
    return f"{us:.3g} us" if us < 1e3 else f"{us / 1e3:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def describe_bias(selection: Selection) -> str:
    """` · bias PerN` where a GEMM region has one (D4)."""
    from .epilogue import GemmProgram, gemm_program

    program = gemm_program(selection.region) if selection.region.kind.name == "gemm" else None
    if not isinstance(program, GemmProgram) or not program.bias_kind:
        return ""
    return f" · bias {program.bias_kind}" + (" · z kept" if program.z is not None else "")


def why_next_lost(selection: Selection) -> str:
    """What the runner-up costs more, term by term: `+27 us: compute +20, wave tail +7`."""
    best, other = selection.ranked[:2]
    gap = other.us - best.us
    if gap <= 0:
        by = "priority" if other.variant.priority != best.variant.priority else "name"
        return f"equal time; decided by {by}"
    names = list(dict.fromkeys([*best.cost.terms, *other.cost.terms]))
    terms = {name: other.cost.terms.get(name, 0.0) - best.cost.terms.get(name, 0.0) for name in names}
    parts = [f"{name} {delta:+.3g}" for name, delta in terms.items() if abs(delta) > 0.01 * gap]
    return f"+{gap:.3g} us: {', '.join(parts)}"


def selection_table(selection: Selection, verbose: bool = False) -> Table:
    """Chosen and runner-up. Verbose: a row per candidate and per rejected variant."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for options in (
        {"min_width": 10},
        {"min_width": 26, "no_wrap": True},
        {"justify": "right", "no_wrap": True},
        {},
    ):
        table.add_column(**options)
    best = selection.chosen
    table.add_row(
        Text("  chosen", style="green"),
        Text(_named(best), style="bold"),
        microseconds(best.us),
        f"= {best.cost}; score {best.score:,.0f}",
    )
    others = selection.ranked[1:] if verbose else selection.ranked[1:2]
    for n, other in enumerate(others):
        note = why_next_lost(selection) if n == 0 else f"= {other.cost}; score {other.score:,.0f}"
        table.add_row("  next" if n == 0 else "", _named(other), microseconds(other.us), note)
    if verbose:
        for n, r in enumerate(selection.rejected):
            table.add_row(
                Text("  rejected" if n == 0 else "", style="red"), r.variant.id, "", r.reject.reason
            )
    return table


def _named(candidate: Candidate) -> str:
    variant = candidate.variant
    return variant.id if variant.origin == "aicf" else f"{variant.id} [{variant.origin}]"


def selection_lines(selection: Selection, verbose: bool = False, ended: str | None = None) -> RenderableType:
    """The table, then, in short form, one line for all rejected variants, and why the region ended."""
    parts: list[RenderableType] = [selection_table(selection, verbose)]
    if selection.rejected and not verbose:
        parts.append(rejected_line(selection))
    if ended is not None:
        parts.append(_line("  ended", "yellow", ended))
    return Group(*parts)


def _line(label: str, style: str, text: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=10)
    table.add_column()
    table.add_row(Text(label, style=style), Text(text))
    return table


def rejected_line(selection: Selection) -> Table:
    """`4: …`: how many were rejected, and why."""
    return _line(
        "  rejected",
        "red",
        f"{len(selection.rejected)}: " + counted_reasons([(r.variant, r.reject) for r in selection.rejected]),
    )


def counted_reasons(rejections: Sequence[tuple[KernelVariant, Reject]], shown: int = 3) -> str:
    """`add_half2: length 1025 is odd · 3 of them: needs sm_90a`: equal reasons are counted, rare ones first."""
    count = Counter(reject.reason for _, reject in rejections)
    first = {reject.reason: variant.name for variant, reject in reversed(rejections)}
    all_agree = len(count) == 1
    parts = [
        f"{first[reason]}: {reason}"
        if n == 1
        else f"all {n}: {reason}"
        if all_agree
        else f"{n} of them: {reason}"
        for reason, n in sorted(count.items(), key=lambda item: (item[1], item[0]))
    ]
    return " · ".join(parts[:shown]) + (
        f" · and {len(parts) - shown} more reasons (-v)" if len(parts) > shown else ""
    )


def selection_json(selection: Selection) -> dict[str, Any]:
    return {
        "region": selection.region.signature,
        "operands": [str(t) for t in selection.region.operands],
        "results": [str(t) for t in selection.region.results],
        "device": selection.device.name,
        "chosen": selection.kernel_id,
        "score": selection.chosen.score,
        "candidates": [
            {
                "id": c.variant.id,
                "us": c.us,
                "score": c.score,
                "terms": dict(c.cost.terms),
                "origin": c.variant.origin,
            }
            for c in selection.ranked
        ],
        "rejected": [
            {
                "id": r.variant.id,
                "condition": r.reject.condition,
                "reason": r.reject.reason,
                "origin": r.variant.origin,
            }
            for r in selection.rejected
        ],
    }
