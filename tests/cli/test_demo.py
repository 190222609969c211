"""`aicf demo`: it learns, and its JSON has what it promises."""

from __future__ import annotations

import json

import numpy as np
import pytest
from nn.mlp import on_each_device

from aicf.cli import main

pytest.importorskip("sklearn", reason="the demo's data set comes with scikit-learn")


@on_each_device
@pytest.mark.spec("D16", "F5")
def test_it_learns_the_digits_and_writes_its_json(device, tmp_path, capsys):
    file = tmp_path / "demo.json"
    assert main(["demo", "--device", device, "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert {"test_accuracy", "train_accuracy", "step_us", "device", "selections"} <= set(data)
    assert data["test_accuracy"] >= 0.97
    assert 0.97 <= data["train_accuracy"] <= 1
    assert set(data["step_us"]) == {"eager", "replay"}
    assert all(us > 0 for us in data["step_us"].values())
    assert data["device"] == ("cpu" if device == "cpu" else data["device"])
    assert all(s["chosen"].startswith(f"{device}.") for s in data["selections"])
    out = capsys.readouterr().out
    assert f"test accuracy {data['test_accuracy']:.2%}" in out
    assert "region 0" in out


def test_the_data_is_split_without_overlap_and_seeded():
    from aicf.demo import digits

    x, y, x_test, y_test = digits()
    assert (len(x), len(x_test)) == (1437, 360)
    assert x.dtype == x_test.dtype == np.float32
    assert y.dtype == np.int64
    again = digits()
    assert all(np.array_equal(a, b) for a, b in zip((x, y, x_test, y_test), again))
    assert set(map(bytes, x)).isdisjoint(map(bytes, x_test))


def test_the_model_s_table_names_its_columns_and_its_total():
    from aicf.demo import build_model, model_table
    from aicf.registry.trace import render

    lines = render(model_table(build_model()), 80).splitlines()
    assert lines[1].split()[::2] == ["name", "layer", "output", "parameters"]
    assert lines[-1].split("│")[0].strip() == "total"
    assert lines[-1].split()[-1] == f"{64 * 512 + 512 + 512 * 256 + 256 + 256 * 10 + 10:,}"


def test_timing_steps_leaves_the_weights_as_they_were():
    from nn.mlp import batch_of, same, trainer

    from aicf.demo import step_times

    program = trainer("cpu")
    before = program.state_dict()
    times = step_times(program, batch_of(6), runs=3)
    assert times["eager"] > 0
    assert same(program.state_dict(), before)
