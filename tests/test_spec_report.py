"""tools/spec_report.py: what `make spec` says of a row, from what its tests did."""

import ast
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
ROWS = set(
    re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs" / "spec.md").read_text(encoding="utf-8"), re.MULTILINE)
)


def test_every_mark_names_a_row_of_the_specification():
    assert len(ROWS) > 70
    assert not {row: str(path) for row, path in MARKS.items() if row not in ROWS}


def test_rows_without_a_mark_are_named_in_the_roadmap():
    """A row that no test proves is one that is left to do."""
    left = (ROOT / "docs" / "roadmap.md").read_text(encoding="utf-8")
    assert not {row for row in ROWS - set(MARKS) if not re.search(rf"\b{row}\b", left)}


def test_a_row_whose_tests_are_in_pools_has_another_that_every_run_has():
    rows: dict[bool, set[str]] = {True: set(), False: set()}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            marks = " ".join(map(ast.unparse, getattr(node, "decorator_list", ())))
            found = {row for ids in MARK.findall(marks) for row in re.findall(r"[A-Z]\d+", ids)}
            rows["pool=" in marks and "always=" not in marks] |= found
    assert rows[True] and not rows[True] - rows[False]


NN, GRAPH, OPS = "tests/nn/test_", "tests/graph/test_", "tests/ops/test_"
LAYER = "test_a_layer_computes_what_numpy_does_and_has_its_gradients"
IMAGE, PLAIN, EVERY = (
    (f"{NN}image_layers.py", LAYER),
    (f"{NN}layers.py", LAYER),
    (f"{OPS}gradient.py", "test_against_central_differences"),
)
CALLED = ("tests/dispatch/test_op_call.py", "test_every_op_agrees_with_its_reference")
STEPS, MORE = (f"{NN}numerics.py", "test_ten_steps_of_each_optimizer"), (f"{NN}adaptive.py", "test_ten_steps")
LOSS = (f"{NN}losses.py", "test_values_and_slopes_are_those_of_the_formula")
D13 = {
    "batchnorm": [IMAGE], "concat": [(f"{GRAPH}masked.py", "test_a_concatenate_and_its_gradient")], "conv2d": [IMAGE],
    "cross_entropy": [(f"{NN}numerics.py", "test_loss_and_gradients_of_each_activation_and_loss"), LOSS],
    "dropout": [(f"{NN}dropout.py", "test_forward_and_backward_use_one_mask")], "elementwise": [(f"{NN}activation_layers.py", LAYER), CALLED, EVERY],
    "embedding": [(f"{NN}layers.py", "test_an_embedding_reads_rows_and_its_gradient_adds_to_them")], "indexing": [CALLED, EVERY],
    "layernorm": [PLAIN], "memory": [CALLED, EVERY],
    "pad": [(f"{GRAPH}masked.py", "test_the_gradient_of_a_pad_is_zero_where_it_cut_and_skips_what_it_put_between")], "pool2d": [IMAGE],
    "reduction": [CALLED, EVERY], "rmsnorm": [PLAIN], "rnn": [
        (f"{NN}recurrent.py", LAYER), (f"{NN}recurrent.py", "test_a_step_of_training_moves_weights_by_numpys_gradient"),
    ],
    "sdpa": [(f"{NN}attention_layers.py", "test_attention_is_numpys_and_has_its_gradients")],
    "slice": [(f"{NN}slices.py", "test_gradients_of_slices_are_the_numerical_ones")], "softmax": [CALLED, EVERY],
    "upsample2d": [(f"{NN}more_image_layers.py", LAYER)], "view": [CALLED, EVERY], "MSE": [LOSS], "BCE": [LOSS], "softmax-CE": [LOSS],
    "SGD": [STEPS], "Adam": [STEPS], "AdamW": [STEPS], "RMSprop": [MORE], "Adagrad": [MORE], "AMSGrad": [MORE], "LAMB": [MORE], "Lion": [MORE],
    "learning-rate schedules": [(f"{NN}training.py", "test_a_schedule_in_the_graph_gives_the_textbook_rates")],
}  # fmt: skip


def test_everything_that_d13_names_has_a_test_that_carries_its_mark():
    (row,) = re.findall(
        r"^\| D13 \| (.*?) \|", (ROOT / "docs" / "spec.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    named = re.sub(r"\([^)]*\)|The ops|losses|optimizers", "", row)
    assert {word.strip() for word in re.split("[,;]", named)} == set(D13)
    for name, proofs in D13.items():
        for file, test in proofs:
            marks = re.findall(
                rf"((?:^@.*\n)(?:^(?!\n).*\n)*?)^def {test}\(",
                (ROOT / file).read_text(encoding="utf-8"),
                re.MULTILINE,
            )
            assert len(marks) == 1 and '"D13"' in marks[0], f"{name}: {file}::{test}"
