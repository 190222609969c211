"""The rows of docs/spec.md with the tests that hold them: `python tools/spec_report.py REPORT.jsonl`.

The report is what the test suite writes when AICF_SPEC_REPORT names a file: one JSON object per line, with the rows a test
is marked with, its node id and its outcome. `make spec` does both. The exit code is 0 whatever the outcomes are.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

SPEC = Path(__file__).parents[1] / "docs" / "spec.md"
STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow", "open": "dim"}
SHOWN = 3  # tests named per row, unless -v


def rows(text: str) -> dict[str, str]:
    """Row id -> what it says, in the document's order."""
    return dict(re.findall(r"^\| ([A-Z]\d+) \| (.+?) \|$", text, re.MULTILINE))


def outcomes(lines: list[str]) -> dict[str, dict[str, Counter[str]]]:
    """Row id -> test -> outcome -> how often; a parametrised test counts once for each case."""
    found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for line in lines:
        entry = json.loads(line)
        for row in entry["rows"]:
            found[row][entry["test"].split("[")[0]][entry["outcome"]] += 1
    return found


def state(tests: Mapping[str, Counter[str]]) -> str:
    """failed if any case failed, else passed if any passed, else skipped; open without a test."""
    total = sum(tests.values(), Counter())
    return next((o for o in ("failed", "passed", "skipped") if total[o]), "open")


def table(spec: Mapping[str, str], found: Mapping[str, Mapping[str, Counter[str]]], verbose: bool) -> Table:
    made = Table("row", "state", "what", title="docs/spec.md", title_justify="left")
    made.add_column("tests", overflow="fold")
    for row in [*spec, *sorted(set(found) - set(spec))]:
        tests = found.get(row, {})
        lines = [
            f"{test.removeprefix('tests/')}: "
            + ", ".join(f"{n} {outcome}" for outcome, n in sorted(count.items()))
            for test, count in sorted(tests.items(), key=lambda item: (not item[1]["failed"], item[0]))
        ]
        more = [] if verbose or len(lines) <= SHOWN else [f"and {len(lines) - SHOWN} more (-v)"]
        shown = "\n".join((lines if verbose else lines[:SHOWN]) + more)
        how = state(tests)
        made.add_row(
            row, Text(how, STYLES[how]), Text(spec.get(row, "not a row of docs/spec.md")), Text(shown)
        )
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
    count = Counter(state(found.get(row, {})) for row in spec)
    console.print(f"{len(spec)} rows: " + ", ".join(f"{count[s]} {s}" for s in STYLES if count[s]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
