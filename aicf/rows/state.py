"""AttributeState: what is known of the ops anchor..last as one region. A new one for each step; nothing changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from .rows import EMPTY, ROWS, Attributes, Conflict


@dataclass(frozen=True)
class AttributeState:
    """anchor, last     positions in the schedule; until the region is flushed, from its first op
    attrs            the sparse rows; see rows.py
    candidates       bits of a KernelIndex: variants that take this region or some continuation of it; they only shrink
    invalid_reason   the conflict that this state stands for; if set, only variants with their own `viable` remain
    score_hint       runs per second of the best variant that takes this very region, as predicted; None if none does
    """

    anchor: int
    last: int
    attrs: Attributes = field(default_factory=lambda: EMPTY)
    candidates: int = 0
    invalid_reason: Conflict | None = None
    score_hint: float | None = None

    def __hash__(self) -> int:
        return hash((self.anchor, self.last, frozenset(self.attrs.items()), self.candidates))

    def changed(self, before: AttributeState | None) -> dict[str, str]:
        """Rows, as text, that differ from an earlier state's."""
        old = before.attrs if before else EMPTY
        texts = {row.name: row.text(self.attrs[row.name]) for row in ROWS if row.name in self.attrs}
        known = {row.name: row.text(old[row.name]) for row in ROWS if row.name in old}
        return {name: text for name, text in texts.items() if text != known.get(name, "")}
