"""Each layer against NumPy in double precision: what it computes, and its gradients by difference quotients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AicfError, OutOfBoundsError, TypeInferenceError, VerifyError
from aicf.types import DType, bf16, f16, f32, i32, i64

from .mlp import on_each_device

Weights = Mapping[str, np.ndarray]


class Moved(nn.Layer):
    """A layer of x + shift, whose gradient is that of x; both are drawn, with every weight, from N(0, 1/4) around its start."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def emit(self, ctx: Any, x: Any) -> Any:
        return self.layer(x + ctx.param("shift", x.shape, nn.init.zeros, x.dtype))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def linear(x, w, name=""):
    y = x @ w[f"{name}weight"].T
    return y + w[f"{name}bias"] if f"{name}bias" in w else y


def layer_norm(x, w):
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return y * w.get("weight", 1) + w.get("bias", 0)


def rms_norm(x, w):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w.get("weight", 1)


# name: (the layer, of x with 6 columns; the same of x and weights in NumPy; the shapes of its weights)
LAYERS: dict[str, tuple[Callable[[], Any], Callable[..., np.ndarray], dict[str, tuple[int, ...]]]] = {
    "linear": (lambda: nn.Linear(6, 5), linear, {"weight": (5, 6), "bias": (5,)}),
    "linear without bias": (lambda: nn.Linear(6, 5, bias=False), linear, {"weight": (5, 6)}),
    "layer_norm": (lambda: nn.LayerNorm(6), layer_norm, {"weight": (6,), "bias": (6,)}),
    "layer_norm without bias": (lambda: nn.LayerNorm(6, bias=False), layer_norm, {"weight": (6,)}),
    "layer_norm without weights": (lambda: nn.LayerNorm(6, affine=False), layer_norm, {}),
    "rms_norm": (lambda: nn.RMSNorm(6), rms_norm, {"weight": (6,)}),
    "rms_norm without weights": (lambda: nn.RMSNorm(6, affine=False), rms_norm, {}),
    "silu": (lambda: nn.SiLU(), lambda x, w: silu(x), {}),
    "mlp": (
        lambda: nn.MLP(6, 7), lambda x, w: linear(gelu(linear(x, w, "up.")), w, "down."),
        {"up.weight": (7, 6), "up.bias": (7,), "down.weight": (6, 7), "down.bias": (6,)},
    ),
    "mlp of its own": (
        lambda: nn.MLP(6, activation=nn.Tanh(), bias=False), lambda x, w: linear(np.tanh(linear(x, w, "up.")), w, "down."),
        {"up.weight": (24, 6), "down.weight": (6, 24)},
    ),
    "swiglu": (
        lambda: nn.SwiGLU(6, 7), lambda x, w: linear(silu(linear(x, w, "gate.")) * linear(x, w, "up."), w, "down."),
        {"gate.weight": (7, 6), "up.weight": (7, 6), "down.weight": (6, 7)},
    ),
}  # fmt: skip
SHAPES = [(6,), (4, 6), (2, 3, 6), (2, 1, 3, 6)]


def program_of(layer: Any, shape: tuple[int, ...], device: str, dtype: DType = f32) -> Any:
    model = nn.Model({"x": aicf.TensorSpec(shape, dtype)}, Moved(layer), seed=1)
    return aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())


def drawn(program: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The program's weights, moved from where they start and written back."""
    state = {
        n: v + (0.5 * rng.standard_normal(v.shape)).astype(v.dtype) for n, v in program.state_dict().items()
    }
    program.load_state_dict(state)
    return {n: np.asarray(v, np.float64) for n, v in state.items()}


@pytest.mark.spec("D13")
@pytest.mark.sample(1, each="name")
@on_each_device
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_numpy_does_and_has_its_gradients(name, shape, device):
    make, function, shapes = LAYERS[name]
    rng = np.random.default_rng()
    program = program_of(make(), shape, device)
    weights = drawn(program, rng)
    assert {n.removeprefix("layer."): w.shape for n, w in weights.items() if n != "shift"} == shapes
    x = rng.standard_normal(shape, np.float32)
    target = rng.standard_normal((*shape[:-1], 5 if "linear" in name else 6), np.float32)
    got = {n: np.asarray(v, np.float64) for n, v in program({"x": x, "y": target}).items()}

    def output(w: Weights) -> np.ndarray:
        own = {n.removeprefix("layer."): v for n, v in w.items()}
        return function(x.astype(np.float64) + own.pop("shift"), own)

    np.testing.assert_allclose(got["output"], output(weights), rtol=1e-4, atol=1e-5)
    for n, w in weights.items():
        numeric = np.empty_like(w)
        for at in np.ndindex(w.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = w.copy()
                moved[at] += step
                sides.append(np.mean((output({**weights, n: moved}) - target) ** 2))
            numeric[at] = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(
            got[f"grad.{n}"], numeric, rtol=1e-3, atol=1e-3 * np.abs(numeric).max(), err_msg=n
        )


@on_each_device
@pytest.mark.parametrize("name", ["linear", "layer_norm", "mlp", "swiglu"])
def test_no_rows_give_an_empty_result_and_no_gradient(name, device):
    make, _, _ = LAYERS[name]
    program = program_of(make(), (0, 3, 6), device)
    columns = 5 if name == "linear" else 6
    got = program({"x": np.zeros((0, 3, 6), np.float32), "y": np.zeros((0, 3, columns), np.float32)})
    assert got["output"].shape == (0, 3, columns)
    assert all(not np.asarray(v).any() for n, v in got.items() if n.startswith("grad."))


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype, rtol", [(f16, 1e-2), (bf16, 6e-2)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_halves_has_weights_of_halves(name, dtype, rtol):
    make, function, _ = LAYERS[name]
    rng = np.random.default_rng(3)
    program = program_of(make(), (4, 3, 6), "cpu", dtype)
    state = program.state_dict()
    assert all(v.dtype == dtype.numpy for v in state.values())
    x = rng.standard_normal((4, 3, 6), np.float32).astype(dtype.numpy)
    columns = 5 if "linear" in name else 6
    got = program({"x": x, "y": np.zeros((4, 3, columns), dtype.numpy)})["output"].numpy()
    weights = {n.removeprefix("layer."): v.astype(np.float64) for n, v in state.items() if n != "shift"}
    wanted = function(x.astype(np.float64), weights)
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=rtol, atol=rtol)


# --- embedding --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D13")
@on_each_device
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 2), (0, 3)], ids=str)
@pytest.mark.parametrize("kind", [i32, i64], ids=str)
def test_an_embedding_reads_rows_and_its_gradient_adds_to_them(kind, shape, device):
    rng = np.random.default_rng()
    model = nn.Model({"ids": aicf.TensorSpec(shape, kind)}, nn.Embedding(4, 3))
    program = aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())
    table = program.state_dict()["weight"]
    assert table.shape == (4, 3) and table.dtype == np.float32
    ids = rng.integers(-4, 4, shape).astype(kind.numpy)
    target = rng.standard_normal((*shape, 3), np.float32)
    got = program({"ids": ids, "y": target})
    np.testing.assert_array_equal(got["output"].numpy(), table[ids])
    wanted = np.zeros((4, 3))
    if target.size:
        np.add.at(wanted, ids, 2 * (table[ids].astype(np.float64) - target) / target.size)
    np.testing.assert_allclose(got["grad.weight"].numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_an_embedding_has_an_element_type_of_its_own():
    model = nn.Model({"ids": aicf.TensorSpec((5,), i32)}).add(nn.Embedding(7, 4, bf16))
    assert str(model.output) == "tensor<5x4xbf16>"


def test_a_number_beyond_the_table_is_told():
    program = aicf.compile(nn.Model({"ids": aicf.TensorSpec((3,), i32)}, nn.Embedding(4, 2)), device="cpu")
    with pytest.raises(OutOfBoundsError, match="4"):
        program({"ids": np.array([0, 4, 1], np.int32)})


# --- what does not fit ------------------------------------------------------------------------------------------------


REFUSED = {
    "floats as numbers of rows": (nn.Embedding(4, 3), (2, 5), TypeInferenceError, "the numbers of rows are f32", "expected: i32 or i64"),
    "other columns for a layer norm": (nn.LayerNorm(4), (2, 5), TypeInferenceError, "LayerNorm: x does not have 4 columns", "(..., 4)"),
    "other columns for an RMS norm": (nn.RMSNorm(4), (2, 5), TypeInferenceError, "RMSNorm: x does not have 4 columns"),
    "a number for a norm": (nn.LayerNorm(4), (), TypeInferenceError, "LayerNorm: x does not have 4 columns"),
    "a number for a linear layer": (nn.Linear(4, 3), (), TypeInferenceError, "Linear: x is 0-D", "(..., 4)"),
    "other columns for a linear layer": (nn.Linear(4, 3), (2, 3, 5), TypeInferenceError, "x has 5 features, and the layer takes 4"),
    "other columns for an MLP": (nn.MLP(4), (2, 3, 5), TypeInferenceError, "x has 5 features, and the layer takes 4"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_value_that_does_not_fit_is_refused_where_the_layer_is_added(what):
    layer, shape, error, *said = REFUSED[what]
    with pytest.raises(error) as raised:
        nn.Model({"x": shape}).add(layer)
    for part in (*said, "test_layers.py:"):
        assert part in str(raised.value), raised.value


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "entries": (lambda: nn.Embedding(-1, 3), "Embedding: entries=-1"),
    "width": (lambda: nn.Embedding(3, 2.5), "Embedding: width=2.5"),
    "an element type": (lambda: nn.Embedding(3, 2, "f31"), "f31"),
    "a first value": (lambda: nn.Embedding(3, 2, weight_init=0.02), "weight_init=0.02"),
    "a layer norm's size": (lambda: nn.LayerNorm((3, 4)), "LayerNorm: size=(3, 4)"),
    "a layer norm's eps": (lambda: nn.LayerNorm(3, eps=-1), "LayerNorm: eps=-1"),
    "a layer norm's flags": (lambda: nn.LayerNorm(3, affine=1), "LayerNorm: affine=1"),
    "an RMS norm's size": (lambda: nn.RMSNorm("3"), "RMSNorm: size='3'"),
    "an RMS norm's eps": (lambda: nn.RMSNorm(3, float("nan")), "RMSNorm: eps=nan"),
    "an MLP's size": (lambda: nn.MLP(-3), "MLP: size=-3"),
    "an MLP's activation": (lambda: nn.MLP(3, activation="gelu"), "no layer: 'gelu'"),
    "an MLP's dropout": (lambda: nn.MLP(3, dropout=2), "Dropout: rate=2"),
    "a SwiGLU's hidden size": (lambda: nn.SwiGLU(3, 4.5), "SwiGLU: hidden=4.5"),
    "a tied weight": (lambda: nn.Linear(3, 4, weight=np.zeros((4, 3))), "is no layer"),
}  # fmt: skip


@pytest.mark.parametrize("what", MADE)
def test_a_constructor_says_what_it_wants(what):
    call, said = MADE[what]
    with pytest.raises(AicfError) as raised:
        call()
    assert said in str(raised.value), raised.value


@pytest.mark.parametrize("layer", [nn.MLP, nn.SwiGLU])
def test_weights_start_where_they_are_told(layer):
    def starts(**inits: Any) -> dict[str, set[float]]:
        model = nn.Model({"x": (2, 3)}, layer(3, 4, **inits))
        state = aicf.compile(model, device="cpu").state_dict()
        return {n: set(v.flat) for n, v in state.items() if n.endswith("weight") and len(set(v.flat)) == 1}

    one, two = nn.init.constant(1.0), nn.init.constant(2.0)
    into = {"up.weight", "gate.weight"} if layer is nn.SwiGLU else {"up.weight"}
    assert starts() == {}
    assert starts(weight_init=one) == {n: {1.0} for n in (*into, "down.weight")}
    assert starts(weight_init=one, out_init=two) == {**{n: {1.0} for n in into}, "down.weight": {2.0}}
    assert starts(out_init=two) == {"down.weight": {2.0}}


def test_a_swiglu_has_as_many_weights_as_an_mlp():
    model = nn.Model({"x": (2, 768)}).add(nn.SwiGLU(768))
    assert model.summary().parameters == 3 * 768 * 2048
    with pytest.raises(VerifyError):
        nn.SwiGLU(768, -1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("device", ["h200", "a100"])
def test_every_layer_has_kernels_on_a_gpu(device, dtype):
    """Forward and backward, without a GPU at hand."""
    made: list[tuple[Any, tuple[int, ...]]] = [(make(), (8, 64, 6)) for make, _, _ in LAYERS.values()]
    made += [
        (nn.RoPE(16), (2, 4, 33, 16)),
        (nn.RoPE(16, interleaved=True), (33, 16)),
        (nn.Dropout(0.5), (8, 64, 6)),
        (nn.MultiHeadAttention(64, 4, 2, window=20, rope=100.0), (2, 33, 64)),
    ]
    for layer, shape in made:
        model = nn.Model({"x": aicf.TensorSpec(shape, dtype)}, Moved(layer))
        explained = aicf.explain_for(model, device, "grad", loss=nn.MeanSquaredError())
        chosen = [region.kernel_id for region in explained.regions if region.kernel_id]
        assert chosen and all(kernel.startswith("cuda.") for kernel in chosen), chosen
    model = nn.Model({"ids": aicf.TensorSpec((8, 64), i32)}, nn.Embedding(50, 16, dtype))
    assert aicf.explain_for(model, device, "grad", loss=nn.MeanSquaredError()).regions
