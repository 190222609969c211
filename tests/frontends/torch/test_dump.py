"""AICF_DUMP and the log channels: parts of PyTorch's graphs are compilations like any other."""

import json

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from aicf.graph.run.plan import ExecPlan  # noqa: E402


@pytest.mark.spec("F8")
def test_a_part_is_dumped_and_its_first_call_traced(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("AICF_DUMP", str(tmp_path))
    monkeypatch.setenv("AICF_LOGS", "plan")
    x, w = torch.randn(8, 16), torch.randn(16, 4)
    compiled = torch.compile(lambda x, w: torch.relu(x @ w) * 2, backend="aicf")
    want = torch.relu(x @ w) * 2
    torch.testing.assert_close(compiled(x, w), want)
    (folder,) = tmp_path.iterdir()
    assert folder.name == "0001-infer-torch"
    plan = ExecPlan.from_json((folder / "07-plan.json").read_text())
    trace = json.loads((folder / "08-trace.json").read_text())
    assert trace["how"] == "call" and trace["plan"] == plan.key
    assert trace["launched"] == list(plan.kernel_ids) and len(trace["launched"]) == len(trace["steps"])
    assert x.data_ptr() in [t["pointer"] for step in trace["steps"] for t in step["reads"]]
    before = (folder / "08-trace.json").read_text()
    compiled(torch.randn(8, 16), w)
    assert (folder / "08-trace.json").read_text() == before
    (made,) = [r.fields for r in caplog.records if r.name == "aicf.plan" and "plan" in r.fields]
    assert made["plan"] == plan.key and made["why"] == "a part of a graph of PyTorch's"
