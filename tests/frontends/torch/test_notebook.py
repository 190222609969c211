"""The sections of the notebook of other frameworks that need PyTorch: tests/test_notebooks.py runs the others, and keeps what is stored of these."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
nbformat = pytest.importorskip("nbformat", reason="notebooks are run by nbclient, which is not installed")
pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[3]
if not (ROOT / "tools" / "notebooks.py").exists():
    pytest.skip("a source distribution has no tools", allow_module_level=True)

spec = importlib.util.spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


@pytest.mark.sample(1, pool="models of PyTorch")
@pytest.mark.spec("F4")
def test_the_notebook_s_sections_of_pytorch_run_and_have_the_outputs_they_make():
    stored = tool.read("08-torch-onnx-jax")
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    stored.cells = [c for c in code if c in code[:2] or c.source.startswith("%%needs torch")]
    assert len(stored.cells) >= 7
    made = tool.execute(stored, "cpu")
    for cell, before in zip(made.cells, stored.cells):
        forms, wanted = ([sorted(o.get("data", ())) or o.name for o in c.outputs] for c in (cell, before))
        assert forms == wanted, cell.source
    losses = made.cells[3].outputs[0].data["text/plain"].replace("array", "").splitlines()
    eager, compiled = (line.strip(" ([])").rstrip("],") for line in losses)
    assert eager == compiled and eager.count(",") == 4
