"""What errors advise works: each hint is followed, as it is written."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, FeedError, StateError, VerifyError

NAMES = {"np": np, "ml_dtypes": ml_dtypes, "nn": nn, "aicf": aicf}


def advice(call, error: type[AicfError] = FeedError) -> str:
    with pytest.raises(error) as raised:
        call()
    assert raised.value.hint, str(raised.value)
    return raised.value.hint


def copier(dtype, shape=(2, 3)) -> aicf.Program:
    class Same(nn.Layer):
        def emit(self, ctx, x):
            return ctx.copy(x)

    return aicf.compile(nn.Model({"x": aicf.TensorSpec(shape, dtype)}).add(Same()), device="cpu")


def followed(hint: str, **names):
    """The value of the expression that a hint ends with."""
    expression = re.fullmatch(
        r"(?:[^:]*: )?(.*?)(?:, of the package ml_dtypes, which aicf brings| (?:drops|adds) the last dimension)?",
        hint,
    )[1]
    return eval(expression, {**NAMES, **names})


TYPES = [aicf.f32, aicf.f16, aicf.bf16, aicf.i32, aicf.i64, aicf.bool_, aicf.f8e4m3, aicf.f8e5m2]
FED = {
    "float64": np.arange(6.0).reshape(2, 3), "float32": np.ones((2, 3), np.float32), "uint8": np.ones((2, 3), np.uint8),
    "bf16": np.ones((2, 3), ml_dtypes.bfloat16), "list": [[1, 2, 3], [4, 5, 6]], "long": np.ones((2, 3), np.int64),
    "aicf": aicf.runtime("cpu").upload(np.ones((2, 3), np.float32), aicf.TensorSpec((2, 3))),
}  # fmt: skip


@pytest.mark.spec("C7")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fed", FED)
def test_a_feed_of_the_wrong_type_is_mended_as_it_says(fed, dtype):
    program, x = copier(dtype), FED[fed]
    if getattr(x, "dtype", None) in (dtype, dtype.numpy):
        return
    mended = followed(advice(lambda: program.run({"x": x})), x=x)
    want = (x.numpy() if fed == "aicf" else np.asarray(x)).astype(np.float32).astype(dtype.numpy)
    got = program.run({"x": mended})["output"].numpy()
    assert got.dtype == dtype.numpy and got.tobytes() == want.tobytes()


@pytest.mark.spec("C7")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fed", ["float64", "float32", "uint8"])
def test_a_tensor_of_pytorch_is_mended_in_pytorch_s_words(fed, dtype):
    torch = pytest.importorskip("torch")
    program, x = copier(dtype), torch.ones((2, 3), dtype=getattr(torch, fed))
    if dtype is aicf.f32 and fed == "float32":
        return
    hint = advice(lambda: program.run({"x": x}))
    assert ": x.to(torch." in hint
    got = program.run({"x": followed(hint, x=x, torch=torch)})["output"]
    assert got.dtype is dtype and (got.numpy().astype(np.float32) == 1).all()


@pytest.mark.spec("C7")
def test_a_dimension_too_many_and_a_mask_are_mended_as_they_say():
    program = copier(aicf.i64, (4,))
    x = np.arange(4).reshape(4, 1)
    np.testing.assert_array_equal(
        program.run({"x": followed(advice(lambda: program.run({"x": x})), x=x)})["output"].numpy(), x[:, 0]
    )
    flat = np.arange(2)
    assert followed(advice(lambda: copier(aicf.i64, (2, 1)).run({"x": flat})), x=flat).shape == (2, 1)
    deep = np.arange(6).reshape(2, 3, 1)
    assert followed(advice(lambda: copier(aicf.i64).run({"x": deep})), x=deep).shape == (2, 3)
    masked = np.ma.array(np.arange(4), mask=[0, 1, 0, 0])
    mended = followed(advice(lambda: program.run({"x": masked})), x=masked)
    assert program.run({"x": mended})["output"].numpy().tolist() == [0, 0, 2, 3]


@pytest.mark.spec("D16")
@pytest.mark.parametrize("dtype", [aicf.f32, aicf.bf16], ids=str)
@pytest.mark.parametrize("saved", [np.float64, np.float16, list])
def test_a_state_dict_of_the_wrong_type_is_mended_as_it_says(dtype, saved):
    model = nn.Model({"x": aicf.TensorSpec((2, 3), dtype)}).add(nn.Linear(3, 2))
    program = aicf.compile(model, device="cpu")
    state = program.state_dict()
    wrong = state["0.weight"].astype(np.float32)
    state["0.weight"] = wrong.tolist() if saved is list else wrong.astype(saved)
    hint = advice(lambda: program.load_state_dict(state), StateError)
    target, expression = hint.split(" = ", 1)
    assert target == "state['0.weight']"
    state["0.weight"] = followed(expression, state=state)
    assert program.load_state_dict(state) == []


class CrossEntropyLoss:
    """As PyTorch calls it."""


MEANT = {
    "ce": "SoftmaxCrossEntropy", "cross_entropy": "SoftmaxCrossEntropy", "CrossEntropy": "SoftmaxCrossEntropy",
    "sparse_categorical_crossentropy": "SoftmaxCrossEntropy", "nll": "SoftmaxCrossEntropy", "mse": "MeanSquaredError",
    "mean_squared_error": "MeanSquaredError", "MSELoss": "MeanSquaredError", "l2": "MeanSquaredError",
    CrossEntropyLoss: "SoftmaxCrossEntropy", CrossEntropyLoss(): "SoftmaxCrossEntropy", nn.MeanSquaredError: "MeanSquaredError",
    nn.SoftmaxCrossEntropy: "SoftmaxCrossEntropy", "bce": "BCEWithLogitsLoss", "binary_crossentropy": "BCEWithLogitsLoss",
    "huber": "HuberLoss", "mae": "L1Loss", nn.HuberLoss: "HuberLoss",
}  # fmt: skip


@pytest.mark.parametrize("given", MEANT, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_a_loss_by_another_name_is_told_the_one_that_is_meant(given):
    model = nn.Model({"x": (4, 3)}).add(nn.Linear(3, 2))
    hint = advice(lambda: aicf.compile(model, "grad", device="cpu", loss=given), VerifyError)
    assert hint == f"loss=nn.{MEANT[given]}()"
    aicf.compile(model, "grad", device="cpu", loss=eval(hint.removeprefix("loss="), NAMES))


def test_a_function_as_a_loss_is_told_how_to_declare_its_targets():
    model = nn.Model({"x": (4, 3)}).add(nn.Linear(3, 2))
    hint = advice(lambda: aicf.compile(model, "grad", device="cpu", loss=lambda out, y: out), VerifyError)
    assert "nn.LossFunction(function, y=aicf.TensorSpec(" in hint


@pytest.mark.parametrize("given", ["hinge", "wasserstein", 0.5])
def test_a_loss_that_is_not_known_is_told_what_there_is(given):
    hint = advice(
        lambda: aicf.compile(nn.Model({"x": (4, 3)}).add(nn.Linear(3, 2)), "grad", loss=given), VerifyError
    )
    assert "nn.SoftmaxCrossEntropy()" in hint


@pytest.mark.parametrize(
    "given", ["adam", "AdamW", "sgd", nn.Adam, nn.SGD, "lion", "LAMB", "rmsprop", nn.RMSprop, "Adagrad"]
)
def test_an_optimizer_by_its_name_is_told_how_to_make_it(given):
    model = nn.Model({"x": (4, 3)}).add(nn.Linear(3, 2))
    hint = advice(
        lambda: aicf.compile(model, "train", loss=nn.MeanSquaredError(), optimizer=given), VerifyError
    )
    made = eval(hint.removeprefix("optimizer="), NAMES)
    name = given if isinstance(given, str) else given.__name__
    assert type(made).__name__.lower() == name.lower()
    aicf.compile(model, "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=made)


def test_what_is_no_layer_is_told_how_to_write_one():
    model = nn.Model({"x": (4, 3)})
    names = dict(NAMES)
    exec(advice(lambda: model.add(lambda x: x), VerifyError), names)
    x = np.array([[-1, 0, 2]] * 4, np.float32)
    program = aicf.compile(model.add(names["Mine"]()), device="cpu")
    np.testing.assert_array_equal(program.run({"x": x})["output"].numpy(), np.maximum(x, 0))
