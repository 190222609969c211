"""Files with a model, as `aicf explain FILE` and `aicf tune FILE` take them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from draws.seeds import rng

from aicf.cli import main
from aicf.errors import AicfError
from aicf.model_file import load
from aicf.types import Precision
from examples import EVERYTHING

ROOT = Path(__file__).parents[2]
HEAD = "import aicf\nfrom aicf import nn\n"
NET = 'nn.Model({"x": (4, 6)}).add(nn.Linear(6, 3))'


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AICF_DEVICE", "cpu")
    # files that are loaded put their folder there, and one of them is called json.py
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def write(text: str, name: str = "net.py") -> str:
    Path(name).write_text(HEAD + text)
    return name


def ten_lines() -> str:
    """The README's own program, as somebody would paste it."""
    section = (ROOT / "README.md").read_text().split("## Ten lines", 1)[1]
    return section.split("```python\n", 1)[1].split("```", 1)[0]


@pytest.mark.spec("F4", "F6")
def test_the_readme_s_ten_lines_are_explained_as_they_train(capsys, here):
    Path("train.py").write_text(ten_lines())
    assert main(["explain", "train.py", "--device", "h200", "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["mode"] == "train" and told["device"] == "h200"
    assert any("adam_step" in r["region"] for r in told["regions"])
    assert "loss " in err, "what the file prints is not the command's output"
    assert main(["explain", "train.py", "--mode", "infer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "infer"


def test_a_file_is_run_once(here):
    write(f"open('runs', 'a').write('x')\nanything = {NET}\n")
    assert main(["explain", "net.py"]) == 0
    assert Path("runs").read_text() == "x"


def test_a_model_is_found_whatever_its_name():
    path = write(f"_of_mine = {NET}\n")
    asked = load(path)
    assert asked.mode == "infer" and asked.model.output.shape == (4, 3)
    assert load(f"{path}:_of_mine").model.output.shape == (4, 3)


def test_a_program_stands_for_a_model_without_a_name_and_brings_how_it_was_compiled():
    path = write(
        f"p = aicf.compile({NET}, 'train', loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.5), accumulate=3,\n"
        "    precision='tf32', numerics='strict', policy='bf16')\n"
    )
    asked = load(path)
    assert (asked.mode, asked.accumulate, asked.numerics, asked.policy) == ("train", 3, "strict", "bf16")
    assert Precision[str(getattr(asked.precision, "name", asked.precision))] is Precision.tf32
    assert type(asked.optimizer).__name__ == "SGD"
    assert load(path, "grad").policy == "bf16"
    other = load(path, "grad", precision="exact", numerics="fused", policy="f32")
    assert (other.mode, other.accumulate, other.optimizer) == ("grad", 1, None)
    assert (other.precision, other.numerics, other.policy) == ("exact", "fused", "f32")


def test_several_models_are_listed_and_picked_by_name(capsys):
    path = write(f"small = {NET}\nlarge = {NET}.add(nn.ReLU())\nrun = aicf.compile(large)\n")
    assert main(["explain", path]) == 2
    err = capsys.readouterr().err
    for said in (
        "net.py has 2 models",
        "net.py:small",
        "net.py:large",
        "net.py:run",
        "next: aicf explain net.py:small",
    ):
        assert said in err
    assert main(["explain", "net.py:small", "--json"]) == 0  # what the hint says
    assert len(json.loads(capsys.readouterr().out)["regions"]) == 1
    assert len(load("net.py:large").model.layers) == len(load("net.py:run").model.layers) == 2
    with pytest.raises(AicfError, match=r"net.py has no model called 'nobody'"):
        load("net.py:nobody")


def test_a_function_s_name_is_called_and_build_comes_first():
    path = write(
        f"other = {NET}\ndef build():\n    return {NET}.add(nn.ReLU())\ndef make():\n    return {NET}\n"
    )
    assert len(load(path).model.layers) == 2
    assert len(load(f"{path}:make").model.layers) == 1


def test_a_loss_and_an_optimizer_may_be_objects_or_functions():
    path = write(f"m = {NET}\nloss = nn.MeanSquaredError()\ndef optimizer():\n    return nn.Adam()\n")
    asked = load(path, "train")
    assert (type(asked.loss).__name__, type(asked.optimizer).__name__) == ("MeanSquaredError", "Adam")
    assert load(path).loss is None


def test_a_mode_that_the_file_can_t_have_says_what_it_lacks():
    with pytest.raises(AicfError, match=r"net.py defines no loss\(\), which mode train needs"):
        load(write(f"m = {NET}\nloss = 3.5\n"), "train")


def test_modules_beside_the_file_are_found_and_its_arguments_are_its_own(here):
    Path("widths_beside.py").write_text("WIDTH = 3\n")
    path = write(
        "import argparse\nfrom widths_beside import WIDTH\nargparse.ArgumentParser().parse_args()\n"
        "m = nn.Model({'x': (4, 6)}).add(nn.Linear(6, WIDTH))\n"
    )
    assert load(path).model.output.shape == (4, 3)


def test_a_file_may_be_called_as_a_module_of_python_s():
    assert load(write(f"m = {NET}\n", "json.py")).model.output.shape == (4, 3)
    assert json.loads("3") == 3


def test_what_ends_the_process_is_an_error_that_says_where_it_belongs(capsys):
    assert main(["explain", write("import sys\nsys.exit(3)\n")]) == 2
    err = capsys.readouterr().err
    assert "net.py failed: SystemExit: 3" in err and "net.py:4" in err and "__main__" in err


def test_no_model_says_where_they_are_looked_for(capsys):
    assert main(["explain", write("def main():\n    pass\n")]) == 2
    assert "net.py has no model" in (err := capsys.readouterr().err) and "under `if __name__" in err


def test_tune_takes_what_explain_takes(capsys):
    write(
        f"a = {NET}\nb = {NET}\n"
        "program = aicf.compile(b, 'train', loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.5))\n"
    )
    command = ["tune", "--device", "cpu", "--budget", "20", "--json"]
    assert main([*command, "net.py"]) == 2
    assert "net.py has 2 models" in capsys.readouterr().err
    assert main([*command, "net.py:b"]) == 0
    assert any("sgd_step" in m["region"] for m in json.loads(capsys.readouterr().out)["regions"])


def test_aicf_alone_is_its_help(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: aicf") and "explain" in out and "demo" in out


@pytest.mark.spec("F7")
def test_examples_are_listed_and_copied_and_work_there(capsys):
    """A drawn one, or all; each runs or is explained in its own folder by tests/graph, tests/models, tests/nn and tests/training."""
    assert main(["examples"]) == 0
    assert "mlp.py\n    A two-hidden-layer MLP" in capsys.readouterr().out
    assert main(["examples", "some/folder"]) == 0
    copied = capsys.readouterr().out.split()
    assert {Path(path).name for path in copied} == {p.name for p in (ROOT / "examples").glob("*.py")}
    for path in (
        copied if EVERYTHING else [copied[i] for i in rng("copied examples").permutation(len(copied))[:1]]
    ):
        assert main(["explain", path, "--device", "h200", "--mode", "train"]) == 0
    assert main(["examples", "some/folder"]) == 2
    assert "would be written over" in capsys.readouterr().err


def test_models_of_one_layer_are_told_apart():
    one = "nn.Model({'x': aicf.TensorSpec((4, 3))}, nn.Linear(3, 3))"
    path = write(
        f"a, b = {one}, {one}\np = aicf.compile(a, 'train', loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.5))\n"
    )
    with pytest.raises(AicfError, match="has 2 models"):
        load(path)
    assert load(f"{path}:a").mode == "train" and load(f"{path}:b").mode == "infer"
