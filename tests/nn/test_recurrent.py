"""LSTM, GRU and RNN against NumPy in double precision, step by step, and their gradients against its central differences."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.errors import AicfError
from aicf.types import TensorSpec, bf16, f16

from .mlp import on_each_device, params

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, state, w_ih, w_hh, bias):
    h, c = state
    gates = x @ w_ih.T + h @ w_hh.T + (0 if bias is None else sum(bias))
    i, f, g, o = np.split(gates, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru(x, state, w_ih, w_hh, bias):
    (h,) = state
    b_ih, b_hh = (0, 0) if bias is None else bias
    (xr, xz, xn), (hr, hz, hn) = np.split(x @ w_ih.T + b_ih, 3, -1), np.split(h @ w_hh.T + b_hh, 3, -1)
    z = sigmoid(xz + hz)
    return ((1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h,)


def rnn(act):
    return lambda x, state, w_ih, w_hh, bias: (
        act(x @ w_ih.T + state[0] @ w_hh.T + (0 if bias is None else sum(bias))),
    )


KINDS = {
    "lstm": (nn.LSTM, lstm, 2), "gru": (nn.GRU, gru, 1), "tanh": (nn.RNN, rnn(np.tanh), 1),
    "relu": (lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k), rnn(lambda v: np.maximum(v, 0)), 1),
}  # fmt: skip


def oracle(cell, states, x, w, layers=1, bidirectional=False, starts=None):
    """(steps, batch, features) -> what all steps show, and the last states, by the names that PyTorch gives to weights."""
    ends = [[] for _ in range(states)]
    for layer in range(layers):
        shown = []
        for way in range(1 + bidirectional):
            name = f"l{layer}" + "_reverse" * way
            bias = [w[f"bias_{k}_{name}"] for k in ("ih", "hh")] if f"bias_ih_{name}" in w else None
            state = tuple(
                np.zeros((x.shape[1], HIDDEN)) if starts is None else s[layer * (1 + bidirectional) + way]
                for s in starts or [None] * states
            )
            rows = [None] * len(x)
            for t in range(len(x))[:: -1 if way else 1]:
                state = cell(x[t], state, w[f"weight_ih_{name}"], w[f"weight_hh_{name}"], bias)
                rows[t] = state[0]
            shown.append(np.stack(rows))
            for n in range(states):
                ends[n].append(state[n])
        x = np.concatenate(shown, -1)
    return x, [np.stack(e) for e in ends]


class Net(nn.Layer):
    """All that the layer returns as one row of numbers for each sequence."""

    def __init__(self, make: Any, **how: Any) -> None:
        self.inner = make(INPUTS, HIDDEN, how.pop("layers", 1), **how)

    def emit(self, ctx: Any, x: Any, s0: Any = None, s1: Any = None) -> Any:
        y, ends = self.inner(x, s0 if s1 is None else (s0, s1))
        ends = ends if isinstance(ends, tuple) else (ends,)
        return {"y": y, **{f"end{n}": end for n, end in enumerate(ends)}}


def model_of(kind: str, dtype=aicf.f32, given: bool = False, **how: Any) -> nn.Model:
    make, _, states = KINDS[kind]
    shape = ("batch", STEPS, INPUTS) if how.get("batch_first") else (STEPS, "batch", INPUTS)
    inputs = {"x": TensorSpec(shape, dtype)}
    rows = how.get("layers", 1) * (1 + how.get("bidirectional", False))
    for n in range(states if given else 0):
        inputs[f"s{n}"] = TensorSpec((rows, "batch", HIDDEN), dtype)
    return nn.Model(inputs, Net(make, **how), batch=BATCH, seed=3)


def squares(out: Any, want: Any) -> Any:
    return ((out["y"] - want) ** 2).mean() + sum((v * v).mean() for n, v in out.items() if n != "y")


def feed_of(model: nn.Model, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        n: rng.normal(size=s.bind(model.sizes).shape).astype(s.dtype.numpy) for n, s in model.inputs.items()
    }


def weights(program: Any) -> dict[str, np.ndarray]:
    return {n.rsplit(".", 1)[-1]: np.asarray(v, np.float64) for n, v in params(program).items()}


CASES = [
    {}, {"batch_first": True}, {"bias": False}, {"layers": 2}, {"bidirectional": True},
    {"layers": 3, "bidirectional": True, "batch_first": True},
]  # fmt: skip


@pytest.mark.spec("D13")
@pytest.mark.sample(1, each="kind")
@on_each_device
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "given"])
@pytest.mark.parametrize("how", CASES, ids=lambda how: " ".join(how) or "plain")
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_what_numpy_does_and_has_its_gradients(kind, how, given, device):
    _, cell, states = KINDS[kind]
    rng = np.random.default_rng([len(kind), len(how), given])
    model = model_of(kind, given=given, **how)
    wide = HIDDEN * (1 + how.get("bidirectional", False))
    first = how.get("batch_first", False)
    target = TensorSpec(("batch", STEPS, wide) if first else (STEPS, "batch", wide))
    program = aicf.compile(model, "grad", device=device, loss=nn.LossFunction(squares, want=target))
    feed = feed_of(model, rng)
    y = rng.normal(size=target.bind(model.sizes).shape).astype(np.float32)
    found = {n: t.numpy() for n, t in program({**feed, "want": y}).items()}
    w = weights(program)
    turned = (lambda a: a.swapaxes(0, 1)) if first else (lambda a: a)
    more = {k: v for k, v in how.items() if k in ("layers", "bidirectional")}
    starts = [feed[f"s{n}"].astype(np.float64) for n in range(states)] if given else None

    def results(w):
        made, ends = oracle(cell, states, turned(feed["x"]).astype(np.float64), w, **more, starts=starts)
        return turned(made), ends

    def loss(w):
        made, ends = results(w)
        return ((made - y) ** 2).mean() + sum((e**2).mean() for e in ends)

    made, ends = results(w)
    infer = aicf.compile(model, device=device, variables=program)(feed)
    np.testing.assert_allclose(infer["y"].numpy(), made, rtol=2e-5, atol=2e-6)
    for n, end in enumerate(ends):
        np.testing.assert_allclose(infer[f"end{n}"].numpy(), end, rtol=2e-5, atol=2e-6)
    assert found["loss"] == pytest.approx(loss(w), rel=1e-5)
    for name, value in w.items():
        (grad,) = (g for n, g in found.items() if n.startswith("grad.") and n.endswith("." + name))
        assert grad.shape == value.shape
        for flat in rng.permutation(value.size)[:4]:
            at = np.unravel_index(flat, value.shape)
            up, down = (
                {**w, name: value + s * (np.arange(value.size) == flat).reshape(value.shape)}
                for s in (1e-6, -1e-6)
            )
            assert grad[at] == pytest.approx((loss(up) - loss(down)) / 2e-6, rel=2e-4, abs=2e-6), (name, at)


@on_each_device
@pytest.mark.spec("D13")
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_a_step_of_training_moves_weights_by_numpys_gradient(kind, device):
    """Weights, inputs and targets are drawn in each run; SGD's step over the rate is NumPy's central difference."""
    _, cell, states = KINDS[kind]
    draw = rng("recurrent", kind)
    model, rate = model_of(kind), 0.5
    want = TensorSpec((STEPS, "batch", HIDDEN))
    program = aicf.compile(
        model, "train", device=device, loss=nn.LossFunction(squares, want=want), optimizer=nn.SGD(rate)
    )
    program.load_state_dict(
        {n: draw.normal(0, 0.5, v.shape).astype(v.dtype) for n, v in params(program).items()}, strict=False
    )
    before, feed = weights(program), feed_of(model, draw)
    y = draw.normal(size=want.bind(model.sizes).shape).astype(np.float32)
    loss = float(program({**feed, "want": y})["loss"].numpy())
    after = weights(program)

    def loss_of(w):
        shown, ends = oracle(cell, states, feed["x"].astype(np.float64), w)
        return ((shown - y) ** 2).mean() + sum((e**2).mean() for e in ends)

    assert loss == pytest.approx(loss_of(before), rel=1e-5)
    for name, value in before.items():
        for flat in draw.permutation(value.size)[:6]:
            at = np.unravel_index(flat, value.shape)
            step = 1e-6 * (np.arange(value.size) == flat).reshape(value.shape)
            slope = (loss_of({**before, name: value + step}) - loss_of({**before, name: value - step})) / 2e-6
            moved = (before[name][at] - after[name][at]) / rate
            assert moved == pytest.approx(slope, rel=1e-3, abs=1e-5), (kind, name, at)


@on_each_device
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_halves(dtype, device):
    model = model_of("lstm", dtype, layers=2)
    program = aicf.compile(model, device=device)
    feed = feed_of(model, np.random.default_rng(1))
    made = program(feed)
    want, _ = oracle(lstm, 2, feed["x"].astype(np.float64), weights(program), layers=2)
    assert made["y"].dtype is dtype
    np.testing.assert_allclose(
        made["y"].numpy().astype(np.float64), want, atol=0.02 if dtype is bf16 else 0.003
    )


@pytest.mark.spec("D13")
@on_each_device
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_training_learns_what_came_first(kind, device):
    """The first number of a sequence, at its end: what is carried has to hold it."""
    rng = np.random.default_rng(0)

    class Last(nn.Layer):
        def __init__(self):
            self.inner, self.head = KINDS[kind][0](1, 16, batch_first=True), nn.Linear(16, 1)

        def emit(self, ctx, x):
            _, end = self.inner(x)
            h = end[0] if kind == "lstm" else end
            return self.head(h[0])

    model = nn.Model({"x": TensorSpec(("batch", 8, 1))}, Last(), batch=64, seed=0)
    program = aicf.compile(model, "train", device=device, loss=nn.MeanSquaredError(), optimizer=nn.Adam(0.02))
    losses = []
    for _ in range(150):
        x = rng.uniform(-1, 1, (64, 8, 1)).astype(np.float32)
        losses.append(float(program({"x": x, "y": x[:, 0]})["loss"].numpy()))
    assert np.mean(losses[-10:]) < 0.1 * np.mean(losses[:5])


def test_a_policy_computes_in_halves_and_dropout_is_between_layers():
    model = model_of("gru", layers=2, dropout=0.5)
    loss = nn.LossFunction(squares, want=TensorSpec((STEPS, "batch", HIDDEN)))
    program = aicf.compile(model, "train", device="cpu", loss=loss, optimizer=nn.SGD(0.1), policy="bf16")
    assert [op.kind.name for s in program.plan.steps for op in s.region.ops].count(
        "dropout"
    ) == 2  # and its gradient
    feed = feed_of(model, np.random.default_rng(0))
    y = np.zeros((STEPS, BATCH, HIDDEN), np.float32)
    losses = [float(program({**feed, "want": y})["loss"].numpy()) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_the_products_of_inputs_are_one_gemm_and_the_steps_one_kernel():
    model = model_of("lstm")
    explained = aicf.explain_for(model, "h200")
    kinds = [[op.kind.name for op in region.spec.ops] for region in explained.regions]
    assert sum("gemm" in ops for ops in kinds) == 1 and ["scan"] in kinds


@pytest.mark.parametrize("make, text", [
    (lambda: nn.LSTM(4, 0), "LSTM: hidden"), (lambda: nn.GRU(4, 5, 0), "GRU: layers"), (lambda: nn.LSTM(4, 5, dropout=2), "LSTM: dropout"),
    (lambda: nn.RNN(4, 5, nonlinearity="gelu"), "RNN: nonlinearity is 'gelu'"), (lambda: nn.GRU(4, 5, bidirectional=2), "GRU: bidirectional"),
])  # fmt: skip
def test_a_constructor_says_what_is_wrong(make, text):
    with pytest.raises(AicfError, match=text):
        make()


def test_what_does_not_fit_is_said():
    with pytest.raises(AicfError, match="LSTM: x is no batch of sequences of 4 features") as caught:
        nn.Model({"x": TensorSpec((5, 3))}).add(nn.LSTM(4, 6))
    assert caught.value.where.startswith(__file__)
    with pytest.raises(AicfError, match="GRU: the state does not fit") as caught:
        nn.Model({"x": TensorSpec((5, 3, 4)), "s0": TensorSpec((1, 3, 5))}, Net(nn.GRU))
    assert caught.value.expected == "shape (1, 3, 6)"


def test_the_example_learns_and_writes(monkeypatch, capsys):
    path = Path(aicf.__file__).parents[1] / "examples" / "lstm.py"
    spec = importlib.util.spec_from_file_location("example_lstm", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    for name, small in (("LENGTH", 8), ("BATCH", 8), ("SIZE", 32)):
        monkeypatch.setattr(example, name, small)
    monkeypatch.setattr(sys, "argv", ["lstm.py", "--device", "cpu", "--steps", "40"])
    example.main()
    out = capsys.readouterr().out
    first, last = (float(n) for n in re.findall(r"loss (\S+)", out))
    assert last < first - 0.5 and "\nThe " in out
