"""`aicf calibrate`: fit the constants of predictions to this machine's GPU."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
from rich.console import Console

from .. import __version__, config
from ..device.runtime import cuda_missing, runtime
from ..device.spec import DeviceSpec, preset
from ..dispatch import default_registry
from ..errors import TuningError
from ..printing import labelled
from ..progress import progress
from ..registry.measured import counted
from ..registry.registry import KernelRegistry
from .measure import ColdBench
from .result import Result, calibrated, of_the_package
from .session import Measures, drawn, measure
from .times import Line, append, halves, read, times_file

LEAST = 4  # regions in each half


def run(args: Namespace) -> int:
    """0; errors say what is missing. Times are kept as they come, so the same command goes on where it was broken off."""
    name, others = args.device or "cuda", [Path(path) for path in args.others]
    if others and name.partition(":")[0] not in ("cuda", "auto", "cpu"):
        return _of_preset(args, preset(name), others)
    missing = cuda_missing() if name.partition(":")[0] in ("cuda", "auto") else f"{name} is no CUDA device"
    if missing:
        raise TuningError(
            f"aicf calibrate measures kernels on a GPU: {missing}", expected="a CUDA device", got=f"--device {name}",
            hint="`aicf doctor` says what is missing; the constants of the CPU are not fitted",
        )  # fmt: skip
    rt = runtime(name)
    registry, draw = default_registry(), args.draw or date.today().isoformat()
    bench = ColdBench(rt, registry, np.random.default_rng(list(draw.encode())))
    session = Session(rt.spec, registry, draw, Path(args.output or config.own_calibration_file(rt.spec.name)))
    if not args.json:
        session.say("draw", f"{draw}: --draw {json.dumps(draw)} repeats it")
        session.say("times", str(session.times))
    session.measure(bench, 60 * args.minutes)
    return session.finish(others, args.json, args.minutes)


def _of_preset(args: Namespace, device: DeviceSpec, others: Sequence[Path]) -> int:
    """Fits times of a GPU that need not be in this machine. Calibrations of the package are made so."""
    if not args.output:
        raise TuningError(
            f"a calibration of the preset {device.name} has no file of its own", expected="--output FILE",
            hint="--device cuda fits the GPU of this machine, whose file is found without a flag",
        )  # fmt: skip
    session = Session(device, default_registry(), args.draw or "", Path(args.output), of_package=True)
    return session.finish(others, args.json)


@dataclass
class Session:
    """One calibration: the GPU, the draw, and the file that it writes.

    of_package  of a preset: all regions are measured ones, and constants are those of the package
    """

    device: DeviceSpec
    registry: KernelRegistry
    draw: str
    output: Path
    of_package: bool = False
    console: Console = field(default_factory=Console)

    @property
    def times(self) -> Path:
        return times_file(self.output)

    def say(self, label: str, text: str, style: str = "green") -> None:
        self.console.print(labelled([(label, style, text)]))

    def lines(self, others: Sequence[Path] = ()) -> list[Line]:
        """What is measured, here and in other files, each region once."""
        paths = [*others, *([self.times] if self.times.exists() else [])]
        found = {
            line.region.key: line
            for path in paths
            for line in read(path, self.device, self.registry, self.of_package)
        }
        return list(found.values())

    def measure(self, bench: Measures, seconds: float) -> int:
        """Measures what the file lacks of the draw; the number of regions."""
        known = frozenset(line.region.key for line in self.lines())
        with progress("calibrating") as advance:
            return measure(
                drawn(self.draw, self.device, self.registry), self.draw, known, self.device, self.registry, bench, seconds,
                lambda line: append(self.times, line, self.device, self.registry), advance,
            )  # fmt: skip

    def finish(self, others: Sequence[Path], as_json: bool = False, minutes: float = 0.0) -> int:
        """Fits, writes the calibration, and reports."""
        lines = self.lines(others)
        if min(map(len, halves(lines))) < LEAST:
            raise TuningError(
                f"too few regions are measured: {counted(len(lines), 'region')}", expected=f"{2 * LEAST} or more with several kernels",
                hint=f"aicf calibrate --draw {json.dumps(self.draw)} --minutes {max(3, 2 * minutes):g} goes on from here",
            )  # fmt: skip
        with progress("fitting") as advance:
            fit = of_the_package if self.of_package else calibrated
            result = fit(lines, self.device, self.registry, lambda text: advance(0, None, text))
        result.calibration.save(
            self.output, sms=self.device.sms, aicf=__version__, date=date.today().isoformat(), draw=self.draw, **result.to_json()
        )  # fmt: skip
        self._report(result, as_json)
        if not as_json and (earlier := sum(line.earlier for line in lines)):
            self.say("earlier", f"{earlier} of {sum(len(line.times) for line in lines)} times are of another text of their kernels", "yellow")  # fmt: skip
        return 0

    def _report(self, result: Result, as_json: bool) -> None:
        if as_json:
            data = {
                **result.to_json(),
                "draw": self.draw,
                "output": str(self.output),
                "times": str(self.times),
            }
            print(json.dumps(data, indent=1, sort_keys=True))
            return
        self.console.print(result)
        if self.of_package:
            self.say(
                "fitted", f"{result.fitted + result.held} regions of {self.device.name}, the halves together"
            )
        elif result.improved:
            self.say("fitted", f"{counted(len(result.calibration.values), 'constant')} of {self.device.name}")
        else:
            self.say("kept", "the fitted constants are no better on regions that were not fitted: the file has the old ones", "yellow")  # fmt: skip
        self.say("written", str(self.output))
        if self.output != config.calibration_file(self.device.name):
            self.say("next", f"AICF_CALIBRATION={self.output} uses it", "cyan")
