"""Runs suites: which cases, within which time, what became of each. Knows nothing of what is measured."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import results
from .results import Row
from .stats import Now, Sample, Stats, interleave

if TYPE_CHECKING:
    from aicf.device.spec import DeviceSpec
    from aicf.rows import RegionSpec

    from .gpu import Lab

TOGETHER = 32  # cases whose kernels are compiled before the first of them


class WrongResult(Exception):
    """A side did not compute what the reference says."""


class NotHere(Exception):
    """A case can't be measured on this machine or by this version; it is left out, with the reason."""


@dataclass(frozen=True)
class Case:
    """`measure` verifies, times, and gives the rows; a row {"case", "why"} says that a part of it was left out.

    seconds  what it takes at least: it isn't begun with less left
    kernels  for a device, the (id, region) of what it runs there: those of many cases are compiled at once
    """

    name: str
    measure: Callable[[Bench], Iterable[Row]]
    seconds: float = 0.0
    kernels: Callable[[DeviceSpec], Sequence[tuple[str, RegionSpec]]] = lambda device: ()


@dataclass(frozen=True)
class Suite:
    name: str
    about: str
    budget: float  # seconds
    cases: Callable[[Bench], Sequence[Case]]
    headlines: tuple[
        tuple[str, str | None], ...
    ] = ()  # (case, peer name) of the rows that docs/performance.md shows
    compared: Callable[[Row], bool] = lambda row: True  # of a row with a peer: is it another library's?
    # of the rows of all shards together: more rows; and tables for docs/kernels/gemm.md, each for the place of its name
    summary: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: ()
    tables: Callable[[Sequence[Row]], Mapping[str, Sequence[str]]] = lambda rows: {}


@dataclass
class Bench:
    """The arguments of cases: the device, the thoroughness, the remaining time."""

    device: str
    tiny: bool = False
    budget: float = 300.0
    now: Now = time.monotonic
    seed: int = field(
        default_factory=lambda: int(np.random.SeedSequence().generate_state(1)[0])
    )  # fresh data
    draw: str = field(default_factory=lambda: str(date.today()))  # seeds the cases of suites that draw them

    def __post_init__(self) -> None:
        self.deadline = self.now() + self.budget
        self.rng = np.random.default_rng(self.seed)

    @property
    def left(self) -> float:
        return self.deadline - self.now()

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @cached_property
    def lab(self) -> Lab:
        """The GPU with PyTorch and aicf."""
        from .gpu import Lab

        return Lab(self.device, self.seed)

    def compare(self, sides: dict[str, Sample], rounds: int = 15) -> dict[str, Stats]:
        return interleave(sides, 3 if self.tiny else rounds, self.deadline, self.now)


def verify(what: str, got: Any, want: Any, tolerance: float) -> None:
    """Every element within `tolerance` of the reference, relative to its size or to 1. NaN is only like NaN."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape:
        raise WrongResult(f"{what}: shape {got.shape}, expected {want.shape}")
    bad = ~((np.abs(got - want) <= tolerance * (1 + np.abs(want))) | (np.isnan(got) & np.isnan(want)))
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        where = f" at {tuple(map(int, at))}" if at else ""
        raise WrongResult(
            f"{what}: {int(bad.sum())} of {bad.size} elements differ by more than {tolerance:g}; "
            f"the first{where} is {got[at]}, expected {want[at]}"
        )


# --- one suite --------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    cases: list[Row] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)

    @property
    def failures(self) -> list[Row]:
        return [r for r in self.cases if "failed" in r]


def part(cases: Sequence[Case], shard: tuple[int, int]) -> list[Case]:
    """Shard i of n takes every n-th case: large and small ones alike."""
    return list(cases[shard[0] - 1 :: shard[1]])


def run_suite(
    suite: Suite, bench: Bench, shard: tuple[int, int] = (1, 1), only: str = "",
    save: Callable[[Outcome], None] = lambda outcome: None, say: Callable[[str], None] = print,
) -> Outcome:  # fmt: skip
    """Measure the cases of a shard in order until the budget is spent. `save` is called with the results after each case."""
    chosen = [case for case in part(suite.cases(bench), shard) if only in case.name]
    done = Outcome()
    for n, case in enumerate(chosen):
        if bench.left <= case.seconds:
            why = f"the budget of {bench.budget:g} s was spent"
            if bench.left > 0:
                why = f"{bench.left:.0f} s were left of the budget of {bench.budget:g} s, it needs {case.seconds:g}"
            _leave_out(done, case.name, why, say)
            continue
        if n % TOGETHER == 0:
            _prepare(chosen[n : n + TOGETHER], bench)
        _measure(case, bench, done, say)
        waiting = [{"case": c.name, "why": "the run was stopped before it"} for c in chosen[n + 1 :]]
        save(Outcome([*done.cases], [*done.left_out, *waiting]))
    save(done)
    return done


def _prepare(cases: Sequence[Case], bench: Bench) -> None:
    """What can't be compiled is left to its case, which will say so."""
    if not bench.on_gpu:
        return
    from aicf.device.runtime import runtime

    from . import sides

    device = runtime(bench.device)
    try:
        sides.prepare(device, [kernel for case in cases for kernel in case.kernels(device.spec)])
    except Exception:
        traceback.print_exc()


def _measure(case: Case, bench: Bench, done: Outcome, say: Callable[[str], None]) -> None:
    try:
        for row in case.measure(bench):
            if "why" in row:
                _leave_out(done, row["case"], row["why"], say)
            else:
                done.cases.append(row)
                say(f"  {line(row)}")
    except NotHere as reason:
        _leave_out(done, case.name, str(reason), say)
    except Exception as error:
        if not isinstance(error, WrongResult):
            traceback.print_exc()
        done.cases.append(results.failed(case.name, f"{type(error).__name__}: {error}"))
        say(f"  {line(done.cases[-1])}")


def _leave_out(done: Outcome, name: str, why: str, say: Callable[[str], None]) -> None:
    done.left_out.append({"case": name, "why": why})
    say(f"  {name}: left out: {why}")


def line(row: Row) -> str:
    if "failed" in row:
        return f"{row['case']}: FAILED: {row['failed']}"
    text = f"{row['case']}: {row['aicf']:g} {row['unit']}"
    if row["peer"] is not None:
        text += f", {row['peer_name']} {row['peer']:g}, ratio {row['ratio']}"
    return text + (f" ({row['note']})" if row.get("note") else "")


def run(
    suites: Sequence[Suite], device: str, out: Path, budget: float | None = None, shard: tuple[int, int] = (1, 1),
    tiny: bool = False, only: str = "", draw: str | None = None, say: Callable[[str], None] = print,
) -> int:  # fmt: skip
    """Run suites and write their files; 1 if a case failed. With `only`, results are printed and not written."""
    failures = 0
    for suite in suites:
        bench = Bench(
            device, tiny, suite.budget if budget is None else budget, **({"draw": draw} if draw else {})
        )
        meta = {
            **results.make_meta(device),
            "budget_s": bench.budget,
            "shard": list(shard),
            "seed": bench.seed,
            "draw": bench.draw,
        }
        if tiny:
            meta["tiny"] = True
        path = out / results.folder_name(meta["gpu"]) / results.file_name(suite.name, shard)
        say(f"{suite.name} on {meta['gpu']}, {bench.budget:g} s, draw {bench.draw}")
        start = bench.now()

        def save(outcome: Outcome, path=path, meta=meta, bench=bench, start=start) -> None:
            took = {"seconds": round(bench.now() - start, 1)}
            results.write(path, {**meta, **took}, outcome.cases, outcome.left_out)

        outcome = run_suite(suite, bench, shard, only, (lambda outcome: None) if only else save, say)
        for total in suite.summary(outcome.cases):
            say(f"  {line(total)}")
        if not only:
            results.drop_other_parts(path)
            say(f"  written: {results.join(path)}")
        failures += len(outcome.failures)
    if failures:
        say(f"{failures} cases failed")
    return 1 if failures else 0
