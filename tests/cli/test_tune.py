"""`aicf tune`: what it writes, what it tells, and which files it refuses."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aicf
from aicf import model_file, tune
from aicf.cli import main
from aicf.dispatch import default_registry
from aicf.registry.registry import KernelRegistry
from aicf.registry.tuning import Tuning
from aicf.registry.variant import HostCall

MODEL = """
import aicf
from aicf import nn

def build():
    return nn.Model({"x": aicf.TensorSpec((6, 5))}).add(nn.Linear(5, 3)).add(nn.ReLU())

def loss():
    return nn.SoftmaxCrossEntropy()

def optimizer():
    return nn.SGD(lr=0.1)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def measured(*more: str) -> int:
    return main(["tune", "model.py", "--device", "cpu", "--budget", "60", *more])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> bytes:
    """The file that the command writes, measured once."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "model.py").write_text(MODEL)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        assert measured("--output", "t.json") == 0
    return (folder / "t.json").read_bytes()


@pytest.fixture
def file(here, tuned):
    (here / "t.json").write_bytes(tuned)
    return here / "t.json"


@pytest.mark.spec("A7")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_model_is_tuned_into_a_file_that_compile_takes(mode, device, here, capsys):
    assert main(["tune", "model.py", "--device", device, "--mode", mode, "--budget", "90"]) == 0
    out, err = capsys.readouterr()
    assert "measured" in out and "predicted" in out and "gain" in out and "written" in out
    assert err == "", "no progress bar where there is no terminal"
    tuning = Tuning.load("tuning.json", aicf.runtime(device).spec, default_registry())
    assert len(tuning) >= 3 and not any(m.refused for m in tuning.regions.values())
    made = model_file.load("model.py", mode)
    program = aicf.compile(
        made.model, mode, device=device, loss=made.loss, optimizer=made.optimizer, tuning="tuning.json"
    )
    assert program.tuning == tuning
    assert all((s.region.key, s.kernel_id) in tuning for s in program.explain().plan.steps if s.kernel_id)


def test_what_a_file_has_is_not_measured_again(file, capsys):
    before = file.read_bytes()
    assert measured("--output", "t.json", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured"] == [] and told["output"] == "t.json" and told["kernels_after"] > 0
    assert json.loads(file.read_bytes())["regions"] == json.loads(before)["regions"]


def test_json_has_the_numbers(capsys):
    assert measured("--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["device"] == "cpu" and len(told["measured"]) >= 3 and told["wrong"] == told["left"] == []
    assert told["us_before"] > 0 and told["us_after"] > 0
    assert told["gain"] == pytest.approx(told["us_before"] / told["us_after"])
    assert {"region", "kernel", "predicted_us", "measured_us"} == set(told["regions"][0])


def test_too_small_a_budget_writes_nothing_and_says_what_is_left(here, capsys):
    assert main(["tune", "model.py", "--device", "cpu", "--budget", "1e-9"]) == 2
    out, err = capsys.readouterr()
    assert "for want of time" in out and "nothing was measured" in out
    assert "nothing could be measured in 1e-09 s" in err and "next: --budget 60" in err
    assert [p.name for p in here.iterdir() if p.name.endswith(".json")] == []


@pytest.mark.spec("A7")
def test_a_wrong_kernel_makes_the_exit_code_1_and_is_never_written(monkeypatch, capsys):
    right = default_registry().by_id("cpu.reference.v1")

    def build(region, device):
        inner = right.build(region, device).function

        def run(operands, results):
            inner(operands, results)
            results[0].reshape(-1)[0] = 7 + np.abs(results[0]).max()

        return HostCall(run)

    wrong = replace(right, id="cpu.wrong.v1", build=build, priority=99)
    registry = KernelRegistry([*default_registry(), wrong])
    monkeypatch.setattr(tune, "default_registry", lambda: registry)
    assert measured("--output", "t.json") == 1
    assert "WRONG" in (out := capsys.readouterr().out) and "cpu.wrong.v1 on gemm(" in out
    data = json.loads(Path("t.json").read_text())
    assert "cpu.wrong.v1" not in {m["kernel"] for r in data["regions"] for m in r["measured"]}
    assert "cpu.wrong.v1" in {m["kernel"] for r in data["regions"] for m in r["refused"]}
    program = aicf.compile(
        model_file.load("model.py").model, device="cpu", registry=registry, tuning="t.json"
    )
    assert "cpu.wrong.v1" not in program.explain().plan.kernel_ids
    assert main(["tune", "--check", "t.json"]) == 0
    assert "refused" in capsys.readouterr().out


def test_explain_takes_a_file(file, capsys):
    assert main(["explain", "model.py", "--tuning", "t.json"]) == 0
    assert " us measured  " in capsys.readouterr().out
    assert main(["explain", "model.py", "--tuning", "t.json", "--region", "0"]) == 0
    assert "= measured" in (out := capsys.readouterr().out) and "predicted)" in out
    assert main(["explain", "model.py", "--device", "h200", "--tuning", "t.json"]) == 2
    assert "t.json is of another device" in capsys.readouterr().err


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("A7", "B13")
def test_the_same_file_gives_the_same_plan_in_every_process(file, capsys):
    """In this one, and in one with another seed of hashes."""
    command = ["explain", "model.py", "--tuning", "t.json", "--json"]
    assert main(command) == 0
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    other = subprocess.run(
        [sys.executable, "-m", "aicf", *command], env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert other.stdout == (told := capsys.readouterr().out) and '"predicted_us"' in told


def test_a_terminal_sees_a_progress_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert measured() == 0
    assert "tuning" not in capsys.readouterr().err, "FORCE_COLOR makes no terminal of a file"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert measured("--update") == 0
    assert "tuning" in capsys.readouterr().err


# --- files --------------------------------------------------------------------------------------------------------------


def staled(tuning):
    """As of a file whose first kernel has changed since."""
    first = min(tuning.header.kernels)
    kernels = {**tuning.header.kernels, first: "00ff"}
    return Tuning(replace(tuning.header, text="", kernels=kernels), tuning.regions.values())


def test_a_check_tells_what_is_in_a_file(file, capsys):
    assert main(["tune", "--check", "t.json"]) == 0
    out = capsys.readouterr().out
    assert "t.json" in out and "regions" in out and " kernels, 20" in out
    assert main(["tune", "--check", "t.json", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    tuning = Tuning.load(file)
    assert (told["regions"], told["times"]) == (len(tuning.regions), len(tuning))


@pytest.mark.sample(1, each="how")
@pytest.mark.spec("A7")
@pytest.mark.parametrize("command", [["--check", "t.json"], ["--merge", "t.json"], ["model.py", "--output", "t.json"],
                                     ["model.py", "--merge", "t.json"]], ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("how", ["cut", "changed", "foreign", "stale", "missing"])
def test_a_file_that_is_not_good_is_refused_by_name_and_left_alone(how, command, file, capsys):
    tuning = Tuning.load(file)
    if how == "cut":
        file.write_text(file.read_text()[:-50])
    elif how == "changed":
        file.write_text(file.read_text().replace('"runs": ', '"runs": 1', 1))
    elif how == "foreign":
        header = replace(tuning.header, device="h200", target="sm_90a", sms=132)
        Tuning(header, tuning.regions.values()).save(file)
        if "model.py" not in command:
            return  # a file of another device may be checked, and merged with its like
    elif how == "stale":
        staled(tuning).save(file)
    else:
        file.unlink()
        if command[-2:] == ["--output", "t.json"]:
            return  # it is written
    before = file.read_bytes() if file.exists() else None
    assert main(["tune", "--device", "cpu", "--budget", "5", *command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("TuningError: t.json")
    assert "Traceback" not in error
    assert before == (file.read_bytes() if file.exists() else None)


@pytest.mark.spec("A7")
def test_an_update_measures_a_stale_file_s_regions_again(file, capsys):
    tuning = Tuning.load(file)
    staled(tuning).save(file)
    assert main(["tune", "--device", "cpu", "--update", "--output", "t.json", "--budget", "60"]) == 0
    assert "written" in capsys.readouterr().out
    again = Tuning.load(file, aicf.runtime("cpu").spec, default_registry())
    assert again.regions.keys() == tuning.regions.keys()
    assert dict(again) != dict(tuning)


def test_an_update_of_nothing_says_so(capsys):
    assert main(["tune", "--device", "cpu", "--update", "--output", "none.json"]) == 2
    assert "there is no file 'none.json' to update" in capsys.readouterr().err


def test_files_are_merged_into_one(file, here, capsys):
    tuning = Tuning.load(file)
    parts = list(tuning.regions.values())
    Tuning(tuning.header, parts[:2]).save("a.json")
    Tuning(tuning.header, parts[1:]).save("b.json")
    assert main(["tune", "--merge", "a.json", "b.json", "--output", "c.json"]) == 0
    assert "c.json" in capsys.readouterr().out
    assert Tuning.load("c.json") == tuning
    assert file.read_bytes() == (here / "c.json").read_bytes()


def test_without_anything_to_do_it_says_what_to_name(capsys):
    assert main(["tune"]) == 2
    assert "nothing to tune" in capsys.readouterr().err


@pytest.mark.parametrize("budget", ["0", "-3", "soon", "inf", "nan"])
def test_a_budget_is_a_number_of_seconds(budget, capsys):
    with pytest.raises(SystemExit):
        measured(f"--budget={budget}")
    assert "no number of seconds" in capsys.readouterr().err


def test_training_needs_a_loss_in_the_file(here, capsys):
    (here / "model.py").write_text(MODEL.partition("def loss")[0])
    assert measured("--mode", "train") == 2
    assert "model.py defines no loss(), which mode train needs" in capsys.readouterr().err
