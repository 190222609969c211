"""What people of other libraries type first: each name gets the sentence that says what it is called here."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import aicf
from aicf import near, nn
from aicf.errors import AicfError, RegistryError, VerifyError

OPS = {s.name for s in aicf.schemas()}


class Emitting(nn.Layer):
    def __init__(self, kind):
        self.kind = kind

    def emit(self, ctx, x):
        return getattr(ctx, self.kind)(x, x)


def test_ops_under_other_libraries_names():
    model = nn.Model({"x": aicf.TensorSpec((4, 4))})
    with pytest.raises(
        RegistryError, match=r"no op is called 'matmul'(.|\n)*next: gemm\(a, b\) is the matrix product"
    ):
        model.add(Emitting("matmul"))
    with pytest.raises(RegistryError, match=r"next: select\(condition, a, b\)"):
        aicf.op_call("where", [], [])
    with pytest.raises(RegistryError, match=r"next: sigmoid"):  # a slip of the pen
        model.add(Emitting("sigmoidd"))


def test_what_stands_for_an_op_is_one():
    """No op of that name exists (else the sentence is never read), and the first word of the advice is one that does."""
    assert not near.OPS.keys() & OPS
    for advice in near.OPS.values():
        assert OPS.intersection(re.findall(r"\b[a-z_0-9]+\b", advice.split(";")[0])), advice


@pytest.mark.parametrize(
    "module, name, said",
    [
        (aicf, "Model", r"aicf\.nn\.Model"), (aicf, "float32", r"aicf\.f32"), (aicf, "compil", "compile"),
        (nn, "CrossEntropy", r"nn\.SoftmaxCrossEntropy\(\)"), (nn, "MSE", r"nn\.MeanSquaredError\(\)"),
        (nn, "RELU", r"nn\.ReLU"), (nn, "Liner", r"nn\.Linear"),
    ],
)  # fmt: skip
def test_names_of_modules(module, name, said):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; here: .*{said}"):
        getattr(module, name)
    assert not hasattr(module, name)


@pytest.mark.parametrize("module, table", [(aicf, near.AICF), (nn, near.NN), (aicf.models, near.MODELS)])
def test_tables_name_what_is_missing_and_advise_what_is_there(module, table):
    for name, said in table.items():
        assert name not in dir(module)
        for path in re.findall(r"\b(?:aicf|nn)\.[A-Za-z_.0-9]*[A-Za-z_0-9]", said):
            found = aicf
            for part in path.removeprefix("aicf.").split("."):
                found = getattr(found, part)


@pytest.mark.parametrize("module", [aicf, aicf.models, nn, nn.init, nn.schedules])
def test_dir_shows_what_is_meant_for_people(module):
    shown = dir(module)
    assert shown == sorted(module.__all__)
    assert {"np", "math", "annotations", "dataclass", "Any"}.isdisjoint(shown)
    assert all(hasattr(module, name) for name in shown)


def test_a_model_of_pytorch_is_named_as_one():
    module = type(
        "ResNet", (type("Module", (), {"__module__": "torch.nn.modules.module"}),), {"__module__": "mine"}
    )
    with pytest.raises(
        VerifyError,
        match=r"model is PyTorch's ResNet(.|\n)*next: torch\.compile\(module, backend=\"aicf\"\)(.|\n)*aicf\.from_torch",
    ):
        aicf.compile(module())
    loss = type("MSELoss", (), {"__module__": "torch.nn.modules.loss"})
    model = nn.Model({"x": aicf.TensorSpec((4, 4))}).add(nn.Linear(4, 4))
    with pytest.raises(VerifyError, match=r"loss is PyTorch's MSELoss(.|\n)*nn\.MeanSquaredError\(\)"):
        aicf.compile(model, mode="train", loss=loss(), optimizer=nn.SGD(lr=0.1))


def test_torch_compile_finds_the_backend():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["aicf"].partition(":")
    assert (module, name) == ("aicf.frontends.torch", "backend")
    assert (Path(__file__).parents[1] / "aicf/frontends/torch/backend.py").exists()
    a, out = np.ones(3, np.float32), np.empty(3, np.float32)  # and what the hint advises works
    assert "aicf.op_call('add', [a, b], [c])" in near.MODELS_OF["torch"][1]
    aicf.op_call("add", [a, a], [out])
    assert (out == 2).all()


def test_a_front_end_without_its_framework_says_what_to_install(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("aicf.frontends.import_module", absent)
    with pytest.raises(AicfError, match=r"aicf\.from_torch needs the package torch(.|\n)*pip install torch"):
        _ = aicf.from_torch


def test_a_layer_in_a_models_place():
    with pytest.raises(
        VerifyError, match=r"model is Linear(.|\n)*expected: an nn\.Model(.|\n)*\.add\(layer\)"
    ):
        aicf.compile(nn.Linear(3, 4))
