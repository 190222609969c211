"""What makes no sense is refused where it is written: what, expected, got, and what to do."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, DeviceError, FeedError, StateError, VerifyError

from .mlp import batch_of, mlp, trainer


def model(**more) -> nn.Model:
    return nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6, **more)


class Fn(nn.Layer):
    def __init__(self, function) -> None:
        self.function = function

    def emit(self, ctx, x):
        return self.function(ctx, x)


def refused(call, *said: str, error: type[AicfError] = VerifyError) -> None:
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    for part in said:
        assert part in text, text


NUMBERS = {
    "lr": (-1, float("nan"), float("inf"), "a", None, True, [0.1]),
    "momentum": (-0.1, 1.5, float("nan"), "a", None),
    "weight_decay": (-1e-3, float("nan"), None),
    "beta1": (-0.1, 1.0, float("nan"), "a"),
    "beta2": (-0.1, 1.0, 2),
    "eps": (-1e-8, float("nan"), None),
    "clip_norm": (0, -1.0, float("inf"), "a"),
}
MADE = {
    "lr": lambda v: nn.SGD(v), "momentum": lambda v: nn.SGD(0.1, momentum=v),
    "weight_decay": lambda v: nn.AdamW(weight_decay=v), "beta1": lambda v: nn.Adam(betas=(v, 0.9)),
    "beta2": lambda v: nn.Adam(betas=(0.9, v)), "eps": lambda v: nn.Adam(eps=v),
    "clip_norm": lambda v: nn.SGD(0.1, clip_norm=v),
}  # fmt: skip


@pytest.mark.spec("C13")
@pytest.mark.parametrize("name, value", [(n, v) for n, values in NUMBERS.items() for v in values])
def test_a_meta_parameter_is_checked_alike_when_it_is_made_and_when_it_is_set(name, value):
    said = f"{name}={value!r}", "expected: a finite number"
    refused(lambda: MADE[name](value), *said)
    optimizer = (
        nn.SGD(0.1, momentum=0.5, clip_norm=1.0) if name == "momentum" else nn.Adam(0.1, clip_norm=1.0)
    )
    program = trainer("cpu", optimizer=optimizer)
    before = program.get(name)
    refused(lambda: program.set(**{name: value}), *said)
    assert program.get(name) == before


def test_the_ends_of_the_ranges_are_taken():
    nn.SGD(0, momentum=1, weight_decay=0)
    nn.Adam(np.float32(0.5), betas=[0, 0.5], eps=0)
    program = trainer("cpu", optimizer=nn.SGD(0.1))
    program.set(lr=np.float64(0.25), momentum=np.asarray(0.5))
    assert (program.get("lr"), program.get("momentum")) == (0.25, 0.5)


CONSTRUCTORS = {
    "betas that are no pair": (lambda: nn.Adam(betas=0.9), "betas=0.9", "betas=(0.9, 0.999)"),
    "nesterov": (lambda: nn.SGD(0.1, nesterov=1), "nesterov=1", "True or False"),
    "a negative size": (lambda: nn.Linear(-1, 3), "Linear: inputs=-1", "a whole number, 0 or more"),
    "a size as text": (lambda: nn.Linear("8", 3), "Linear: inputs='8'"),
    "a size as a float": (lambda: nn.Linear(8, 3.0), "Linear: outputs=3.0"),
    "a bias that is no flag": (lambda: nn.Linear(8, 3, bias=np.zeros(3)), "Linear: bias=", "True or False"),
    "an initialiser that is no function": (lambda: nn.Linear(8, 3, weight_init=0.5), "weight_init=0.5", "nn.init"),
    "an initialiser's class": (lambda: nn.Linear(8, 3, weight_init=nn.init.normal), "weight_init="),
    "a slope": (lambda: nn.LeakyReLU("a"), "LeakyReLU: slope='a'"),
    "a list of layers": (lambda: nn.Sequential([nn.ReLU()]), "one list", "Sequential(*layers)"),
    "a class in a container": (lambda: nn.Residual(nn.ReLU), "ReLU is a class", "ReLU(...)"),
    "a schedule's base": (lambda: nn.schedules.Cosine(-1, total=5), "Cosine: base=-1"),
    "a schedule's end": (lambda: nn.schedules.Linear(1, total=0), "Linear: total=0"),
    "a warm-up without end": (lambda: nn.schedules.Cosine(1, total=5, warmup=6), "Cosine: warmup=6", "less than total=5"),
    "a schedule's stride": (lambda: nn.schedules.StepDecay(1, every=0.5), "StepDecay: every=0.5"),
    "float labels": (lambda: nn.SoftmaxCrossEntropy(dtype=aicf.f32), "labels of f32", "i64 or i32"),
    "a target's name": (lambda: nn.MeanSquaredError(target=None), "target=None"),
    "a size of no dimension": (lambda: model(seq=3), "no input has a dimension called 'seq'", "batch"),
    "a size that is no number": (lambda: nn.Model({"x": ("batch", 5)}, batch="6"), "batch='6'"),
    "a seed": (lambda: model(seed=-1), "seed=-1"),
    "inputs that are no mapping": (lambda: nn.Model(5), "the inputs are 5", "specs by name"),
    "an input that is no spec": (lambda: nn.Model({"x": 5}), "input x is declared as 5", "a TensorSpec or a shape"),
    "an input with a result's name": (lambda: nn.Model({"loss": (3, 4)}), "'loss' can't be the name of an input"),
    "a layer's class": (lambda: model().add(nn.ReLU), "ReLU is a class", "make one: ReLU(...)"),
    "a function": (lambda: model().add(lambda x: x), "a function is no layer", "class Mine(nn.Layer)"),
    "a number for a layer": (lambda: model().add(3), "a int is no layer"),
    "a number for a name": (lambda: model().add(nn.ReLU(), name=3), "3 can't be the name of a layer"),
    "a name with dots": (lambda: model().add(nn.ReLU(), "a.b"), "'a.b' can't be the name", "text without dots"),
    "no name": (lambda: model().add(nn.ReLU(), ""), "'' can't be the name of a layer"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONSTRUCTORS)
def test_a_constructor_says_what_it_wants(what):
    call, *said = CONSTRUCTORS[what]
    refused(call, *said)


@pytest.mark.parametrize("name", ["optimizer", "grad", "program", "const"])
def test_names_that_mean_something_else_are_no_layer_s(name):
    """A layer called `optimizer` would share names with the step counter, one called `grad` with the gradients."""
    refused(lambda: model().add(nn.Linear(5, 2), name), f"{name!r} can't be the name of a layer")


EMITS = {
    "nothing": (lambda ctx, x: None, "Fn.emit's result is nothing", "return ctx."),
    "an empty list": (lambda ctx, x: [], "Fn.emit's result is an empty list"),
    "a list of numbers": (lambda ctx, x: [x, 2.0], "Fn.emit's result '1' is a float"),
    "an array as operand": (lambda ctx, x: ctx.add(x, np.ones(5)), "ctx.add: b is a ndarray", "ctx.state("),
    "text as operand": (lambda ctx, x: ctx.add("1", x), "ctx.add: a is a str", "a Value or a number"),
    "an array as constant": (lambda ctx, x: ctx.constant(np.ones(5)), "ctx.constant: value is a ndarray"),
    "array * x": (lambda ctx, x: np.ones(5) * x, "ctx.mul: a is a ndarray", "ctx.state("),
    "text * x": (lambda ctx, x: "2" * x, "ctx.mul: a is a str"),
}


@pytest.mark.parametrize("what", EMITS)
def test_a_layer_that_emits_nonsense_is_named(what):
    emit, *said = EMITS[what]
    refused(lambda: model().add(Fn(emit)), *said)


def test_a_value_kept_from_another_emission_is_refused():
    kept = []

    def emit(ctx, x):
        kept.append(x)
        return ctx.add(x, kept[0])

    refused(
        lambda: aicf.compile(model().add(Fn(emit)), device="cpu"), "belongs to another graph", "emitted anew"
    )


MSE, SGD = nn.MeanSquaredError(), nn.SGD(0.1)
COMPILES = {
    "no model": (lambda: aicf.compile(None), "model is None", "an nn.Model"),
    "a model's class": (lambda: aicf.compile(nn.Model), "model is the class Model"),
    "a loss by name": (lambda: aicf.compile(mlp(), loss="mse"), "loss is 'mse'", "nn.MeanSquaredError()"),
    "a loss's class": (lambda: aicf.compile(mlp(), loss=nn.MeanSquaredError), "loss is the class", "loss=nn.MeanSquaredError()"),
    "an optimizer by name": (lambda: aicf.compile(mlp(), "train", loss=MSE, optimizer="adam"), "optimizer is 'adam'"),
    "an optimizer's class": (lambda: aicf.compile(mlp(), "train", loss=MSE, optimizer=nn.Adam), "the class Adam"),
    "half a run": (lambda: aicf.compile(mlp(), "train", loss=MSE, optimizer=SGD, accumulate=1.5), "accumulate=1.5"),
    "a run as text": (lambda: aicf.compile(mlp(), "train", loss=MSE, optimizer=SGD, accumulate="2"), "accumulate='2'"),
    "the same in an explanation": (lambda: aicf.explain_for(mlp(), "h200", loss="mse"), "loss is 'mse'"),
    "a target of an input's name": (
        lambda: aicf.compile(mlp(), "grad", device="cpu", loss=nn.SoftmaxCrossEntropy("x")),
        "target 'x' has the name of an input", "expected: x: tensor<6xi64>", "got: x: tensor<6x5xf32>", "target='x_target'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", COMPILES)
def test_compile_says_what_it_wants(what):
    call, *said = COMPILES[what]
    refused(call, *said)


@pytest.mark.parametrize("device", [0, "", "gpu", 1.0, ["cpu"]])
def test_only_none_means_any_device(device):
    refused(lambda: aicf.compile(mlp(), device=device), f"no device is called {device!r}", error=DeviceError)


def test_a_device_that_the_environment_misnames_is_said_to_come_from_there(monkeypatch):
    monkeypatch.setenv("AICF_DEVICE", "gpu")
    refused(lambda: aicf.compile(mlp()), "'gpu'", "AICF_DEVICE", error=DeviceError)


def test_a_target_may_be_an_input_of_the_same_type():
    """An autoencoder."""
    made = model().add(nn.Linear(5, 2)).add(nn.Linear(2, 5))
    program = aicf.compile(made, "grad", device="cpu", loss=nn.MeanSquaredError("x"))
    x = batch_of(6)["x"]
    got = program({"x": x})
    np.testing.assert_allclose(float(got["loss"]), ((got["output"].numpy() - x) ** 2).mean(), rtol=1e-5)


def test_sizes_of_unknown_dimensions_are_refused():
    program = trainer("cpu")
    refused(lambda: program.explain({"btach": 5}), "no input has a dimension called 'btach'", "batch")


def test_an_explanation_takes_the_name_of_a_preset():
    assert aicf.explain_for(mlp(), "H200").to_json()["device"] == "h200"
    refused(lambda: aicf.explain_for(mlp(), "voodoo2"), "voodoo2", "h200", error=DeviceError)
    refused(lambda: aicf.explain_for(mlp(), None), "None", "h200", error=DeviceError)


@pytest.mark.parametrize("state", ["m.npz", None, 3, [1.0]])
def test_a_state_dict_is_a_mapping(state):
    refused(
        lambda: trainer("cpu").load_state_dict(state),
        f"a state dict can't be {state!r}", "aicf.load('model.safetensors')", error=StateError,
    )  # fmt: skip


def test_a_masked_array_is_no_feed():
    feed = batch_of(6)
    feed["x"] = np.ma.masked_array(feed["x"], mask=feed["x"] > 0)
    refused(lambda: trainer("cpu")(feed), "x is a masked array", error=FeedError)
