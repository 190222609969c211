"""Layers of layers: names by attribute, several operands and results, one weight in two places, a layer that is the model."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError
from aicf.types import i32

from .mlp import on_each_device, params


class Mix(nn.Layer):
    """Two operands, two results: (a w, a w + b)."""

    def __init__(self, size: int) -> None:
        self.map = nn.Linear(size, size, bias=False)

    def emit(self, ctx: Any, a: Any, b: Any) -> Any:
        y = self.map(a)
        return y, y + b


class Block(nn.Layer):
    def __init__(self, size: int) -> None:
        self.norm, self.mix = nn.LayerNorm(size), Mix(size)
        self.gates = {"in": nn.Linear(size, size), "out": [nn.Tanh(), nn.Linear(size, size)]}

    def emit(self, ctx: Any, x: Any, *, scale: float = 1.0) -> Any:
        y, moved = self.mix(self.norm(x), b=x)
        tanh, out = self.gates["out"]
        return y + out(tanh(self.gates["in"](moved))) * scale


class Tower(nn.Layer):
    """Of tokens and what is added to their rows, each fed by its name."""

    def __init__(self, size: int = 4, depth: int = 2) -> None:
        self.embed = nn.Embedding(7, size, weight_init=nn.init.normal(0.5))
        self.blocks = [Block(size) for _ in range(depth)]
        self.tail = nn.Sequential(nn.RMSNorm(size), nn.Residual(nn.Linear(size, size)))
        self.head = nn.Linear(size, 7, bias=False, weight=self.embed)

    def emit(self, ctx: Any, tokens: Any, shift: Any) -> Any:
        x = self.embed(tokens) + shift
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(self.tail(x))


INPUTS = {"shift": aicf.TensorSpec((4,)), "tokens": aicf.TensorSpec(("batch", 3), i32)}
NAMES = [
    *(
        f"blocks.{n}.{name}"
        for n in (0, 1)
        for name in (
            "gates.in.bias", "gates.in.weight", "gates.out.1.bias", "gates.out.1.weight", "mix.map.weight", "norm.bias",
            "norm.weight",
        )
    ), "embed.weight", "tail.0.weight", "tail.1.0.bias", "tail.1.0.weight",
]  # fmt: skip


def tower(**more: Any) -> nn.Model:
    return nn.Model(INPUTS, Tower(**more), batch=2, seed=5)


def feed(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "shift": rng.standard_normal(4, np.float32),
        "tokens": rng.integers(0, 7, (2, 3)).astype(np.int32),
        "y": rng.standard_normal((2, 3, 7), np.float32),
    }


def in_numpy(w: dict[str, np.ndarray], fed: dict[str, np.ndarray], head: np.ndarray | None = None) -> float:
    """The loss of the tower; `head` stands for the head's weight where that is another one's."""

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    x = w["embed.weight"][fed["tokens"]] + fed["shift"]
    for n in (0, 1):
        own = f"blocks.{n}."
        centred = x - x.mean(-1, keepdims=True)
        h = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        h = h * w[own + "norm.weight"] + w[own + "norm.bias"]
        y = h @ w[own + "mix.map.weight"].T
        x = y + 0.5 * linear(np.tanh(linear(y + x, own + "gates.in")), own + "gates.out.1")
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w["tail.0.weight"]
    x = x + linear(x, "tail.1.0")
    return float(np.mean((x @ (w["embed.weight"] if head is None else head).T - fed["y"]) ** 2))


@on_each_device
def test_nested_layers_have_names_by_attribute_and_the_gradients_of_numpy(device):
    rng = np.random.default_rng()
    program = aicf.compile(tower(), "grad", device=device, loss=nn.MeanSquaredError())
    weights = {n: v.astype(np.float64) for n, v in params(program).items()}
    assert sorted(weights) == NAMES
    fed = feed(rng)
    got = program(fed)
    np.testing.assert_allclose(float(got["loss"]), in_numpy(weights, fed), rtol=1e-4)
    for name, w in weights.items():
        numeric = np.empty_like(w)
        for at in np.ndindex(w.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = w.copy()
                moved[at] += step
                sides.append(in_numpy({**weights, name: moved}, fed))
            numeric[at] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(
            got[f"grad.{name}"].numpy(), numeric, rtol=2e-3, atol=2e-3 * np.abs(numeric).max(), err_msg=name
        )


def test_a_tied_weight_has_the_gradients_of_both_its_places():
    """Of the tower with a head of its own that starts at the same numbers, the two gradients are summed."""
    rng = np.random.default_rng(2)
    fed = feed(rng)
    tied = aicf.compile(tower(), "grad", device="cpu", loss=nn.MeanSquaredError())
    layer = Tower()
    layer.head = nn.Linear(4, 7, bias=False)
    untied = aicf.compile(
        nn.Model(INPUTS, layer, batch=2, seed=5), "grad", device="cpu", loss=nn.MeanSquaredError()
    )
    state = tied.state_dict()
    untied.load_state_dict({**state, "head.weight": state["embed.weight"]})
    both, apart = tied(fed), untied(fed)
    assert float(both["loss"]) == pytest.approx(float(apart["loss"]), rel=1e-6)
    summed = apart["grad.embed.weight"].numpy() + apart["grad.head.weight"].numpy()
    np.testing.assert_allclose(both["grad.embed.weight"].numpy(), summed, rtol=1e-4, atol=1e-6)


def test_a_head_is_tied_to_an_embedding_in_a_chain_too():
    table = nn.Embedding(7, 4)
    model = nn.Model({"ids": aicf.TensorSpec(("batch",), i32)}, batch=5)
    model.add(table).add(nn.Tanh()).add(nn.Linear(4, 7, bias=False, weight=table))
    for made in (model, copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        program = aicf.compile(
            made, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.5)
        )
        assert list(params(program)) == ["0.weight"]
        ids = np.array([0, 3, 6, 1, 1], np.int32)
        losses = [float(program({"ids": ids, "y": ids.astype(np.int64)})["loss"]) for _ in range(9)]
        assert losses[-1] < losses[0]
    rows = model.summary().rows
    assert [(row.name, row.parameters, row.shared) for row in rows[1:]] == [
        ("0", 28, False),
        ("1", 0, False),
        ("2", 0, True),
    ]


def test_the_same_layer_at_two_depths_is_one_with_the_name_it_had_first():
    class Twice(nn.Layer):
        def __init__(self) -> None:
            self.shared = nn.Linear(3, 3)
            self.inner = nn.Residual(self.shared)

        def emit(self, ctx: Any, x: Any) -> Any:
            return self.inner(self.shared(x))

    program = aicf.compile(nn.Model({"x": (2, 3)}, Twice()), device="cpu")
    state = program.state_dict()
    assert sorted(state) == ["shared.bias", "shared.weight"]
    x = np.ones((2, 3), np.float32)
    h = x @ state["shared.weight"].T + state["shared.bias"]
    np.testing.assert_allclose(
        program({"x": x})["output"].numpy(),
        h + h @ state["shared.weight"].T + state["shared.bias"],
        rtol=1e-5,
    )


def test_a_layer_deeper_inside_is_called_by_its_whole_path():
    class Outer(nn.Layer):
        def __init__(self) -> None:
            self.block = Block(4)
            self.block.owner = self  # a circle

        def emit(self, ctx: Any, x: Any) -> Any:
            return self.block.gates["out"][1](self.block.norm(x))

    state = aicf.compile(nn.Model({"x": (2, 4)}, Outer()), device="cpu").state_dict()
    assert sorted(state) == [
        "block.gates.out.1.bias",
        "block.gates.out.1.weight",
        "block.norm.bias",
        "block.norm.weight",
    ]


def test_a_model_of_one_layer_travels_and_shows_itself():
    model = tower()
    program = aicf.compile(model, device="cpu")
    fed = {n: v for n, v in feed(np.random.default_rng(1)).items() if n != "y"}
    wanted = program(fed)["output"].numpy()
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(aicf.compile(other, device="cpu")(fed)["output"].numpy(), wanted)
    summary = model.summary()
    assert summary.parameters == sum(v.size for v in params(program).values())
    by_name = {row.name: row for row in summary.rows}
    assert by_name["blocks.1.gates.out.1"].parameters == 20
    assert (by_name[""].layer, by_name[""].shape) == ("Tower", ("batch", 3, 7))
    assert by_name["blocks.0.mix"].shape == ("batch", 3, 4)
    assert by_name["head"].shared
    assert "Tower" in repr(model)


# --- what is refused --------------------------------------------------------------------------------------------------


class Fn(nn.Layer):
    def __init__(self, function: Any, **parts: Any) -> None:
        self.function = function
        vars(self).update(parts)

    def emit(self, ctx: Any, x: Any) -> Any:
        return self.function(self, ctx, x)


def _root(layer: Any, inputs: Any = (2, 3)) -> Any:
    return lambda: nn.Model(inputs, layer)


LATE = nn.Embedding(3, 3)
REFUSED = {
    "a layer that nobody keeps": (
        _root(Fn(lambda self, ctx, x: nn.Linear(3, 3)(x))), "is called in Fn.emit, but in no attribute of the Fn",
        "self.inner = Linear(...) in __init__", "test_nesting.py:",
    ),
    "a layer without a Value": (
        lambda: nn.Linear(3, 3)(np.ones((2, 3))), "was called without a Value", "got: ndarray", "aicf.compile(model)",
    ),
    "a layer without operands": (lambda: nn.ReLU()(), "got: no operand"),
    "two results for a layer of one": (
        lambda: nn.Model((2, 3)).add(Fn(lambda self, ctx, x: (x, x))).add(nn.Linear(3, 3)),
        "Linear does not take what the layer before it returns", "a tuple of 2", "test_nesting.py:",
    ),
    "a tuple with something else": (
        _root(Fn(lambda self, ctx, x: (x, 1))), "Fn.emit's result '1' is a int",
    ),
    "inputs under other names": (
        _root(Tower(), {"ids": (2, 3), "shift": (4,)}), "Tower.emit does not take the model's inputs",
        "expected: emit(self, ctx, ids, shift)", "tokens", "test_nesting.py:",
    ),
    "too few inputs": (_root(Tower(), (2, 3)), "Tower.emit does not take the model's inputs", "shift"),
    "a name that means something else": (
        _root(Fn(lambda self, ctx, x: x, optimizer=nn.ReLU())), "Fn.optimizer can't be the name of a layer", "const, grad, optimizer",
    ),
    "a list of such": (_root(Fn(lambda self, ctx, x: x, grad=[nn.ReLU()])), "Fn.grad can't be"),
    "a layer after one that is the model": (
        lambda: nn.Model((2, 3), nn.ReLU()).add(nn.ReLU()), "this model is one layer, ReLU, and no chain", "nn.Sequential", "test_nesting.py:",
    ),
    "a class for a layer": (lambda: nn.Model((2, 3), nn.ReLU), "ReLU is a class"),
    "a weight that comes later": (
        lambda: nn.Model((2, 3)).add(nn.Linear(3, 3, weight=LATE)), "tied to that of Embedding", "not emitted before", "Embedding first",
    ),
    "a weight of another shape": (
        lambda: nn.Model(aicf.TensorSpec((2,), i32)).add(LATE).add(nn.Linear(3, 4, weight=LATE)), "a weight is tied to 0.weight",
        "expected: tensor<3x3xf32>", "got: tensor<4x3xf32>", "test_nesting.py:",
    ),
    "a weight of a layer that has none": (
        lambda: nn.Model((2, 3)).add(RELU).add(nn.Linear(3, 4, weight=RELU)), "ReLU() has no param called 'weight'",
    ),
}  # fmt: skip
RELU = nn.ReLU()


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused(what):
    call, *said = REFUSED[what]
    with pytest.raises(VerifyError) as raised:
        call()
    for part in said:
        assert part in str(raised.value), raised.value


def test_a_refused_model_names_the_line_of_the_layer_s_emit():
    def emit(self, ctx, x):
        return x + ctx.param("scale", (5,), nn.init.ones)  # no such columns

    line = emit.__code__.co_firstlineno + 1
    with pytest.raises(aicf.errors.TypeInferenceError, match=f"test_nesting.py:{line}"):
        nn.Model((2, 3), Fn(emit))
