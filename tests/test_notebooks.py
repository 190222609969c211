"""Notebooks run from top to bottom in a Jupyter kernel on the CPU device, and carry the outputs that such a run makes.

Outputs are compared in kind: which cells have which, in which forms, and no errors. `AICF_ACCEPT=1` writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are run by nbclient, which is not installed")
NotebookClient = pytest.importorskip("nbclient").NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
ACCEPT = bool(os.environ.get("AICF_ACCEPT"))
MOST_BYTES = 300_000
EVERY_NOTEBOOK = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def outputs(notebook: Any) -> Iterator[Any]:
    return (output for cell in notebook.cells for output in cell.get("outputs", ()))


def kinds(notebook: Any) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """For each cell its outputs: results with their forms, streams with their names."""
    return [
        (
            cell.id,
            [
                (o.output_type, sorted(o.get("data", ())) or [o.get("name", "")])
                for o in cell.get("outputs", ())
            ],
        )
        for cell in notebook.cells
    ]


def run(notebook: Any, folder: Path) -> Any:
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    notebook.metadata = {name: notebook.metadata[name] for name in ("kernelspec", "language_info")}
    notebook.metadata.language_info = {"name": "python"}  # not which Python it was
    return notebook


@pytest.mark.spec("F4", "F7")
@EVERY_NOTEBOOK
def test_a_notebook_runs_and_has_the_outputs_it_makes(path, monkeypatch):
    monkeypatch.setenv("AICF_DEVICE", "cpu")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    made = run(read(path), path.parent)  # a cell that raises is an error here
    if ACCEPT:
        nbformat.write(made, path)
    assert kinds(made) == kinds(read(path)), "run again with AICF_ACCEPT=1 to write the outputs anew"


@pytest.mark.spec("F5", "F7")
@EVERY_NOTEBOOK
def test_a_notebook_s_outputs_are_there_and_sound(path):
    """Without running it: pictures that are well-formed, traces in both forms, no errors, not much of it."""
    notebook = read(path)
    nbformat.validate(notebook)
    found = list(outputs(notebook))
    assert not [o for o in found if o.output_type == "error" or o.get("name") == "stderr"]
    forms = [o.data for o in found if "data" in o]
    pictures = [data["image/svg+xml"] for data in forms if "image/svg+xml" in data]
    assert len(pictures) >= 3
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and len(list(root.iter())) > 4
    plain = [data["text/plain"] for data in forms if "image/svg+xml" in data or "text/html" in data]
    assert all(plain), "str() is text, in a notebook too"
    assert not [o for o in found if o.output_type == "display_data"], (
        "text was displayed when it was asked for"
    )
    assert "at Cell In[" in "".join(o.get("text", "") for o in found)
    traces = [data for data in forms if "chosen" in data.get("text/plain", "")]
    assert traces and all("chosen" in data["text/html"] for data in traces)
    assert any("parameters" in data.get("text/html", "") and "<table>" in data["text/html"] for data in forms)
    assert path.stat().st_size < MOST_BYTES
    text = path.read_text()
    assert "ipykernel_" not in text and str(Path.home()) not in text and "/work/" not in text
