"""Notebooks run from top to bottom on the CPU device (F4, F7), each in a process of its own, and render their traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))

# Runs the code cells in one namespace, as a notebook does, and asks the last expression of each to render itself.
RUN = """
import ast, json, sys
names = {"__name__": "__main__"}
for n, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]), f"cell {n}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, f"cell {n}", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), f"cell {n}", "eval"), names)
        if hasattr(value, "_repr_mimebundle_"):
            bundle = value._repr_mimebundle_(include=[], exclude=[])
            assert "chosen" in bundle["text/html"] and "chosen" in bundle["text/plain"]
            print("rendered", type(value).__name__)
"""


@pytest.mark.spec("F4", "F7")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_and_shows_its_traces(path):
    env = {**os.environ, "AICF_DEVICE": "cpu"}
    done = subprocess.run([sys.executable, "-c", RUN, str(path)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rendered Explanation" in done.stdout


@pytest.mark.spec("F7")
def test_notebooks_are_there_and_carry_no_outputs_of_another_machine():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert all(not cell.get("outputs") for cell in cells), path
