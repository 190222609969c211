"""`aicf tune`: measure the kernels of a model's regions into a file; check, merge and update such files."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from . import model_file
from .device.runtime import runtime
from .device.spec import PRESETS, DeviceSpec
from .dispatch import default_registry
from .errors import TuningError
from .graph.compile import tune_for
from .graph.tune import Report
from .printing import labelled
from .progress import progress
from .registry.measured import counted
from .registry.select import Selection, Selector
from .registry.trace import factor, microseconds
from .registry.tuning import Change, Tuning

MOVED = 1.2  # an update tells of times that have changed by so much
SHOWN = 12  # of them


def run(args: Namespace) -> int:
    """0; or 1 if a kernel gave a wrong result, 2 if nothing could be measured. What was measured is written before anything is raised."""
    if args.check:
        return _check(args.check, args.json)
    output = Path(args.output)
    if args.model is None and not args.update:
        if not args.merge:
            raise TuningError(
                "nothing to tune", expected="a FILE with a model, --update, --merge FILE … or --check FILE …",
                hint="aicf tune examples/mlp.py --device cpu --output tuning.json",
            )  # fmt: skip
        return _merge(args.merge, output, args.json)
    return _measure(args, output)


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure(args: Namespace, output: Path) -> int:
    rt, registry = runtime(args.device), default_registry()
    others = [Tuning.load(path, rt.spec, registry) for path in args.merge]
    known = others[0].merge(*others[1:]) if others else None
    again, old = [], None
    if output.exists():
        old = Tuning.load(output, rt.spec, registry, stale=args.update)
        if args.update:
            again = [m.region for m in old.regions.values()]
            stale = old.stale(registry)
            if stale:  # the rest stands
                known = old.without(stale).merge(*others)
        else:
            known = old.merge(known) if known else old
    elif args.model is None:
        raise TuningError(
            f"there is no file {str(output)!r} to update", hint="name a FILE with a model to measure"
        )
    if args.model:
        asked = model_file.load(
            args.model,
            args.mode,
            dict(args.size),
            precision=args.precision,
            numerics=args.numerics,
            policy=args.policy,
            invariant=args.invariant,
        )
    else:
        asked = model_file.Asked(None)  # --update alone
    with progress("tuning") as advance:
        report = tune_for(
            asked.model, args.budget, asked.mode, device=args.device, loss=asked.loss, optimizer=asked.optimizer,
            accumulate=asked.accumulate, numerics=asked.numerics, precision=asked.precision, policy=asked.policy,
            beam=args.beam, registry=registry, tuning=known, again=again, progress=advance, invariant=asked.invariant,
        )  # fmt: skip
    whole = (
        report.tuning.save_into(output, update=registry if args.update else None) if report.tuning else None
    )
    if args.json:
        print(
            json.dumps(
                {**report.to_json(), "output": str(output) if whole else None}, indent=1, sort_keys=True
            )
        )
    else:
        _tell(report, output, whole, old.diff(report.tuning) if old and args.update else [])
    if report.stopped is not None:
        raise report.stopped
    if report.left and not report.measured:
        raise TuningError(
            f"nothing could be measured in {args.budget:g} s: kernels are compiled first, and on a busy machine that takes long",
            expected=f"time for one of {counted(len(report.left), 'region')} at least",
            hint=f"--budget {math.ceil(max(4 * args.budget, 60))}, or the same on a quiet machine",
        )  # fmt: skip
    return 1 if report.failures else 0


def _tell(report: Report, output: Path, whole: Tuning | None, changes: Sequence[Change]) -> None:
    console = Console()
    console.print(report)
    moved = [(c, c.after / c.before) for c in changes if c.before and c.after]
    moved = sorted((m for m in moved if not 1 / MOVED < m[1] < MOVED), key=lambda m: -abs(math.log(m[1])))
    console.print(labelled([
        ("moved" if n == 0 else "", "cyan", f"{c.region.signature} by {c.kernel_id}: {factor(share)} times what it took before")
        for n, (c, share) in enumerate(moved[:SHOWN])
    ]))  # fmt: skip
    where = f"{output}: {whole!r}" if whole else "nothing was measured"
    console.print(labelled([("written" if whole else "", "green", where)]))


# --- files ------------------------------------------------------------------------------------------------------------


def _check(paths: Sequence[str], as_json: bool) -> int:
    """Each file is of this aicf's kernels, and whole; TuningError says what is not so."""
    registry = default_registry()
    shown = [(path, Tuning.load(path, registry=registry)) for path in paths]
    _show(shown, as_json)
    return 0


def _merge(paths: Sequence[str], output: Path, as_json: bool) -> int:
    """Files of one device become one; what is in the output stays."""
    registry = default_registry()
    tunings = [Tuning.load(path, registry=registry) for path in paths]
    _show([(str(output), tunings[0].merge(*tunings[1:]).save_into(output))], as_json)
    return 0


def _show(tunings: Sequence[tuple[str, Tuning]], as_json: bool) -> None:
    facts = [_facts(path, tuning) for path, tuning in tunings]
    if as_json:
        print(json.dumps(facts, indent=1, sort_keys=True))
        return
    for f in facts:
        lines = [
            (
                "file",
                "green",
                f"{f['file']}: {counted(f['times'], 'time')} of {counted(f['regions'], 'region')}",
            ),
            (
                "of",
                "",
                f"{f['device']}, {counted(f['kernels'], 'kernel')}, {f['date']}, aicf {f['versions'].get('aicf', '?')}",
            ),
            *(("refused", "bold red", f"{r['kernel']} on {r['region']}: {r['why']}") for r in f["refused"]),
            *(
                ("changes", "cyan", f"{c['region']}: {c['before']} -> {c['after']}, {microseconds(c['us'])}")
                for c in f["changes"]
            ),
        ]
        Console().print(labelled(lines))


def _facts(path: str, tuning: Tuning) -> dict[str, Any]:
    header, device = tuning.header, _device_of(tuning)
    return {
        "file": path, "device": header.place, "kernels": len(header.kernels), "date": header.date,
        "versions": dict(header.versions), "regions": len(tuning.regions), "times": len(tuning),
        "refused": [
            {"region": str(m.region), "kernel": id, "why": why}
            for m in tuning.regions.values()
            for id, why in m.refused.items()
        ],
        "changes": _changes(tuning, device) if device else [],
    }  # fmt: skip


def _device_of(tuning: Tuning) -> DeviceSpec | None:
    """The preset that the file is of; None for a device that is no preset."""
    return next((spec for spec in PRESETS.values() if tuning.header.stands_for(spec)), None)


def _changes(tuning: Tuning, device: DeviceSpec) -> list[dict[str, Any]]:
    """The regions for which the times change the choice."""
    registry = default_registry()
    untuned, tuned = Selector(registry, device), Selector(registry, device, tuning)
    found = []
    for measured in tuning.regions.values():
        before, after = untuned.ask(measured.region), tuned.ask(measured.region)
        if (
            isinstance(before, Selection)
            and isinstance(after, Selection)
            and before.kernel_id != after.kernel_id
        ):
            found.append(
                {"region": str(measured.region), "before": before.kernel_id, "after": after.kernel_id, "us": after.chosen.us}
            )  # fmt: skip
    return found
