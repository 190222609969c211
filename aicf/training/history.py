"""What a training run was: its numbers, as a line of text, and as a curve in a notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..pages.curves import Curve, losses
from ..pages.notebook import InNotebook, drawing, folded, headline, output
from ..text import printable
from .checkpoints import Progress


@dataclass(repr=False)
class History(InNotebook):
    """What a training run was.

    losses       of each step
    validation   (step, mean loss) of each validation
    rows         what was logged, a dict each: "peak" is the share of the GPU's peak that the products had of the time
    place        how far it came
    stopped      why it ended: "steps", "epochs", "early", or "interrupted"
    checkpoint   the newest file, if any was written or resumed from
    """

    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    place: Progress = field(default_factory=Progress)
    stopped: str = ""
    checkpoint: Path | None = None

    def __str__(self) -> str:
        """`120 steps, ended by steps · loss 0.0123 · validation 0.04, the least 0.03 at step 100`."""
        parts = [f"{self.place.step:,} steps" + (f", ended by {self.stopped}" if self.stopped else "")]
        if self.losses:
            parts.append(f"loss {self.losses[-1]:.4g}")
        if self.validation:
            step, least = min(self.validation, key=lambda found: (found[1] != found[1], found[1]))
            parts.append(f"validation {self.validation[-1][1]:.4g}, the least {least:.4g} at step {step:,}")
        return printable(
            " · ".join([*parts, *([f"checkpoint {self.checkpoint}"] if self.checkpoint else [])])
        )

    def __repr__(self) -> str:
        return f"<{self}>"

    def curve(self) -> Curve:
        """Loss over steps, which a notebook draws. Steps before those of this run, when it was resumed, are not in it."""
        first = self.place.step - len(self.losses) + 1
        return Curve(str(self), {"loss": list(enumerate(self.losses, first)), "validation": self.validation})

    def _repr_html_(self) -> str:
        """Behind a fold: where the run was drawn live, the curve stands above already."""
        return output(headline(self), folded("Loss over steps", drawing(losses(self.curve().lines))))
