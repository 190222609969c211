"""A model made of a foreign graph: compiled, trained, explained, its weights by their names, its faults told."""

import pickle
from copy import copy

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, VerifyError
from aicf.frontends.imported import Imported, Weight, free_names


def _weights():
    rng = np.random.default_rng(0)
    return {
        "fc.weight": rng.normal(size=(5, 3)).astype(np.float32),
        "fc.bias": rng.normal(size=5).astype(np.float32),
        "shift": np.arange(5, dtype=np.float32),
    }


def _body(ctx, inputs, weights):
    with ctx.at("node 0: Gemm"):
        y = ctx.gemm(inputs["x"], weights["fc.weight"], None, weights["fc.bias"], trans_b=True)
    return ctx.add(ctx.tanh(y), ctx.broadcast_in_dim(weights["shift"], shape=y.shape, dims=(1,)))


def _model(body=_body):
    arrays = _weights()
    weights = {n: Weight.of(a, "state" if n == "shift" else None) for n, a in arrays.items()}
    return Imported(
        {"x": aicf.TensorSpec(("batch", 3))}, body, weights, sizes={"batch": 4}, source="test graph"
    )


def _expected(x, arrays):
    exact = {n: a.astype(np.float64) for n, a in arrays.items()}
    return np.tanh(x.astype(np.float64) @ exact["fc.weight"].T + exact["fc.bias"]) + exact["shift"]


@pytest.mark.parametrize("batch", [4, 7, 1, 0])
def test_it_computes_its_graph_at_every_size(batch):
    program = aicf.compile(_model(), device="cpu")
    x = np.random.default_rng(1).normal(size=(batch, 3)).astype(np.float32)
    np.testing.assert_allclose(
        program({"x": x})["output"].numpy(), _expected(x, _weights()), rtol=2e-6, atol=2e-6
    )


def test_weights_are_called_as_in_their_framework():
    program = aicf.compile(_model(), device="cpu")
    assert set(program.state_dict()) == set(_weights())
    new = {n: a + 1 for n, a in _weights().items()}
    program.load_state_dict(new)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(program({"x": x})["output"].numpy(), _expected(x, new), rtol=2e-6)


def test_training_moves_params_and_leaves_states():
    model = _model()
    assert model.params == ["fc.weight", "fc.bias"]
    program = aicf.compile(
        model, "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=nn.SGD(lr=0.05)
    )
    feed = {"x": np.ones((4, 3), np.float32), "y": np.zeros((4, 5), np.float32)}
    losses = [float(program(feed)["loss"]) for _ in range(20)]
    after = program.state_dict()
    assert losses[-1] < losses[0]
    assert np.array_equal(after["shift"], _weights()["shift"])
    assert not np.array_equal(after["fc.weight"], _weights()["fc.weight"])


def test_a_weight_may_be_read_when_it_is_needed():
    read = []

    def later():
        read.append(1)
        return np.full((3,), 2, np.float32)

    model = Imported(
        {"x": aicf.TensorSpec((3,))}, lambda ctx, i, w: {"y": ctx.mul(i["x"], w["w"])},
        {"w": Weight(aicf.TensorSpec((3,)), later)},
    )  # fmt: skip
    assert model.outputs == {"y": aicf.TensorSpec((3,))} and not read
    assert aicf.compile(model, device="cpu")({"x": np.ones(3, np.float32)})["y"].numpy().tolist() == [2, 2, 2]
    assert len(read) == 1


def test_an_absent_device_is_explained():
    assert "cuda." in str(aicf.explain_for(_model(), "h200"))


def test_a_fault_of_the_graph_names_its_node():
    def wrong(ctx, inputs, weights):
        with ctx.at("node 7: MatMul"):
            return ctx.gemm(inputs["x"], weights["fc.weight"])

    with pytest.raises(AicfError, match="node 7: MatMul"):
        _model(wrong)


def test_names_mean_one_thing():
    spec = aicf.TensorSpec((3,))
    with pytest.raises(VerifyError, match="both called 'x'"):
        Imported({"x": spec}, _body, {"x": Weight.of(np.zeros(3, np.float32))})
    with pytest.raises(VerifyError, match=r"optimizer\.w"):
        Imported({"x": spec}, _body, {"optimizer.w": Weight.of(np.zeros(3, np.float32))})
    with pytest.raises(VerifyError, match="no size for batch"):
        Imported({"x": aicf.TensorSpec(("batch",))}, _body)
    assert free_names(["x", "loss", "y", "y", "grad.x"], {"x": spec}) == ["x_", "loss_", "y", "y_", "_grad.x"]


def test_copies_share_weights_and_not_variables():
    model = _model()
    aicf.compile(model, device="cpu")
    assert "_variables" not in vars(copy(model))
    arrays = Imported({"x": aicf.TensorSpec((3,))}, _double, {}, source="pickled")
    assert pickle.loads(pickle.dumps(arrays)).outputs == arrays.outputs


def _double(ctx, inputs, weights):
    return ctx.add(inputs["x"], inputs["x"])
