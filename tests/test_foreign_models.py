"""Whoever hands `compile` or `explain_for` another framework's model is told what to call with it."""

from functools import partial

import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError


def refusal(model, **more):
    with pytest.raises(VerifyError) as caught:
        aicf.compile(model, device="cpu", **more)
    with pytest.raises(VerifyError) as explained:
        aicf.explain_for(model, "h200")
    assert str(caught.value) == str(explained.value)
    return caught.value


def pretend(package, name="Net"):
    """An object of a class that is derived from one of a framework's."""
    base = type("Module", (), {"__module__": f"{package}.nn.modules"})
    return type(name, (base,), {})()


@pytest.mark.parametrize(
    ("package", "whose", "call"),
    [
        ("torch", "PyTorch's Net", "aicf.from_torch(module, (x,))"),
        ("flax", "Flax's Net", "module.apply(params, x)"),
        ("keras", "Keras' Net", "aicf.jax.jit(lambda x: model(x))"),
        ("tensorflow", "TensorFlow's Net", "aicf.from_onnx"),
        ("jaxlib", "JAX's Net", "aicf.jax.jit(f)"),
        ("onnx", "ONNX's Net", "aicf.from_onnx(model)"),
    ],
)
def test_another_frameworks_model_is_named_with_its_front_end(package, whose, call):
    model = pretend(package)
    for given in (model, type(model)):
        error = refusal(given)
        assert error.what == f"model is {whose}" and call in error.hint


def test_a_file_and_a_path(tmp_path):
    for path in ("models/gpt.onnx", tmp_path / "gpt.onnx"):
        error = refusal(path)
        assert (
            error.what == f"model is the file {str(path)!r}"
            and error.hint == f"aicf.from_onnx({str(path)!r})"
        )
    assert "from_onnx" not in str(refusal("gpt"))


def test_a_function():
    def forward(x):
        return x

    for function in (forward, partial(forward, 1), nn.Linear(2, 2).emit):
        assert "aicf.jax.jit(f)" in refusal(function).hint
    assert refusal(forward).what == "model is the function forward"


def test_real_ones_of_onnx_and_jax():
    onnx, jax = pytest.importorskip("onnx"), pytest.importorskip("jax")
    assert refusal(onnx.ModelProto()).what == "model is ONNX's ModelProto"
    assert refusal(jax.jit(lambda x: x)).what.startswith("model is JAX's")


def test_what_only_looks_like_them_is_taken():
    """A model that has all that a model has is one, whoever derived it from what."""
    inner = nn.Model({"x": aicf.TensorSpec((2, 3))}).add(nn.Linear(3, 4))
    made = pretend("torch")
    for name in ("inputs", "sizes", "seed", "emit"):
        setattr(made, name, getattr(inner, name))
    assert aicf.compile(made, device="cpu")


def test_a_state_dict_of_pytorch_is_loaded():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    model = nn.Model({"x": aicf.TensorSpec((5, 3))}).add(nn.Linear(3, 4)).add(nn.ReLU()).add(nn.Linear(4, 2))
    program = aicf.compile(model, device="cpu")
    program.load_state_dict(module.state_dict())
    x = torch.randn(5, 3)
    got = torch.tensor(program({"x": x.numpy()})["output"].numpy())
    torch.testing.assert_close(got, module(x).detach(), rtol=1e-5, atol=1e-6)
