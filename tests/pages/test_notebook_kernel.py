"""A Jupyter kernel shows objects in both forms, and a training run in one place that is drawn anew (F4, F5)."""

from __future__ import annotations

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are run by nbclient, which is not installed")
NotebookClient = pytest.importorskip("nbclient").NotebookClient

CELLS = (
    """import numpy as np, aicf
from aicf import nn
model = nn.Model({"x": aicf.TensorSpec((16, 8))}).add(nn.Linear(8, 8)).add(nn.ReLU(), "<img src=x onerror=alert(1)>").add(nn.Linear(8, 3))
aicf.explain_for(model, "h200")""",
    """train = aicf.compile(model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.Adam(1e-2))
data = [{"x": np.ones((16, 8), "f4"), "y": np.zeros(16, "i8")}] * 4
history = train.fit(data, steps=40, log_every=1, validation=data[:1], validate_every=10)""",
    "history",
    "train.fit(data, steps=4, progress=False); train",
    "train.plan",
    "model.summary()",
)


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("F4", "F5")
def test_a_kernel_shows_both_forms_and_one_curve(monkeypatch):
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [cell.outputs for cell in notebook.cells]
    assert [[o.output_type for o in outputs] for outputs in shown] == [
        ["execute_result"], ["display_data"], *[["execute_result"]] * 4,
    ]  # fmt: skip
    for (output,) in shown:
        assert set(output.data) == {"text/plain", "text/html"}
    explanation, curve, history, program, plan, summary = (outputs[0].data for outputs in shown)
    assert "kernel" in explanation["text/plain"] and "<svg" in explanation["text/html"]
    assert "<img" not in explanation["text/html"]
    assert curve["text/plain"].startswith("40 steps, ended by steps"), (
        "the place was drawn anew up to the end"
    )
    assert "validation" in curve["text/html"] and curve["text/html"].count("<svg") == 1
    assert history["text/plain"] == curve["text/plain"]
    assert "train program" in program["text/html"] and "44 of" not in program["text/html"]
    assert "Arena over time" in plan["text/html"] and "parameters" in summary["text/html"]
