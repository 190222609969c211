"""The rows of docs/spec.md with the tests that hold them: `python tools/spec_report.py REPORT.jsonl`.

The report is what the test suite writes when AICF_SPEC_REPORT names a file: one JSON object per line, with the rows a test
is marked with, its node id, whether it needs a GPU, and its outcome, which is first "started". `make spec` does both. The exit code
is 0 whatever the outcomes are.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

SPEC = Path(__file__).parents[1] / "docs" / "spec.md"
STYLES = {"passed": "green", "failed": "bold red", "not shown here": "yellow", "open": "dim"}
SHOWN = 3  # tests named per row, unless -v


@dataclass(frozen=True)
class Outcome:
    """Of one case of a test. `how`: passed, failed or skipped; a case that was started and never ended has failed."""

    test: str
    how: str
    gpu: bool


def rows(text: str) -> dict[str, str]:
    """Row id -> what it says, without its notes, in the document's order."""
    return {
        row: what.strip() for row, what in re.findall(r"^\| ([A-Z]\d+) \| (.+?) \|.*\|$", text, re.MULTILINE)
    }


def outcomes(lines: Iterable[str]) -> dict[str, list[Outcome]]:
    """Row id -> the outcomes of its tests. Of several for one case, as of its call and its teardown, the worst counts."""
    worst = ("started", "passed", "skipped", "failed")
    cases: dict[str, dict[str, Any]] = {}
    for line in lines:
        entry = json.loads(line)
        known = cases.setdefault(entry["test"], entry)
        known["outcome"] = max(known["outcome"], entry["outcome"], key=worst.index)
    found: dict[str, list[Outcome]] = defaultdict(list)
    for test, case in cases.items():
        how = "failed" if case["outcome"] == "started" else case["outcome"]
        for row in case["rows"]:
            found[row].append(Outcome(test.split("[")[0], how, case["gpu"]))
    return found


def state(tests: Sequence[Outcome]) -> str:
    """failed if a test failed; passed if all passed that need no GPU, and at least one; open without a test."""
    if any(t.how == "failed" for t in tests):
        return "failed"
    if not tests:
        return "open"
    missing = any(t.how == "skipped" and not t.gpu for t in tests)
    return "passed" if any(t.how == "passed" for t in tests) and not missing else "not shown here"


def in_words(tests: Sequence[Outcome]) -> str:
    """The state, and what was skipped: `passed, 3 need a GPU`."""
    gpu = sum(t.how == "skipped" and t.gpu for t in tests)
    other = sum(t.how == "skipped" and not t.gpu for t in tests)
    skipped = [f"{gpu} need{'s' * (gpu == 1)} a GPU"] * bool(gpu) + [f"{other} skipped"] * bool(other)
    return ", ".join([state(tests), *skipped])


def table(spec: Mapping[str, str], found: Mapping[str, Sequence[Outcome]], verbose: bool) -> Table:
    made = Table("row", "state", "what", title="docs/spec.md", title_justify="left")
    made.add_column("tests", overflow="fold")
    for row in [*spec, *sorted(set(found) - set(spec))]:
        tests: dict[str, Counter[str]] = defaultdict(Counter)
        for one in found.get(row, ()):
            tests[one.test][one.how] += 1
        lines = [
            f"{test.removeprefix('tests/')}: "
            + ", ".join(f"{n} {outcome}" for outcome, n in sorted(count.items()))
            for test, count in sorted(tests.items(), key=lambda item: (not item[1]["failed"], item[0]))
        ]
        more = [] if verbose or len(lines) <= SHOWN else [f"and {len(lines) - SHOWN} more (-v)"]
        shown = "\n".join((lines if verbose else lines[:SHOWN]) + more)
        how = Text(in_words(found.get(row, ())), STYLES[state(found.get(row, ()))])
        made.add_row(row, how, Text(spec.get(row, "not a row of docs/spec.md")), Text(shown))
    return made


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="name every test")
    args = parser.parse_args(argv)
    spec = rows(SPEC.read_text())
    found = outcomes(args.report.read_text().splitlines() if args.report.exists() else [])
    console = Console()
    console.print(table(spec, found, args.verbose))
    count = Counter(state(found.get(row, ())) for row in spec)
    console.print(f"{len(spec)} rows: " + ", ".join(f"{count[s]} {s}" for s in STYLES if count[s]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
