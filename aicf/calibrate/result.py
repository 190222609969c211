"""What a calibration changes: regret and errors of predictions on regions that were not fitted, by family of ops, before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from ..device.calibration import Calibration
from ..device.spec import DeviceSpec
from ..printing import Printed
from ..registry.registry import KernelRegistry
from .fit import Fit, Judged, judge
from .times import Line, halves, samples

ALL = "all regions"


@dataclass(frozen=True, repr=False)
class Result(Printed):
    """`calibration` has the constants to be used: the old ones where the fitted ones are no better on what was held out.

    before, after  by family of ops, of the half that was held out
    fitted, held   the number of regions in each half
    """

    calibration: Calibration
    improved: bool
    before: dict[str, Judged]
    after: dict[str, Judged]
    fitted: int
    held: int

    def _rendering(self) -> RenderableType:
        table = Table(
            box=SIMPLE_HEAD, pad_edge=False, header_style="bold", title_justify="left",
            title=f"{self.held} regions that were not fitted; {self.fitted} were",
        )  # fmt: skip
        table.add_column("family", no_wrap=True)
        for name in ("regions", "regret", "over 10 %", "predictions off by"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, was in self.before.items():
            now = self.after[name]
            table.add_row(
                name, str(now.number), f"{was.regret:.2%} → {now.regret:.2%}", f"{was.over:.0%} → {now.over:.0%}",
                f"{was.off:.0%} → {now.off:.0%}",
            )  # fmt: skip
        return table

    def to_json(self) -> dict[str, Any]:
        both = zip(self.before.items(), self.after.values())
        return {
            "gpu": self.calibration.gpu, "improved": self.improved, "regions": {"fitted": self.fitted, "held_out": self.held},
            "families": {name: {"before": asdict(was), "after": asdict(now)} for (name, was), now in both},
        }  # fmt: skip


def calibrated(
    lines: Sequence[Line], device: DeviceSpec, registry: KernelRegistry, say: Callable[[str], None] = lambda text: None
) -> Result:  # fmt: skip
    """Fit the constants to one half of the regions, and compare them with those in use on the other half."""
    fit_lines, held_lines = halves(lines)
    fit = Fit(samples(fit_lines), device, registry)
    found = fit.run(say=say)
    before = _judged(held_lines, device, registry)
    after = _judged(held_lines, replace(device, calibration=found), registry)
    improved = (after[ALL].regret, after[ALL].off) < (before[ALL].regret, before[ALL].off)
    kept, judged = (found, after) if improved else (device.calibration, before)
    errors = {name: _errors(j) for name, j in judged.items()}
    calibration = Calibration(device.name, kept.values, errors, kept.measured)
    return Result(calibration, improved, before, after, len(fit_lines), len(held_lines))


def of_the_package(
    lines: Sequence[Line], device: DeviceSpec, registry: KernelRegistry, say: Callable[[str], None] = lambda text: None
) -> Result:  # fmt: skip
    """The constants that the package has for a GPU, with all of these regions as measured ones. What is reported is of half of them, judged by the other half."""
    device = replace(device, calibration=Calibration(device.name, device.calibration.values))
    fit_lines, held_lines = halves(lines)
    say("residuals")
    half, whole = (_with_residuals(some, device, registry) for some in (fit_lines, [*fit_lines, *held_lines]))
    before = _judged(held_lines, device, registry)
    after = _judged(held_lines, replace(device, calibration=half), registry)
    errors = {name: _errors(j) for name, j in after.items() if name != ALL}
    calibration = Calibration(device.name, whole.values, errors, whole.measured)
    return Result(calibration, True, before, after, len(fit_lines), len(held_lines))


def _with_residuals(lines: Sequence[Line], device: DeviceSpec, registry: KernelRegistry) -> Calibration:
    return device.calibration.with_measured(Fit(samples(lines), device, registry).residuals())


def _judged(lines: Sequence[Line], device: DeviceSpec, registry: KernelRegistry) -> dict[str, Judged]:
    """Of all regions, and of each family."""
    families = sorted({line.family for line in lines})
    groups = {
        ALL: list(lines),
        **{name: [line for line in lines if line.family == name] for name in families},
    }
    return {name: judge(samples(some), device, registry) for name, some in groups.items()}


def _errors(judged: Judged) -> dict[str, float]:
    """As calibrations store them, rounded so that files can be read and compared."""
    return {
        "regions": judged.number, "regret": round(judged.regret, 5), "over": round(judged.over, 4), "off": round(judged.off, 4),
    }  # fmt: skip
