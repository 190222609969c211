"""Result files: their content, their paths, and which rows still belong to today's kernels.

    benchmarks/results/<gpu>/<suite>.json               {"meta": …, "cases": […], "left_out": […]}
    benchmarks/results/<gpu>/<suite>.shard-1-of-4.json  one of four parts, until all are there; readers take them together

A case is {"case", "aicf", "peer", "peer_name", "unit", "ratio"} and, where there is something to say, "spread" (interquartile
ranges as shares of the medians), "n", "note", "instances", what it sums up, and "kernels", the ids of those that ran; of a step of the lesson "predicted" and "bound", in the
same unit, and "limit", what bounds it. `ratio` is above 1 where aicf is better, whatever the unit. A case without
a peer has None there. A case that went wrong has "failed", the reason, and no numbers. "left_out" names the cases that were
not measured, and why. "digests" in "meta" has a digest of each kernel at its measurement (digests.py): a new kernel or an
edited one makes no other's rows old. Rows that don't name their kernels go by "kernels_hash", of the text of all of them.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aicf.registry.ids import current
from aicf.registry.measured import kernels_hash

from .digests import digest_of
from .stats import Stats

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
HIGHER_IS_BETTER = {"GB/s", "TFLOP/s", "tokens/s", "%"}
KEYS = ("case", "aicf", "peer", "peer_name", "unit", "ratio")
SAME = ("gpu", "device", "driver", "versions", "kernels_hash", "commit", "tiny")  # in all parts of one run
PACKAGES = (
    "numpy", "numba", "numba-cuda", "cuda-core", "cuda-bindings", "torch", "triton", "cupy-cuda13x",
)  # fmt: skip

Row = dict[str, Any]
KERNEL_ID = re.compile(r"\b(?:cpu|cuda)\.[a-z0-9_]+\.v\d+(?:\[[a-z0-9 ]+\]|\b)")


# --- rows -------------------------------------------------------------------------------------------------------------


def row(case: str, unit: str, aicf: Stats, peer_name: str | None = None, peer: Stats | None = None,
        note: str = "", kernels: Iterable[str] | None = None) -> Row:  # fmt: skip
    """One line of a table. The numbers are in `unit` already; the ratio is computed here, so that it has one direction. `kernels` are
    those that ran; without it, those that the line names."""
    result: Row = {"case": case, "aicf": _short(aicf.median), "peer": None, "peer_name": None, "unit": unit}
    result["ratio"], spread = None, {"aicf": round(aicf.spread, 4)}
    if peer is not None:
        result.update(
            peer=_short(peer.median), peer_name=peer_name, ratio=ratio(aicf.median, peer.median, unit)
        )
        spread["peer"] = round(peer.spread, 4)
    result["spread"], result["n"] = spread, aicf.n
    named = KERNEL_ID.findall(f"{case} {peer_name} {note}")
    if kernels is not None or named:
        result["kernels"] = sorted(set(named if kernels is None else kernels))
    return {**result, "note": note} if note else result


def ratio(aicf: float, peer: float, unit: str) -> float | None:
    better, worse = (aicf, peer) if unit in HIGHER_IS_BETTER else (peer, aicf)
    return float(f"{better / worse:.4g}") if worse else None


def all_kernels(rows: Iterable[Row]) -> set[str] | None:
    """Of rows that are summed up; None if one of them has none."""
    kernels = [row.get("kernels") for row in rows]
    return None if None in kernels else {id for ids in kernels for id in ids or ()}


def mean_ratios(groups: Mapping[str, Sequence[Row]]) -> list[Row]:
    """A row for each group that has ratios: their geometric mean, the number under 0.95, the lowest."""
    means = []
    for name, rows in groups.items():
        if compared := [r for r in rows if r.get("ratio")]:
            ratios, worst = [r["ratio"] for r in compared], min(compared, key=lambda r: r["ratio"])
            low = sum(ratio < 0.95 for ratio in ratios)
            note = f"{len(ratios)} cases, {low} under 0.95, least {worst['ratio']:g}: {worst['case']}, {worst['peer_name']}"
            mean = Stats(math.exp(math.fsum(map(math.log, ratios)) / len(ratios)), 0.0, len(ratios))
            case = f"{name}: geometric mean of ratios"
            means.append(row(case, "ratio", mean, note=note, kernels=all_kernels(compared)))
    return means


def failed(case: str, reason: str) -> Row:
    return {**dict.fromkeys(KEYS), "case": case, "failed": reason}


def _short(value: float) -> float:
    return float(f"{value:.5g}")


# --- what the numbers belong to ---------------------------------------------------------------------------------------


def make_meta(device: str) -> dict[str, Any]:
    """Where and with what it is measured. The commit is AICF_COMMIT's where there is no git history."""
    on_gpu = device != "cpu"
    return {
        "gpu": _gpu_name() if on_gpu else _cpu_name(),
        "device": "cuda" if on_gpu else "cpu",
        "driver": _driver() if on_gpu else None,
        **(
            {}
            if on_gpu
            else {"cores": _cores(), "threads": os.environ.get("OMP_NUM_THREADS", "their own choice")}
        ),
        "versions": _versions(),
        "kernels_hash": kernels_hash("cuda" if on_gpu else "cpu"),
        "commit": os.environ.get("AICF_COMMIT") or _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _versions() -> dict[str, str]:
    import aicf

    versions = {"python": platform.python_version(), "aicf": aicf.__version__}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _gpu_name() -> str:
    from aicf.device.runtime import runtime

    return str(runtime("cuda").device.name)  # type: ignore[attr-defined]


def _cpu_name() -> str:
    try:
        match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return f"cpu {match.group(1) if match else platform.processor() or platform.machine()}"


def _driver() -> str | None:
    from cuda.bindings import driver

    status, number = driver.cuDriverGetVersion()
    cuda = f"CUDA {number // 1000}.{number % 1000 // 10}" if int(status) == 0 else None
    name = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return f"{name.splitlines()[0]}, {cuda}" if name else cuda


def _commit() -> str | None:
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD")
    changed = commit and _output(
        "git", "-C", str(ROOT), "status", "--porcelain", "--", "aicf", "benchmarks/*.py"
    )
    return f"{commit}, changed" if changed else commit


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResultFile:
    path: Path
    meta: Mapping[str, Any]
    cases: tuple[Row, ...]
    left_out: tuple[Mapping[str, str], ...] = ()

    @property
    def suite(self) -> str:
        return self.path.name.split(".")[0]


def folder_name(gpu: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def file_name(suite: str, shard: tuple[int, int] = (1, 1)) -> str:
    return f"{suite}.json" if shard[1] == 1 else f"{suite}.shard-{shard[0]}-of-{shard[1]}.json"


def write(
    path: Path, meta: Mapping[str, Any], cases: Iterable[Row], left_out: Iterable[Mapping[str, str]]
) -> None:
    """Whole or not at all, so that a run that is stopped leaves a file that can be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = list(cases)
    ids = sorted({id for row in rows for id in row.get("kernels", ())})
    found = {id: digest_of(id) for id in ids}
    meta = {"digests": {id: digest for id, digest in found.items() if digest}, **meta}
    text = json.dumps({"meta": meta, "cases": rows, "left_out": list(left_out)}, indent=1)
    partial = path.with_suffix(".part")
    partial.write_text(text + "\n", encoding="utf-8", newline="\n")
    partial.replace(path)


def drop_other_parts(path: Path) -> None:
    """Remove what a run that was cut another way left of this suite; the parts of this cut stay."""
    suite, cut = path.name.split(".")[0], re.search(r"-of-\d+", path.name)
    for other in path.parent.glob(f"{suite}.*json"):
        if re.search(r"-of-\d+", other.name) and cut and other.name.endswith(cut.group() + ".json"):
            continue
        if other != path:
            other.unlink()


def join(path: Path) -> Path:
    """One file of all parts of a run, once the last of them is there and all were measured with the same; else the part itself."""
    cut = re.fullmatch(r"(.+)\.shard-\d+-of-(\d+)\.json", path.name)
    if cut is None:
        return path
    suite, count = cut[1], int(cut[2])
    paths = [path.with_name(file_name(suite, (i + 1, count))) for i in range(count)]
    if not all(p.exists() for p in paths):
        return path
    parts = [read(p) for p in paths]
    if any(part.meta.get(key) != parts[0].meta.get(key) for part in parts for key in SAME):
        return path
    meta = {
        **parts[0].meta,
        "shard": [1, 1],
        "seconds": round(sum(p.meta.get("seconds", 0.0) for p in parts), 1),
    }
    meta["digests"] = {id: digest for p in parts for id, digest in p.meta.get("digests", {}).items()}
    meta["parts"] = [{key: p.meta.get(key) for key in ("date", "seed", "seconds", "budget_s")} for p in parts]
    whole = path.with_name(file_name(suite))
    write(whole, meta, [r for p in parts for r in p.cases], [left for p in parts for left in p.left_out])
    drop_other_parts(whole)
    return whole


def read(path: Path) -> ResultFile:
    data = json.loads(current(path.read_text(encoding="utf-8")))
    return ResultFile(path, data["meta"], tuple(data["cases"]), tuple(data.get("left_out", ())))


def all_files(results: Path = RESULTS) -> Iterator[ResultFile]:
    for path in sorted(results.glob("*/*.json")):
        yield read(path)


def earlier(file: ResultFile, root: Path = ROOT) -> list[str]:
    """For each row the kernels that have another text today, where that can be determined; "" if they have the one that was measured."""
    digests = file.meta.get("digests", {})

    @functools.cache
    def same_text() -> bool:
        return file.meta["kernels_hash"] == kernels_hash(file.meta["device"], root)

    def of(row: Row) -> str:
        ids = row.get("kernels")
        if ids is not None and all(id in digests for id in ids):
            return ", ".join(id for id in ids if digest_of(id) != digests[id])
        return "" if same_text() else "some of all kernels"

    return [of(row) for row in file.cases]


def stale(results: Path = RESULTS, root: Path = ROOT) -> list[str]:
    """A line for each result file with rows that were measured with an earlier text of their kernels."""
    lines = []
    for path in sorted(results.glob("*/*.json")):
        name = path.relative_to(results).as_posix()
        try:
            file = read(path)
            changes = [changed for changed in earlier(file, root) if changed]
            if changes:
                ids = sorted({id for changed in changes for id in changed.split(", ")})
                more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
                lines.append(
                    f"{name}: {len(changes)} of {len(file.cases)} rows ({file.meta['date'][:10]}) are of an earlier text of "
                    f"{', '.join(ids[:3])}{more}"
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            lines.append(f"{name}: can't be read: {error!r}")
    return lines
