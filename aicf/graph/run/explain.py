"""Explanation: the story of a compiled program, region by region: what was fused, why it ended, what was chosen and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...registry.trace import describe_bias, microseconds, render, selection_json, selection_lines
from ..fuse import Region
from .plan import ExecPlan


@dataclass(frozen=True)
class Explanation:
    """`print(e)` is plain text, `rich.print(e)` has colour, `e.verbose()` has every candidate, `e.to_json()` is data."""

    plan: ExecPlan
    regions: tuple[Region, ...]
    device: str
    everything: bool = False

    def verbose(self) -> Explanation:
        return Explanation(self.plan, self.regions, self.device, True)

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._headline()]
        shown: dict[tuple, int] = {}
        for n, region in enumerate(self.regions):
            same = shown.setdefault((region.spec, region.kernel_id), n)
            parts.append(self._title(n, region))
            if same != n and not self.everything:
                parts.append(Text(f"  as region {same}", style="dim"))
            elif not self.plan.steps[n].kernel_id:
                parts.append(Text("  a view: nothing runs", style="dim"))
            else:
                parts.append(selection_lines(region.selection, self.everything, str(region.ended)))
        parts.append(self._summary())
        return Group(*parts)

    def _headline(self) -> Text:
        ops = sum(len(r.spec.ops) for r in self.regions)
        text = Text(f"{self.plan.mode} plan {self.plan.key} on {self.device}", style="bold")
        text.append(f" · {ops} ops in {len(self.regions)} regions", style="none")
        return text.append(
            f" · arena {self.plan.arena_bytes:,} B · {len(self.plan.alias)} aliases", style="none"
        )

    def _title(self, n: int, region: Region) -> Text:
        ops = f"op {region.anchor}" if region.anchor == region.last else f"ops {region.anchor}..{region.last}"
        text = Text(f"\nregion {n:<3} ").append(region.spec.signature, style="bold cyan")
        text.append(f"   {ops}{describe_bias(region.selection)}\n")
        return text.append("  on        " + " × ".join(str(t) for t in region.spec.operands[:4]), style="dim")

    def _summary(self) -> Text:
        count = Counter(self.plan.kernel_ids)
        total = sum(r.selection.chosen.us for r, s in zip(self.regions, self.plan.steps) if s.kernel_id)
        parts = [f"{n} × {id}" for id, n in sorted(count.items(), key=lambda item: (-item[1], item[0]))]
        return Text(f"\npredicted {microseconds(total)} in {count.total()} kernels: " + " · ".join(parts))

    def __str__(self) -> str:
        return render(self.__rich__())

    def to_json(self) -> dict[str, Any]:
        """Predicted times, but no clock, path or date: equal for equal ops, device and tuning data."""
        return {
            "mode": self.plan.mode,
            "device": self.device,
            "plan": self.plan.key,
            "regions": [
                {
                    "anchor": r.anchor,
                    "last": r.last,
                    "ended": {"trigger": r.ended.trigger, "detail": r.ended.detail},
                    "view": not s.kernel_id,
                    **selection_json(r.selection),
                }
                for r, s in zip(self.regions, self.plan.steps)
            ],
        }


def explain(plan: ExecPlan, regions: Sequence[Region]) -> Explanation:
    return Explanation(plan, tuple(regions), plan.device)
