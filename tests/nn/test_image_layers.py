"""Convolutions, pooling and batch norm against NumPy in double precision, with their gradients by difference quotients; running
statistics over several runs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import TypeInferenceError, VerifyError

from .image_layers import check_layer
from .mlp import on_each_device


def pads_of(x, low, high, mode):
    return np.pad(x, ((0, 0), (0, 0), *zip(low, high)), mode)


def convolved(x, w, *, stride=1, low=0, high=None, dilation=1, groups=1, mode="constant"):
    """Place by place, with loops."""
    axes = x.ndim - 2

    def each(n):
        return (n,) * axes if isinstance(n, int) else n

    stride, dilation, low = each(stride), each(dilation), each(low)
    x = pads_of(x, low, low if high is None else each(high), mode)
    span = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    made = [(n - s) // step + 1 for n, s, step in zip(x.shape[2:], span, stride)]
    y = np.zeros((x.shape[0], w.shape[0], *made))
    c, o = x.shape[1] // groups, w.shape[0] // groups
    for g, at in product(range(groups), np.ndindex(*made)):
        places = tuple(slice(i * step, i * step + s, d) for i, step, s, d in zip(at, stride, span, dilation))
        seen = x[(slice(None), slice(g * c, (g + 1) * c), *places)]
        part = np.tensordot(seen, w[g * o : (g + 1) * o], (range(1, x.ndim), range(1, x.ndim)))
        y[(slice(None), slice(g * o, (g + 1) * o), *at)] = part
    return y


def conv(**how):
    def layer(x, w):
        y = convolved(x, w["weight"], **how)
        return y + w["bias"].reshape(-1, *[1] * (x.ndim - 2)) if "bias" in w else y

    return layer


def pooled(how, kernel, stride, padding=0, dilation=1, extra=0, value=0.0, count=None):
    """`count` of (elements of the padding, elements of the window) that a mean is of; None for a maximum."""

    def layer(x, w):
        axes = x.ndim - 2
        around = ((0, 0), (0, 0), *[(padding, padding + extra)] * axes)
        wide, real = np.pad(x, around, constant_values=value), np.pad(np.ones_like(x), around)
        span = (kernel - 1) * dilation + 1
        made = [(n - span) // stride + 1 for n in wide.shape[2:]]
        y = np.zeros((*x.shape[:2], *made))
        for at in np.ndindex(*made):
            places = (..., *[slice(i * stride, i * stride + span, dilation) for i in at])
            over = tuple(range(2, x.ndim))
            if how == "max":
                y[(..., *at)] = wide[places].max(over)
            else:
                n = {"all": kernel**axes, "real": real[places].sum(over)}.get(count, count)
                y[(..., *at)] = wide[places].sum(over) / n
        return y

    return layer


def adaptive(how, *sizes):
    def layer(x, w):
        for axis, m in enumerate(sizes, 2):
            n = x.shape[axis]
            cuts = [range(int(np.floor(i * n / m)), int(np.ceil((i + 1) * n / m))) for i in range(m)]
            x = np.stack([getattr(x.take(c, axis), how)(axis) for c in cuts], axis)
        return x

    return layer


def batch_norm(x, w, eps=1e-5):
    over = (0, *range(2, x.ndim))
    mean, var = x.mean(over, keepdims=True), x.var(over, keepdims=True)

    def column(v):
        return v.reshape(-1, *[1] * (x.ndim - 2))

    y = (x - mean) / np.sqrt(var + eps)
    return y * column(w["weight"]) + column(w["bias"]) if "weight" in w else y


low2 = float("-inf")
# name: (layer, shape of x, the same in NumPy)
LAYERS = {
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, 2, 1), (2, 2, 7), conv(stride=2, low=1)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, padding=1), (2, 2, 5, 4), conv(low=1)),
    "conv2d one example": (lambda: nn.Conv2d(2, 3, 2), (2, 3, 4), lambda x, w: conv()(x[None], w)[0]),
    "conv2d groups": (
        lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), groups=2, bias=False), (1, 4, 5, 4), conv(stride=(2, 1), low=(1, 0), groups=2),
    ),
    "conv2d depthwise": (lambda: nn.Conv2d(3, 3, 3, groups=3), (2, 3, 4, 5), conv(groups=3)),
    "conv2d dilated": (lambda: nn.Conv2d(2, 2, 3, dilation=2, padding=2), (1, 2, 5, 6), conv(low=2, dilation=2)),
    "conv2d same": (lambda: nn.Conv2d(2, 3, (4, 3), padding="same"), (1, 2, 5, 5), conv(low=(1, 1), high=(2, 1))),
    "conv2d patches": (lambda: nn.Conv2d(3, 4, 2, 2), (2, 3, 5, 4), conv(stride=2)),
    "conv2d reflect": (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (1, 2, 4, 3), conv(low=1, mode="reflect")),
    "conv2d replicate": (lambda: nn.Conv2d(2, 2, 3, padding=2, padding_mode="replicate"), (1, 2, 4, 3), conv(low=2, mode="edge")),
    "conv1d circular": (lambda: nn.Conv1d(2, 2, 3, padding=2, padding_mode="circular"), (1, 2, 5), conv(low=2, mode="wrap")),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, padding=(1, 0, 0)), (1, 2, 2, 3, 3), conv(low=(1, 0, 0))),
    "max_pool1d": (lambda: nn.MaxPool1d(3, 2, 1), (2, 2, 7), pooled("max", 3, 2, 1, value=low2)),
    "max_pool2d": (lambda: nn.MaxPool2d(2), (2, 2, 5, 4), pooled("max", 2, 2)),
    "max_pool2d ceil": (lambda: nn.MaxPool2d(2, 2, ceil_mode=True), (1, 2, 5, 5), pooled("max", 2, 2, extra=1, value=low2)),
    "max_pool2d dilated": (lambda: nn.MaxPool2d(2, 1, dilation=2), (1, 2, 4, 5), pooled("max", 2, 1, dilation=2)),
    "max_pool3d": (lambda: nn.MaxPool3d(2, 1), (1, 2, 3, 2, 3), pooled("max", 2, 1)),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, 2, 1), (2, 2, 7), pooled("sum", 3, 2, 1, count="all")),
    "avg_pool2d": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 2, 5, 5), pooled("sum", 3, 2, 1, count="real")),
    "avg_pool2d ceil": (lambda: nn.AvgPool2d(2, 2, ceil_mode=True), (1, 2, 5, 5), pooled("sum", 2, 2, extra=1, count="real")),
    "avg_pool2d divisor": (lambda: nn.AvgPool2d(2, 1, divisor_override=3), (1, 2, 4, 3), pooled("sum", 2, 1, count=3)),
    "avg_pool3d": (lambda: nn.AvgPool3d(2), (1, 2, 2, 4, 3), pooled("sum", 2, 2, count="all")),
    "adaptive_avg_pool1d": (lambda: nn.AdaptiveAvgPool1d(3), (2, 2, 7), adaptive("mean", 3)),
    "adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 4, 5), adaptive("mean", 1, 1)),
    "adaptive_avg_pool2d uneven": (lambda: nn.AdaptiveAvgPool2d((2, None)), (1, 2, 5, 3), adaptive("mean", 2, 3)),
    "adaptive_avg_pool3d": (lambda: nn.AdaptiveAvgPool3d((1, 2, 2)), (1, 2, 2, 4, 2), adaptive("mean", 1, 2, 2)),
    "adaptive_max_pool1d": (lambda: nn.AdaptiveMaxPool1d(2), (2, 2, 5), adaptive("max", 2)),
    "adaptive_max_pool2d": (lambda: nn.AdaptiveMaxPool2d((2, 1)), (1, 2, 4, 3), adaptive("max", 2, 1)),
    "adaptive_max_pool3d": (lambda: nn.AdaptiveMaxPool3d(1), (1, 2, 2, 2, 3), adaptive("max", 1, 1, 1)),
    "batch_norm1d": (lambda: nn.BatchNorm1d(3), (5, 3), batch_norm),
    "batch_norm1d of sequences": (lambda: nn.BatchNorm1d(3, affine=False), (2, 3, 4), batch_norm),
    "batch_norm2d": (lambda: nn.BatchNorm2d(2, eps=0.1), (2, 2, 3, 2), lambda x, w: batch_norm(x, w, 0.1)),
    "batch_norm2d without state": (lambda: nn.BatchNorm2d(2, track_running_stats=False), (2, 2, 3, 2), batch_norm),
    "batch_norm3d": (lambda: nn.BatchNorm3d(2), (2, 2, 1, 2, 2), batch_norm),
    "flatten": (lambda: nn.Flatten(), (2, 3, 2, 2), lambda x, w: x.reshape(2, 12)),
    "flatten some": (lambda: nn.Flatten(-3, -2), (2, 3, 2, 2), lambda x, w: x.reshape(2, 6, 2)),
    "identity": (lambda: nn.Identity(), (2, 3), lambda x, w: x),
}  # fmt: skip


@pytest.mark.spec("D13")
@pytest.mark.sample(5)
@on_each_device
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_what_numpy_does_and_has_its_gradients(name, device):
    check_layer(*LAYERS[name], device)


# --- running statistics -----------------------------------------------------------------------------------------------


class Net(nn.Layer):
    """A batch norm that is used twice, if asked."""

    def __init__(self, norm, twice=False):
        self.norm, self.head, self.twice = norm, nn.Linear(3, 2), twice

    def emit(self, ctx, x):
        y = self.norm(x)
        y = self.norm(ctx.relu(y)) if self.twice else y
        return self.head(y.mean(axis=(2, 3)))


def normal(x, mean, var, w, eps=1e-5):
    def column(v):
        return np.asarray(v, np.float64).reshape(-1, 1, 1)

    y = (x - column(mean)) / np.sqrt(column(var) + eps)
    return y * column(w["norm.weight"]) + column(w["norm.bias"])


def moments(x):
    return x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)


@pytest.mark.sample(2)
@on_each_device
@pytest.mark.parametrize("momentum", [0.1, 0.7, None, 0.0])
def test_running_statistics_follow_the_batches_and_inference_uses_them(device, momentum):
    model = nn.Model(
        {"x": aicf.TensorSpec(("batch", 3, 4, 2))}, Net(nn.BatchNorm2d(3, momentum=momentum)), batch=4
    )
    train = aicf.compile(model, "train", device=device, loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1))
    infer = aicf.compile(model, device=device)
    rng = np.random.default_rng()
    mean, var = np.zeros(3), np.ones(3)
    for step in range(1, 5):
        batch = int(rng.integers(2, 6))
        x = (rng.standard_normal((batch, 3, 4, 2)) * [[[3]], [[1]], [[0.5]]] + [[[5]], [[0]], [[-1]]]).astype(
            np.float32
        )
        before = infer({"x": x})["output"].numpy()  # what is kept of the statistics must not outlive them
        train({"x": x, "y": rng.integers(0, 2, batch)})
        share = 1 / step if momentum is None else momentum
        fresh = moments(x.astype(np.float64))
        mean, var = ((1 - share) * old + share * new for old, new in zip((mean, var), fresh))
        state = train.state_dict()
        np.testing.assert_allclose(state["norm.running_mean"], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state["norm.running_var"], var, rtol=1e-5)
        assert ("norm.num_batches_tracked" in state) == (momentum is None)
        assert momentum is not None or state["norm.num_batches_tracked"] == step
        out = infer({"x": x})["output"].numpy()
        wanted = (
            normal(x, mean, var, state).mean((2, 3)) @ state["head.weight"].T.astype(float)
            + state["head.bias"]
        )
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
        assert not np.array_equal(out, before)
        again = infer({"x": x})["output"].numpy()
        assert np.array_equal(out, again) and np.array_equal(
            infer.state_dict()["norm.running_var"], state["norm.running_var"]
        )


def test_a_layer_that_is_used_twice_moves_its_statistics_twice():
    model = nn.Model({"x": aicf.TensorSpec((4, 3, 4, 2))}, Net(nn.BatchNorm2d(3), twice=True))
    program = aicf.compile(model, "grad", device="cpu", loss=nn.SoftmaxCrossEntropy())
    rng = np.random.default_rng()
    x = rng.standard_normal((4, 3, 4, 2), np.float32)
    program({"x": x, "y": np.array([0, 1, 0, 1])})
    state = program.state_dict()
    second = np.maximum(
        normal(x.astype(float), x.astype(float).mean((0, 2, 3)), x.astype(float).var((0, 2, 3)), state), 0
    )
    mean = np.zeros(3)
    for values in (x.astype(float), second):
        mean = 0.9 * mean + 0.1 * moments(values)[0]
    np.testing.assert_allclose(state["norm.running_mean"], mean, rtol=1e-4, atol=1e-6)


def test_a_run_that_is_not_kept_moves_no_statistics():
    model = nn.Model({"x": aicf.TensorSpec((4, 3, 4, 2))}, Net(nn.BatchNorm2d(3)))
    program = aicf.compile(model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1))
    before = program.state_dict()
    with pytest.raises(aicf.errors.LabelError):
        program({"x": np.ones((4, 3, 4, 2), np.float32), "y": np.array([0, 1, 9, 0])})
    assert all(np.array_equal(v, before[n]) for n, v in program.state_dict().items())


def test_frozen_statistics_stay_and_weights_learn():
    model = nn.Model({"x": aicf.TensorSpec((4, 3, 4, 2))}, Net(nn.BatchNorm2d(3, frozen=True)))
    program = aicf.compile(model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1))
    before = program.state_dict()
    program(
        {
            "x": np.random.default_rng(0).normal(size=(4, 3, 4, 2)).astype(np.float32) + 2,
            "y": np.array([0, 1, 1, 0]),
        }
    )
    after = program.state_dict()
    assert not after["norm.running_mean"].any() and (after["norm.running_var"] == 1).all()
    assert not np.array_equal(after["norm.weight"], before["norm.weight"])


@pytest.mark.parametrize("policy", ["bf16", "f16"])
def test_statistics_are_f32_where_the_model_computes_in_halves(policy):
    model = nn.Model({"x": aicf.TensorSpec((8, 3, 4, 2))}, Net(nn.BatchNorm2d(3)))
    program = aicf.compile(
        model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1), policy=policy
    )
    x = np.random.default_rng(0).normal(3.0, 2.0, (8, 3, 4, 2)).astype(np.float32)
    program({"x": x, "y": np.array([0, 1] * 4)})
    state = program.state_dict()
    assert state["norm.running_mean"].dtype == state["norm.running_var"].dtype == np.float32
    mean, var = moments(x.astype(float))
    np.testing.assert_allclose(state["norm.running_mean"], 0.1 * mean, rtol=2e-2)
    np.testing.assert_allclose(state["norm.running_var"], 0.9 + 0.1 * var, rtol=2e-2)


def test_far_from_zero_a_variance_is_still_right():
    """A variance as a difference of squares would have no digit left here."""
    rng = np.random.default_rng(0)
    x = (1e4 + rng.standard_normal((16, 3, 4, 4))).astype(np.float32)
    model = nn.Model({"x": aicf.TensorSpec(x.shape)}).add(
        nn.BatchNorm2d(3, track_running_stats=False, affine=False)
    )
    y = aicf.compile(model, device="cpu")({"x": x})["output"].numpy()
    np.testing.assert_allclose(y, batch_norm(x.astype(float), {}), atol=2e-3)


# --- refusals ---------------------------------------------------------------------------------------------------------

WRONG = {
    "channels": (lambda: nn.Conv2d(3, 4, 3), (1, 2, 5, 5), r"Conv2d: x has 2 channels, and the layer takes 3"),
    "rank": (lambda: nn.Conv2d(3, 4, 3), (3, 5), r"Conv2d: x has rank 2"),
    "too small": (lambda: nn.Conv2d(3, 4, 3), (1, 3, 2, 5), r"Conv2d: a window that spans \(3, 3\) does not fit into \(2, 5\)"),
    "pool too small": (lambda: nn.MaxPool2d(3), (1, 3, 2, 5), r"MaxPool2d: a window that spans \(3, 3\) does not fit into \(2, 5\)"),
    "norm's rank": (lambda: nn.BatchNorm2d(3), (4, 3, 5), r"BatchNorm2d: x has rank 3"),
    "norm's channels": (lambda: nn.BatchNorm1d(3), (4, 2), r"BatchNorm1d: x has 2 channels, and the layer takes 3"),
    "flatten": (lambda: nn.Flatten(2), (4, 2), r"Flatten: x has no axes from 2 to -1"),
    "circular": (lambda: nn.Conv1d(1, 1, 3, padding=4, padding_mode="circular"), (1, 1, 3), r"circular padding of \(4, 4\) around 3 elements"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_value_that_does_not_fit_is_refused(what):
    make, shape, message = WRONG[what]
    with pytest.raises((TypeInferenceError, VerifyError), match=message):
        nn.Model({"x": aicf.TensorSpec(shape)}).add(make())


def test_one_element_has_no_variance():
    model = nn.Model({"x": aicf.TensorSpec((1, 3))}).add(nn.BatchNorm1d(3)).add(nn.Linear(3, 2))
    with pytest.raises(
        TypeInferenceError, match=r"BatchNorm1d: a channel has 1 elements, and its variance needs two"
    ):
        aicf.compile(model, "grad", device="cpu", loss=nn.SoftmaxCrossEntropy())(
            {"x": np.ones((1, 3), np.float32), "y": np.array([0])}
        )


ARGUMENTS = {
    r"Conv2d: in_channels=3 in 2 groups": lambda: nn.Conv2d(3, 4, 3, groups=2),
    r"Conv2d: out_channels=3 in 2 groups": lambda: nn.Conv2d(4, 3, 3, groups=2),
    r"Conv2d: padding='same' with stride=\(2, 2\)": lambda: nn.Conv2d(3, 4, 3, 2, "same"),
    r"Conv2d: padding='full'": lambda: nn.Conv2d(3, 4, 3, padding="full"),
    r"Conv2d: padding_mode='mirror'": lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"),
    r"Conv2d: kernel_size=\(3,\)": lambda: nn.Conv2d(3, 4, (3,)),
    r"Conv2d: kernel_size=0": lambda: nn.Conv2d(3, 4, 0),
    r"Conv2d: groups=0": lambda: nn.Conv2d(3, 4, 3, groups=0),
    r"MaxPool2d: padding=\(2, 2\) around windows of \(3, 3\)": lambda: nn.MaxPool2d(3, 2, 2),
    r"AvgPool2d: divisor_override=0": lambda: nn.AvgPool2d(2, divisor_override=0),
    r"AdaptiveAvgPool2d: output_size=0": lambda: nn.AdaptiveAvgPool2d(0),
    r"AdaptiveAvgPool2d: output_size=\(1, 2, 3\)": lambda: nn.AdaptiveAvgPool2d((1, 2, 3)),
    r"BatchNorm2d: momentum=1.5": lambda: nn.BatchNorm2d(3, momentum=1.5),
    r"BatchNorm2d: frozen=True with track_running_stats=False": lambda: nn.BatchNorm2d(3, track_running_stats=False, frozen=True),
}  # fmt: skip


@pytest.mark.parametrize("message", ARGUMENTS)
def test_an_argument_that_makes_no_sense_is_refused(message):
    with pytest.raises(VerifyError, match=message):
        ARGUMENTS[message]()


def test_layers_say_what_they_are():
    assert repr(nn.Conv2d(3, 8, 3, 2, 1)).startswith(
        "Conv2d(in_channels=3, out_channels=8, kernel_size=(3, 3), stride=(2, 2)"
    )
    assert repr(nn.AdaptiveAvgPool2d((None, 1))) == "AdaptiveAvgPool2d((None, 1))"
