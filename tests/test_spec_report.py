"""tools/spec_report.py: what `make spec` says of a row, from what its tests did."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
if not (ROOT / "tools" / "spec_report.py").exists():
    pytest.skip("a source distribution has no tools", allow_module_level=True)

spec = importlib.util.spec_from_file_location("spec_report", ROOT / "tools" / "spec_report.py")
report = importlib.util.module_from_spec(spec)
sys.modules["spec_report"] = report  # dataclasses look their module up
spec.loader.exec_module(report)


def said(*entries):
    """Of row A1, from (test, outcome, needs a GPU)."""
    lines = [json.dumps({"rows": ["A1"], "test": t, "outcome": how, "gpu": gpu}) for t, how, gpu in entries]
    return report.in_words(report.outcomes(lines).get("A1", ()))


@pytest.mark.parametrize("entries, words", [
    ([], "open"),
    ([("a", "passed", False), ("b", "passed", False)], "passed"),
    ([("a", "passed", False), ("b", "failed", False)], "failed"),
    ([("a", "passed", False), ("b", "failed", True)], "failed"),
    ([("a", "passed", False), ("b", "skipped", True)], "passed, 1 needs a GPU"),
    ([("a[1]", "passed", False), ("a[2]", "skipped", True), ("b", "skipped", True)], "passed, 2 need a GPU"),
    ([("a", "passed", False), ("b", "skipped", False)], "not shown here, 1 skipped"),
    ([("a", "passed", True), ("b", "skipped", False)], "not shown here, 1 skipped"),
    ([("a", "skipped", True), ("b", "skipped", True)], "not shown here, 2 need a GPU"),
    ([("a", "passed", True), ("b", "passed", False)], "passed"),
    ([("a", "started", False), ("a", "passed", False)], "passed"),
    ([("a", "started", False), ("a", "passed", False), ("b", "started", False)], "failed"),  # its process died
    ([("a", "started", False), ("a", "passed", False), ("a", "failed", False)], "failed"),  # in its teardown
])  # fmt: skip
def test_a_row_has_passed_only_if_all_its_tests_have_that_can_run_here(entries, words):
    assert said(*entries) == words


PROBE = """
import os, pytest

@pytest.mark.spec("A1")
@pytest.mark.parametrize("n", [1, 2])
def test_passes(n): pass

@pytest.mark.spec("A1")
@pytest.mark.gpu
def test_needs_a_gpu(): pytest.skip("as if there were none")

@pytest.mark.spec("A2")
def test_skips(): pytest.skip("something is missing")

@pytest.mark.spec("A3", "A4")
def test_fails(): assert False

@pytest.mark.spec("A4")
def test_passes_too(): pass

@pytest.mark.spec("A5")
def test_dies(): os._exit(1)
"""


def test_what_the_tests_tell_is_what_the_table_says(tmp_path):
    """The suite's own conftest.py writes the report."""
    told, probe = tmp_path / "report.jsonl", tmp_path / "test_probe.py"
    probe.write_text(PROBE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-c",
        str(ROOT / "pyproject.toml"),
    ]
    env = {**os.environ, "AICF_SPEC_REPORT": str(told), "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(probe)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        timeout=120,
    )
    found = report.outcomes(told.read_text().splitlines())
    words = {row: report.in_words(found[row]) for row in found}
    assert words == {
        "A1": "passed, 1 needs a GPU", "A2": "not shown here, 1 skipped", "A3": "failed", "A4": "failed", "A5": "failed",
    }  # fmt: skip


def test_every_row_of_the_document_is_read():
    text = report.SPEC.read_text(encoding="utf-8")
    rows = report.rows(text)
    lines = re.findall(r"^\| [A-Z]\d+ .*$", text, re.MULTILINE)
    assert len(rows) == len(lines) == 77
    for line, (row, what) in zip(lines, rows.items()):
        assert line.count(" | ") == 2 or line.endswith("| |"), line
        assert line.startswith(f"| {row} | {what} |")
        assert len(what) > 20


# --- marks ------------------------------------------------------------------------------------------------------------

MARK = re.compile(r"mark\.spec\(([^)]*)\)")
MARKS = {
    row: path.relative_to(ROOT)
    for path in sorted((ROOT / "tests").rglob("*.py"))
    for ids in MARK.findall(path.read_text(encoding="utf-8"))
    for row in re.findall(r"[\"']([^\"']+)[\"']", ids)
}
ROWS = set(re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs" / "spec.md").read_text(encoding="utf-8"), re.MULTILINE))


def test_every_mark_names_a_row_of_the_specification():
    assert len(ROWS) > 70
    assert not {row: str(path) for row, path in MARKS.items() if row not in ROWS}


def test_rows_without_a_mark_are_named_in_the_roadmap():
    """A row that no test proves is one that is left to do."""
    left = (ROOT / "docs" / "roadmap.md").read_text(encoding="utf-8")
    assert not {row for row in ROWS - set(MARKS) if not re.search(rf"\b{row}\b", left)}
