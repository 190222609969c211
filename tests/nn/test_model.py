"""A model as an object: shared layers, copies, pickles, the forms its inputs may have (C1, C17)."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError

from .mlp import batch_of, host, mlp, params, same, trainer


def square(*layers: nn.Layer) -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6)
    for layer in layers:
        model.add(layer)
    return model


# --- a layer in two places --------------------------------------------------------------------------------------------


def shared() -> nn.Model:
    twice = nn.Linear(5, 5)
    return square(twice, nn.Tanh(), twice)


def containers() -> nn.Model:
    twice = nn.Linear(5, 5)
    return square(nn.Sequential(twice, nn.Tanh()), nn.Sequential(twice))


def container() -> nn.Model:
    twice = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
    return square(twice, twice)


@pytest.mark.spec("C17")
@pytest.mark.parametrize("make", [shared, containers, container])
def test_a_layer_that_is_added_twice_has_one_set_of_weights_and_the_sum_of_the_gradients(make):
    model = make()
    program = aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())
    names = list(params(program))
    assert len(names) == 2
    feed = batch_of(6, outputs=5, loss="mse")
    got = program(feed)
    w, b = (params(program)[n].astype(float) for n in (names[1], names[0]))
    x, y = feed["x"].astype(float), feed["y"].astype(float)
    last = np.tanh if make is container else np.asarray

    def loss(w, b):
        return np.mean((last(np.tanh(x @ w.T + b) @ w.T + b) - y) ** 2)

    np.testing.assert_allclose(float(got["loss"]), loss(w, b), rtol=1e-5)
    numeric = np.zeros_like(w)
    for i in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[i] = 1e-6
        numeric[i] = (loss(w + step, b) - loss(w - step, b)) / 2e-6
    np.testing.assert_allclose(got[f"grad.{names[1]}"].numpy(), numeric, rtol=1e-3, atol=1e-5)
    assert model.summary().parameters == 30


@pytest.mark.spec("C17")
def test_a_shared_layer_trains_and_pickles_as_one():
    model = pickle.loads(pickle.dumps(shared()))
    program = trainer("cpu", model, loss="mse")
    feed = batch_of(6, outputs=5, loss="mse")
    losses = [float(program(feed)["loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert list(params(program)) == ["0.bias", "0.weight"]


def test_a_shared_layer_that_meets_another_shape_is_refused_and_leaves_no_trace():
    class Scale(nn.Layer):
        def emit(self, ctx, x):
            return ctx.mul(x, ctx.param("scale", (x.shape[1],), nn.init.ones))

    scale = Scale()
    model = square(scale, nn.Linear(5, 4))
    with pytest.raises(VerifyError, match=r"a shared layer has one 0\.scale") as error:
        model.add(scale)
    assert "test_model.py:" in str(error.value)
    model.add(Scale())
    assert [name for name, _ in model.layers] == ["0", "1", "2"]
    assert model.output.shape == (6, 4)


def test_two_params_of_one_name_in_one_layer_are_still_a_mistake():
    class Twice(nn.Layer):
        def emit(self, ctx, x):
            return ctx.add(ctx.param("w", (5,), nn.init.ones), ctx.param("w", (5,), nn.init.ones))

    with pytest.raises(VerifyError, match=r"two values are called '0\.w'"):
        square(Twice())


def test_layers_without_weights_are_used_as_often_as_one_likes():
    relu = nn.ReLU()
    assert [op.kind for op in square(relu, relu).graph.ops] == ["relu", "relu"]


# --- copies and pickles -----------------------------------------------------------------------------------------------

COPIES = {
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)),
}  # fmt: skip


def residual() -> nn.Model:
    made = square(
        nn.Linear(5, 7, weight_init=nn.init.xavier_uniform(2.0), bias_init=nn.init.constant(0.5)),
        nn.Residual(nn.Linear(7, 7, weight_init=nn.init.normal(0.1)), nn.GELU(approximate=False)),
    )
    return made.add(nn.BiasAdd(7), "last").add(
        nn.Linear(7, 3, bias=False, weight_init=nn.init.uniform(-1, 1))
    )


@pytest.mark.parametrize("compiled", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_the_same_model_with_a_graph_of_its_own(how, compiled):
    model = residual()
    start = params(aicf.compile(model, device="cpu")) if compiled else None
    if compiled:
        trainer("cpu", model).run(batch_of(6))
    other = COPIES[how](model)
    assert repr(other) == repr(model)
    assert (other.summary(), other.output, str(other.graph)) == (
        model.summary(),
        model.output,
        str(model.graph),
    )
    other.add(nn.ReLU(), "only here")
    assert len(model.layers) == 4 and len(model.graph.ops) == len(other.graph.ops) - 1
    model.add(nn.Linear(3, 2), "only there")
    assert other.output.shape == (6, 3) and model.output.shape == (6, 2)
    program = aicf.compile(other, device="cpu")
    if start:
        assert same(params(program), start), "a copy starts from the seed"
    assert program({"x": batch_of(6)["x"]})["output"].shape == (6, 3)


def test_a_pickled_model_goes_on_from_a_state_dict():
    trained = trainer("cpu", mlp(seed=3))
    trained.run(batch_of(6))
    other = trainer("cpu", pickle.loads(pickle.dumps(mlp(seed=3))))
    other.load_state_dict(trained.state_dict())
    assert same(host(trained.run(batch_of(6))), host(other.run(batch_of(6))))


def test_initialisers_are_values():
    assert nn.init.kaiming_uniform(2.0) == nn.init.kaiming_uniform(2.0) != nn.init.kaiming_uniform(1.0)
    assert repr(nn.init.normal(0.02)) == "normal(std=0.02, mean=0.0)"


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs", [{"x": aicf.TensorSpec((32, 8))}, {"x": (32, 8)}, aicf.TensorSpec((32, 8)), (32, 8)], ids=str
)
def test_inputs_may_be_shapes_and_a_single_one_needs_no_name(inputs):
    assert nn.Model(inputs).inputs == {"x": aicf.TensorSpec((32, 8))}
    assert nn.Model({"a": ("batch", 8)}, batch=3).add(nn.Linear(8, 2)).output.shape == (3, 2)


@pytest.mark.spec("C1", "F5")
def test_the_summary_is_a_table_with_named_dimensions():
    again = nn.Linear(64, 64)
    model = nn.Model({"x": aicf.TensorSpec(("batch", "words", 64), aicf.f16)}, batch=64, words=64)
    model.add(again).add(nn.Residual(nn.GELU(), again), "block").add(nn.Linear(64, 10, bias=False))
    found = model.summary()
    shape = ("batch", "words", 64)
    assert [(r.name, r.layer, r.shape, r.dtype, r.parameters, r.shared) for r in found.rows] == [
        ("x", "input", shape, aicf.f16, 0, False),
        ("0", repr(again), shape, aicf.f16, 64 * 64 + 64, False),
        ("block", "Residual", shape, aicf.f16, 0, False),
        ("block.0", repr(nn.GELU()), shape, aicf.f16, 0, False),
        ("block.1", repr(again), shape, aicf.f16, 0, True),
        ("2", repr(nn.Linear(64, 10, bias=False)), ("batch", "words", 10), aicf.f16, 640, False),
    ]
    assert found.parameters == 64 * 64 + 64 + 640
    text = str(found)
    assert text.splitlines()[0].split() == ["name", "layer", "output", "dtype", "parameters"]
    assert text.splitlines()[-1].split() == ["total", "4,800"]
    assert "(batch, words, 10)" in text and "shared" in text and "\x1b" not in text
    html = found._repr_html_()
    assert html.count("<tr>") == len(found.rows) + 2 and "<th" in html and "4,800" in html


def test_a_layer_that_takes_one_size_only_is_summed_up_in_numbers():
    class Fixed(nn.Layer):
        def emit(self, ctx, x):
            return ctx.add(x, ctx.param("table", (6, 5), nn.init.zeros))

    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6).add(Fixed())
    assert [row.shape for row in model.summary().rows] == [("batch", 5), (6, 5)]


def test_weights_may_start_from_what_is_given():
    given = np.arange(15, dtype=np.float64).reshape(3, 5)
    chosen = nn.Model((2, 5), nn.Linear(5, 3), initial={"weight": lambda shape, rng: given})
    plain = nn.Model((2, 5), nn.Linear(5, 3))
    for model in (chosen, copy.copy(chosen)):
        program = aicf.compile(model, device="cpu")
        np.testing.assert_array_equal(program.get("weight"), given.astype(np.float32))
        np.testing.assert_array_equal(program.get("bias"), aicf.compile(plain, device="cpu").get("bias"))
    with pytest.raises(VerifyError, match=r"no weight is called 'wieght'(.|\n)*weight, bias"):
        nn.Model((2, 5), nn.Linear(5, 3), initial={"wieght": nn.init.zeros})
    with pytest.raises(VerifyError, match=r"initial\['weight'\]"):
        nn.Model((2, 5), nn.Linear(5, 3), initial={"weight": given})
    other = nn.Model((2, 5), nn.Linear(5, 3), initial={"weight": lambda shape, rng: given.T})
    with pytest.raises(aicf.errors.StateError, match="the initializer of weight made the wrong shape"):
        aicf.compile(other, device="cpu")
