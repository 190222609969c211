"""Notebooks run from top to bottom in a Jupyter kernel on the CPU device, and carry the outputs that such a run makes.

Outputs are compared in kind: which cells have which, in which forms, and no errors. `python tools/notebooks.py` writes them anew.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are run by nbclient, which is not installed")
pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[1]
if not (ROOT / "tools" / "notebooks.py").exists():
    pytest.skip("a source distribution has no tools", allow_module_level=True)

spec = importlib.util.spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)

MOST_BYTES = 150_000
EVERY_NOTEBOOK = pytest.mark.parametrize("name", tool.names())


def outputs(notebook: Any) -> Iterator[Any]:
    return (output for cell in notebook.cells for output in cell.get("outputs", ()))


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


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


def small(*cells: Any) -> Any:
    return nbformat.v4.new_notebook(cells=list(cells))


@pytest.mark.sample(2)
@pytest.mark.spec("F4", "F7")
@EVERY_NOTEBOOK
def test_a_notebook_runs_and_has_the_outputs_it_makes(name):
    made = tool.execute(tool.read(name), "cpu")  # a cell that raises is an error here
    assert kinds(made) == kinds(tool.read(name)), f"python tools/notebooks.py {name} writes the outputs anew"
    assert not [o for o in outputs(made) if o.get("name") == "stderr"]


@pytest.mark.spec("F4", "F5")
@EVERY_NOTEBOOK
def test_a_notebook_s_outputs_are_there_and_sound(name):
    """Without running it: made by one run of these cells, well-formed, no errors, not much of it, and nothing of the machine."""
    notebook = tool.read(name)
    nbformat.validate(notebook)
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    found = list(outputs(notebook))
    assert len(found) >= len(code(notebook)) // 2
    assert not [o for o in found if o.output_type == "error" or o.get("name") == "stderr"]
    forms = [o.data for o in found if "data" in o]
    for data in forms:
        if "image/svg+xml" in data:
            root = ElementTree.fromstring(data["image/svg+xml"])
            assert root.tag == "{http://www.w3.org/2000/svg}svg" and len(list(root.iter())) > 4
    assert all(data.get("text/plain") for data in forms if data.keys() & {"image/svg+xml", "text/html"})
    assert not tool.paths_in(notebook)
    assert "Skipped: " not in tool.text_of(notebook), "run it where all packages are installed"
    assert (tool.FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES


@EVERY_NOTEBOOK
def test_a_notebook_begins_with_the_cell_that_installs(name):
    """The same in all, behind the title; it needs no output, and installs only what is missing."""
    first = code(tool.read(name))[0]
    assert tool.read(name).cells.index(first) == 1 and not first.outputs
    assert first.source == code(tool.read(tool.names()[0]))[0].source
    assert 'find_spec("aicf") is None' in first.source and "Colab" in first.source
    assert " ".join(("pip", "install", "aicf")) not in first.source  # no index has it


@EVERY_NOTEBOOK
def test_links_in_a_notebook_lead_somewhere(name):
    prose = "\n".join(cell.source for cell in tool.read(name).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        assert (tool.FOLDER / target).exists(), target


def test_the_index_has_every_notebook_in_order():
    index = (tool.FOLDER / "README.md").read_text()
    assert re.findall(r"\]\(([\w-]+)\.ipynb\)", index) == tool.names()


@pytest.mark.spec("F5")
def test_the_first_notebook_has_traces_pictures_and_tables():
    notebook = tool.read("00-quickstart")
    found = list(outputs(notebook))
    forms = [o.data for o in found if "data" in o]
    assert sum("image/svg+xml" in data for data in forms) >= 3
    assert not [o for o in found if o.output_type == "display_data"], (
        "text was displayed when it was asked for"
    )
    assert "at: Cell In[" in tool.text_of(notebook)
    traces = [
        data for data in forms if " plan " in data.get("text/plain", "") and "region" in data["text/plain"]
    ]
    assert len(traces) >= 2 and all("<details" in data["text/html"] for data in traces)
    assert any("parameters" in data.get("text/html", "") and "<table>" in data["text/html"] for data in forms)


def test_a_cell_that_needs_a_package_runs_where_it_is_and_says_so_where_it_is_not():
    """Where it can't run, the tool keeps the outputs that are stored."""
    sources = (
        "import machine",
        "%%needs no_such_package\n1 / 0",
        "get_ipython().run_cell_magic('needs', 'json no_such_package', '1 / 0')",
        "%%needs json\nprint(2)\n6 * 7",
    )
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells[1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="as it was")]
    _, kept, skipped, run = tool.execute(small(*cells), "cpu").cells
    assert kept.outputs == cells[1].outputs
    assert skipped.outputs[0].data["text/markdown"] == "*Skipped: no_such_package is not installed.*"
    assert [o.get("text") or o.data["text/plain"] for o in run.outputs] == ["2\n", "42"]


def test_what_a_cell_raises_behind_needs_ends_the_run():
    cells = [nbformat.v4.new_code_cell(source) for source in ("import machine", "%%needs json\n1 / 0")]
    with pytest.raises(tool.CellExecutionError, match="ZeroDivisionError"):
        tool.execute(small(*cells), "cpu")


def test_outputs_that_tell_of_the_machine_are_found():
    for text in (f"at {Path.home()}/x.py", "/tmp/ipykernel_7/8.py:3", "of /usr/lib/copyreg.py/lib"):
        cell = nbformat.v4.new_code_cell("", outputs=[nbformat.v4.new_output("stream", text=text)])
        assert tool.paths_in(small(cell)), text
    cell = nbformat.v4.new_code_cell("", outputs=[nbformat.v4.new_output("stream", text="at Cell In[3]:2")])
    assert not tool.paths_in(small(cell))
