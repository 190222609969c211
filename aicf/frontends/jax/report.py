"""What was left to JAX, and why: told once by a warning, and counted here."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field

from rich.console import RenderableType

from ...errors import FrontendError, NoKernelError
from ...printing import Printed, paragraphs


@dataclass
class JaxReport(Printed):
    """How the functions of `aicf.jax.jit` were compiled since the process began, or since `clear()`.

    taken   by function: how many of its signatures aicf runs
    left    by function: how many of its signatures JAX runs
    reasons by what aicf lacks: how many of those signatures need it
    """

    taken: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)

    def clear(self) -> None:
        for counts in (self.taken, self.left, self.reasons):
            counts.clear()

    def _rendering(self) -> RenderableType:
        lines = [f"aicf ran {sum(self.taken.values())} compiled functions, JAX {sum(self.left.values())}"]
        lines += [f"  left to JAX: {name} ({count})" for name, count in self.left.items()]
        ordered = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        return paragraphs(lines + [f"  {count} x {what}" for what, count in ordered])


_REPORT, _LOCK = JaxReport(), threading.Lock()


def report() -> JaxReport:
    """The report of this process."""
    return _REPORT


def count_taken(name: str) -> None:
    with _LOCK:
        _REPORT.taken[name] = _REPORT.taken.get(name, 0) + 1


def count_left(name: str, error: FrontendError | NoKernelError) -> None:
    """A signature of a function is left to JAX. The first of a function warns."""
    with _LOCK:
        first = name not in _REPORT.left
        _REPORT.left[name] = _REPORT.left.get(name, 0) + 1
        # a FrontendError's details are what is missing; a NoKernelError's are the kernels that refused
        for line in (isinstance(error, FrontendError) and error.details) or (error.what,):
            reason = line.partition("   at ")[0].partition(" x ")[2] or line
            _REPORT.reasons[reason] = _REPORT.reasons.get(reason, 0) + 1
    if first:
        warnings.warn(
            f"aicf.jax.jit leaves {name} to JAX: {error}\n  aicf.jax.report() counts; fallback='error' refuses",
            stacklevel=4,
        )
