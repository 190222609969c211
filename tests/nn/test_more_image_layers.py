"""Transposed convolutions, group and instance norms, and what makes images larger, against NumPy in double precision, with gradients."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import TypeInferenceError, VerifyError

from .image_layers import check_layer
from .mlp import on_each_device


def transposed(stride=1, padding=0, more=0, dilation=1, groups=1):
    """Element by element, with loops."""

    def layer(x, w):
        kernels, axes = w["weight"], x.ndim - 2
        (n, c, *sizes), (_, o, *kernel) = x.shape, kernels.shape
        wide = [(d - 1) * stride + (k - 1) * dilation + 1 + more for d, k in zip(sizes, kernel)]
        y = np.zeros((n, o * groups, *wide))
        for ic, oc in product(range(c), range(o)):
            group = ic // (c // groups)
            for at, k in product(np.ndindex(*sizes), np.ndindex(*kernel)):
                place = tuple(a * stride + b * dilation for a, b in zip(at, k))
                y[(slice(None), group * o + oc, *place)] += x[(slice(None), ic, *at)] * kernels[(ic, oc, *k)]
        y = y[(..., *[slice(padding, d - padding) for d in wide])]
        return y + w["bias"].reshape(-1, *[1] * axes) if "bias" in w else y

    return layer


def group_norm(groups, eps=1e-5):
    def layer(x, w):
        rows = x.reshape(x.shape[0], groups, -1)
        y = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + eps)
        column = (-1, *[1] * (x.ndim - 2))
        y = y.reshape(x.shape)
        return y * w["weight"].reshape(column) + w["bias"].reshape(column) if "weight" in w else y

    return layer


def resized(m, where):
    """Linear, of the last axis, by hand: `where` gives a place among the old elements."""

    def layer(x, w):
        n, y = x.shape[-1], np.zeros((*x.shape[:-1], m))
        for o in range(m):
            at = min(max(where(o, n, m), 0), n - 1)
            low = int(np.floor(at))
            y[..., o] = x[..., low] * (1 - at + low) + x[..., min(low + 1, n - 1)] * (at - low)
        return y

    return layer


def shuffled(r):
    def layer(x, w):
        n, c, h, width = x.shape
        y = np.zeros((n, c // r**2, h * r, width * r))
        for i, j in product(range(r), range(r)):
            y[:, :, i::r, j::r] = x[:, i * r + j :: r * r]
        return y

    return layer


def unshuffled(r):
    def layer(x, w):
        n, c, h, width = x.shape
        y = np.zeros((n, c * r * r, h // r, width // r))
        for i, j in product(range(r), range(r)):
            y[:, i * r + j :: r * r] = x[:, :, i::r, j::r]
        return y

    return layer


# name: (layer, shape of x, the same in NumPy)
LAYERS = {
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(2, 3, 3, 2, 1), (2, 2, 4), transposed(2, 1)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(2, 3, 2, 2), (1, 2, 3, 2), transposed(2)),
    "conv_transpose2d groups": (
        lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1, 1, groups=2, bias=False), (1, 4, 2, 3), transposed(2, 1, 1, groups=2),
    ),
    "conv_transpose2d dilated": (lambda: nn.ConvTranspose2d(2, 2, 2, dilation=2), (1, 2, 3, 2), transposed(dilation=2)),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 1, 2), (1, 2, 2, 1, 2), transposed()),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3, 2), group_norm(2)),
    "group_norm of rows": (lambda: nn.GroupNorm(2, 6, affine=False), (3, 6), group_norm(2)),
    "instance_norm1d": (lambda: nn.InstanceNorm1d(3), (2, 3, 5), group_norm(3)),
    "instance_norm2d": (lambda: nn.InstanceNorm2d(2, affine=True), (2, 2, 3, 2), group_norm(2)),
    "instance_norm3d": (lambda: nn.InstanceNorm3d(2, eps=0.1), (1, 2, 2, 2, 2), group_norm(2, 0.1)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), (1, 2, 3, 2), lambda x, w: x.repeat(2, 2).repeat(2, 3)),
    "upsample to": (
        lambda: nn.Upsample(7, mode="nearest"), (2, 2, 3), lambda x, w: x[..., np.arange(7) * 3 // 7],
    ),
    "upsample linear": (
        lambda: nn.Upsample(scale_factor=2.5, mode="linear"), (1, 2, 4), resized(10, lambda o, n, m: (o + 0.5) / 2.5 - 0.5),
    ),
    "upsample corners": (
        lambda: nn.Upsample(7, mode="linear", align_corners=True), (1, 2, 4), resized(7, lambda o, n, m: o * (n - 1) / (m - 1)),
    ),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (1, 8, 2, 3), shuffled(2)),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), (1, 2, 4, 6), unshuffled(2)),
}  # fmt: skip


@pytest.mark.spec("D13")
@pytest.mark.sample(1, each="name")
@on_each_device
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_numpy_does_and_has_its_gradients(name, device):
    check_layer(*LAYERS[name], device)


def test_an_instance_norm_s_running_statistics_are_those_of_all_examples():
    layer = nn.InstanceNorm2d(2, track_running_stats=True, momentum=0.3)
    model = nn.Model({"x": aicf.TensorSpec((3, 2, 4, 2))}).add(layer).add(nn.Flatten()).add(nn.Linear(16, 2))
    train = aicf.compile(model, "grad", device="cpu", loss=nn.SoftmaxCrossEntropy())
    x = np.random.default_rng().normal(2.0, 3.0, (3, 2, 4, 2)).astype(np.float32)
    train({"x": x, "y": np.array([0, 1, 0])})
    state, wide = train.state_dict(), x.astype(float)
    np.testing.assert_allclose(state["0.running_mean"], 0.3 * wide.mean((0, 2, 3)), rtol=1e-5)
    np.testing.assert_allclose(
        state["0.running_var"], 0.7 + 0.3 * wide.var((2, 3), ddof=1).mean(0), rtol=1e-5
    )
    mean, var = (state[f"0.running_{n}"].astype(float).reshape(2, 1, 1) for n in ("mean", "var"))
    flat = ((wide - mean) / np.sqrt(var + 1e-5)).reshape(3, 16)
    wanted = flat @ state["2.weight"].T.astype(float) + state["2.bias"]
    out = aicf.compile(model, device="cpu")({"x": x})["output"].numpy()
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


WRONG = {
    r"ConvTranspose2d: output_padding=\(2, 2\)": lambda: nn.ConvTranspose2d(2, 3, 3, 2, output_padding=2),
    r"GroupNorm: num_channels=6 in 4 groups": lambda: nn.GroupNorm(4, 6),
    r"Upsample: size=None, scale_factor=None": lambda: nn.Upsample(),
    r"Upsample: mode='area'": lambda: nn.Upsample(2, mode="area"),
    r"Upsample: align_corners=True with mode='nearest'": lambda: nn.Upsample(2, align_corners=True),
    r"Upsample: mode 'bilinear' of x of rank 3": lambda: of(nn.Upsample(4, mode="bilinear"), 1, 2, 3),
    r"Upsample: \(4, 4, 4\) for 2 spatial axes": lambda: of(nn.Upsample((4, 4, 4)), 1, 2, 3, 3),
    r"PixelShuffle: x does not have 4 channels": lambda: of(nn.PixelShuffle(2), 1, 6, 3, 3),
    r"PixelUnshuffle: 2 does not divide the sizes of x": lambda: of(nn.PixelUnshuffle(2), 1, 6, 3, 4),
    r"GroupNorm: x has 3 channels": lambda: of(nn.GroupNorm(2, 4), 2, 3, 2),
    r"InstanceNorm1d: x has rank 4": lambda: of(nn.InstanceNorm1d(2), 1, 2, 3, 3),
    r"ConvTranspose1d: x has 3 channels": lambda: of(nn.ConvTranspose1d(2, 2, 2), 1, 3, 4),
}  # fmt: skip


def of(layer, *shape):
    nn.Model({"x": aicf.TensorSpec(shape)}).add(layer)


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message):
    with pytest.raises((VerifyError, TypeInferenceError), match=message):
        WRONG[message]()
