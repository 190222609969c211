"""`aicf run FILE.onnx` and `aicf explain FILE.onnx`."""

import numpy as np
import onnx
import pytest
from onnx import helper

from aicf.cli import main

from .models import mlp, model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    proto, weights = mlp()
    onnx.save(proto, "m.onnx")
    x = np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32)
    np.save("x.npy", x)
    return np.maximum(x.astype(np.float64) @ weights["fc.weight"] + weights["fc.bias"], 0)


def test_run_writes_what_the_model_returns(folder, capsys):
    for given in ("x.npy", "x=x.npy"):
        assert main(["run", "m.onnx", "--input", given, "--output", "y.npz", "--device", "cpu"]) == 0
        np.testing.assert_allclose(np.load("y.npz")["y"], folder, rtol=1e-5, atol=1e-6)
    assert main(["run", "m.onnx", "--input", "x.npy", "--device", "cpu"]) == 0
    assert "y: float32[3, 4]" in capsys.readouterr().out


def test_run_takes_several_inputs_by_name(folder, capsys):
    add = helper.make_node("Sub", ["a", "b"], ["y"])
    onnx.save(model([add], [("a", ["n"]), ("b", ["n"])], [("y", ["n"])]), "two.onnx")
    arrays = {"a": np.arange(5, dtype=np.float32), "b": np.ones(5, np.float32)}
    np.savez("ab.npz", **arrays)
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    for given in (["--input", "ab.npz"], ["--input", "b=b.npy", "--input", "a=a.npy"]):
        assert main(["run", "two.onnx", *given, "--output", "y.npz", "--device", "cpu"]) == 0
        assert np.array_equal(np.load("y.npz")["y"], np.arange(5) - 1)
    assert main(["run", "two.onnx", "--input", "a.npy"]) == 2
    assert "a=a.npy" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["m.onnx"], "no array is given for x"),
        (["m.onnx", "--input", "absent.npy"], "no file"),
        (["m.onnx", "--input", "m.onnx"], "no .npy"),
        (["m.onnx", "--input", "x.npy", "--output", "y.txt"], "npz"),
        (["m.onnx", "--input", "x.npy", "--output", "no/y.npz"], "no folder"),
        (["m.py", "--input", "x.npy"], "no ONNX model"),
        (["absent.onnx", "--input", "x.npy"], "can't be read"),
    ],
)
def test_run_refuses_in_words(folder, capsys, arguments, said):
    assert main(["run", *arguments, "--device", "cpu"] if "--device" not in arguments else arguments) == 2
    assert said in capsys.readouterr().err


def test_explain_needs_no_gpu(folder, capsys):
    assert main(["explain", "m.onnx", "--device", "l4", "--size", "batch=64", "--region", "0"]) == 0
    said = capsys.readouterr().out
    assert "gemm + add + relu" in said and "64x8" in said
    for wrong in (["--size", "rows=2"], ["--mode", "train"]):
        assert main(["explain", "m.onnx", *wrong]) == 2
    with pytest.raises(SystemExit):
        main(["explain", "m.onnx", "--size", "batch=0"])
