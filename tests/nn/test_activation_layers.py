"""Activations, paddings, response norms and pools of norms against NumPy in double precision, with gradients; dropout of channels."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import TypeInferenceError, VerifyError

from .image_layers import check_layer
from .mlp import on_each_device

softplus = lambda z: np.logaddexp(0, z)  # noqa: E731
sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def of(f):
    return lambda x, w: f(x)


def padded(mode, *widths, **more):
    return lambda x, w: np.pad(x, [(0, 0)] * (x.ndim - len(widths)) + list(widths), mode, **more)


def response(size, alpha, beta, k):
    def layer(x, w):
        y = np.empty_like(x)
        for c in range(x.shape[1]):
            near = x[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]
            y[:, c] = x[:, c] / (k + alpha / size * (near**2).sum(1)) ** beta
        return y

    return layer


def lp_pool(x, w):
    y = np.zeros((*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2))
    for i, j in np.ndindex(*y.shape[2:]):
        y[..., i, j] = np.sqrt((x[..., 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] ** 2).sum((2, 3)))
    return y


R = (3, 4)
# name: (layer, shape of x, the same in NumPy)
LAYERS = {
    "elu": (lambda: nn.ELU(0.7), R, of(lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)))),
    "celu": (lambda: nn.CELU(1.5), R, of(lambda x: np.where(x > 0, x, 1.5 * np.expm1(x / 1.5)))),
    "selu": (lambda: nn.SELU(), R, of(lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)))),
    "mish": (lambda: nn.Mish(), R, of(lambda x: x * np.tanh(softplus(x)))),
    "hardswish": (lambda: nn.Hardswish(), R, of(lambda x: x * np.clip(x + 3, 0, 6) / 6)),
    "hardsigmoid": (lambda: nn.Hardsigmoid(), R, of(lambda x: np.clip(x / 6 + 0.5, 0, 1))),
    "hardtanh": (lambda: nn.Hardtanh(-0.5, 0.75), R, of(lambda x: np.clip(x, -0.5, 0.75))),
    "relu6": (lambda: nn.ReLU6(), R, of(lambda x: np.clip(x, 0, 6))),
    "softplus": (lambda: nn.Softplus(2.0), R, of(lambda x: softplus(2 * x) / 2)),
    "softplus threshold": (lambda: nn.Softplus(1.0, 0.5), R, of(lambda x: np.where(x > 0.5, x, softplus(x)))),
    "softsign": (lambda: nn.Softsign(), R, of(lambda x: x / (1 + abs(x)))),
    "log_sigmoid": (lambda: nn.LogSigmoid(), R, of(lambda x: -softplus(-x))),
    "tanhshrink": (lambda: nn.Tanhshrink(), R, of(lambda x: x - np.tanh(x))),
    "hardshrink": (lambda: nn.Hardshrink(0.4), R, of(lambda x: np.where(abs(x) > 0.4, x, 0))),
    "softshrink": (lambda: nn.Softshrink(0.4), R, of(lambda x: np.sign(x) * np.maximum(abs(x) - 0.4, 0))),
    "threshold": (lambda: nn.Threshold(0.1, -2.0), R, of(lambda x: np.where(x > 0.1, x, -2.0))),
    "prelu": (lambda: nn.PReLU(), R, lambda x, w: np.where(x > 0, x, w["weight"] * x)),
    "prelu of channels": (
        lambda: nn.PReLU(3, init=0.1), (2, 3, 4), lambda x, w: np.where(x > 0, x, w["weight"].reshape(3, 1) * x),
    ),
    "softmax": (lambda: nn.Softmax(0), R, of(lambda x: softmax(x, 0))),
    "softmin": (lambda: nn.Softmin(), R, of(lambda x: softmax(-x, -1))),
    "log_softmax": (lambda: nn.LogSoftmax(), R, of(lambda x: np.log(softmax(x, -1)))),
    "softmax2d": (lambda: nn.Softmax2d(), (1, 3, 2, 2), of(lambda x: softmax(x, 1))),
    "glu": (lambda: nn.GLU(1), (2, 4, 3), of(lambda x: x[:, :2] * sigmoid(x[:, 2:]))),
    "zero_pad1d": (lambda: nn.ZeroPad1d((1, 2)), (1, 2, 3), padded("constant", (1, 2))),
    "zero_pad2d": (lambda: nn.ZeroPad2d((1, 0, 2, 1)), (1, 2, 3, 2), padded("constant", (2, 1), (1, 0))),
    "zero_pad2d cut": (lambda: nn.ZeroPad2d((-1, 0, 0, -1)), (1, 2, 3, 3), of(lambda x: x[:, :, :-1, 1:])),
    "zero_pad3d": (lambda: nn.ZeroPad3d(1), (1, 1, 2, 2, 2), padded("constant", (1, 1), (1, 1), (1, 1))),
    "constant_pad1d": (lambda: nn.ConstantPad1d(2, 1.5), (2, 3), padded("constant", (2, 2), constant_values=1.5)),
    "constant_pad2d": (lambda: nn.ConstantPad2d(1, -1.0), (1, 2, 3, 2), padded("constant", (1, 1), (1, 1), constant_values=-1.0)),
    "constant_pad3d": (lambda: nn.ConstantPad3d(1, 2.0), (1, 1, 2, 1, 2), padded("constant", *[(1, 1)] * 3, constant_values=2.0)),
    "reflection_pad1d": (lambda: nn.ReflectionPad1d((2, 1)), (1, 2, 4), padded("reflect", (2, 1))),
    "reflection_pad2d": (lambda: nn.ReflectionPad2d((1, 2, 0, 1)), (1, 2, 3, 4), padded("reflect", (0, 1), (1, 2))),
    "reflection_pad3d": (lambda: nn.ReflectionPad3d(1), (1, 1, 2, 3, 2), padded("reflect", *[(1, 1)] * 3)),
    "replication_pad1d": (lambda: nn.ReplicationPad1d(2), (1, 2, 3), padded("edge", (2, 2))),
    "replication_pad2d": (lambda: nn.ReplicationPad2d((1, 2, 0, 1)), (2, 3, 2), padded("edge", (0, 1), (1, 2))),
    "replication_pad3d": (lambda: nn.ReplicationPad3d(1), (1, 1, 2, 1, 2), padded("edge", *[(1, 1)] * 3)),
    "circular_pad1d": (lambda: nn.CircularPad1d((1, 2)), (1, 2, 3), padded("wrap", (1, 2))),
    "circular_pad2d": (lambda: nn.CircularPad2d(1), (1, 2, 3, 2), padded("wrap", (1, 1), (1, 1))),
    "circular_pad3d": (lambda: nn.CircularPad3d(1), (1, 1, 2, 2, 1), padded("wrap", *[(1, 1)] * 3)),
    "local_response_norm": (lambda: nn.LocalResponseNorm(3, 0.5, 0.75, 2.0), (2, 5, 2), response(3, 0.5, 0.75, 2.0)),
    "lp_pool2d": (lambda: nn.LPPool2d(2, 2), (1, 2, 4, 5), lp_pool),
}  # fmt: skip


@pytest.mark.spec("D13")
@pytest.mark.sample(5)
@on_each_device
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_numpy_does_and_has_its_gradients(name, device):
    check_layer(*LAYERS[name], device)


def returned(layer, x):
    """What a layer makes of x in training."""
    model = nn.Model({"x": aicf.TensorSpec(x.shape)}).add(nn.BiasAdd(x.shape[-1])).add(layer)
    program = aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())
    return program({"x": x, "y": np.zeros_like(x)})["output"].numpy()


@pytest.mark.parametrize("kind, axes", [(nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)])
def test_whole_channels_are_dropped(kind, axes):
    x = np.random.default_rng().normal(size=(20, 30, *[2] * axes)).astype(np.float32)
    y = returned(kind(0.3), x)
    over = tuple(range(2, axes + 2))
    gone, whole = (y == 0).all(over), np.isclose(y, x / 0.7, rtol=1e-5).all(over)
    assert (gone ^ whole).all() and 0.2 < gone.mean() < 0.4


def test_alpha_dropout_keeps_mean_and_variance():
    x = np.random.default_rng().normal(size=(100, 200)).astype(np.float32)
    y = returned(nn.AlphaDropout(0.2), x)
    assert abs(y.mean()) < 0.05 and abs(y.std() - 1) < 0.05
    least = -1.7580993408473766
    a = 1 / math.sqrt(0.8 * (1 + 0.2 * least**2))
    dropped = np.isclose(y, a * least - a * 0.2 * least, atol=1e-5)
    assert 0.15 < dropped.mean() < 0.25
    np.testing.assert_allclose(y[~dropped], (a * x - a * 0.2 * least)[~dropped], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.Dropout2d, nn.AlphaDropout])
def test_inference_drops_nothing(kind):
    x = np.ones((2, 3, 2, 2), np.float32)
    y = aicf.compile(nn.Model({"x": aicf.TensorSpec(x.shape)}).add(kind(0.5)), device="cpu")({"x": x})
    assert np.array_equal(y["output"].numpy(), x)


WRONG = {
    r"ZeroPad2d: padding=\(1, 2\)": lambda: nn.ZeroPad2d((1, 2)),
    r"ReflectionPad1d: padding=-1": lambda: nn.ReflectionPad1d(-1),
    r"Hardtanh: max_val=-2": lambda: nn.Hardtanh(-1, -2),
    r"AlphaDropout: rate=1": lambda: nn.AlphaDropout(1),
    r"ZeroPad1d: padding=\(-2, -2\) cuts off more than there is": lambda: add(nn.ZeroPad1d(-2), 1, 1, 3),
    r"GLU: axis -1 of x can't be halved": lambda: add(nn.GLU(), 2, 3),
    r"PReLU: x does not have 4 channels": lambda: add(nn.PReLU(4), 2, 3),
    r"Softmax2d: x has rank 2": lambda: add(nn.Softmax2d(), 2, 3),
    r"Dropout2d: x has rank 2": lambda: add(nn.Dropout2d(), 2, 3),
    r"LocalResponseNorm: x has rank 2": lambda: add(nn.LocalResponseNorm(2), 2, 3),
}  # fmt: skip


def add(layer, *shape):
    nn.Model({"x": aicf.TensorSpec(shape)}).add(layer)


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message):
    with pytest.raises((VerifyError, TypeInferenceError), match=message):
        WRONG[message]()
