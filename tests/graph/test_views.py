"""Views in graphs: transpose, slice, reverse and reshape, beside what reads and writes them. The oracle is NumPy alone."""

from __future__ import annotations

import numpy as np
import pytest
from nn.mlp import on_each_device

import aicf
from aicf import nn
from aicf.device.spec import preset

from .chains import Fn, graph_of, model_of, planned

X = np.arange(16, dtype=np.float32).reshape(4, 4) / 7 - 1


def run(emit, x=X, device="cpu", **more):
    program = aicf.compile(model_of(emit, x.shape[1], x.shape[0]), device=device, **more)
    return program.run({"x": x})["output"].numpy()


# A value of the run's own, of which an op that reads elsewhere is the last reader: its storage must not be taken over.
ELSEWHERE = {
    "transpose": (lambda ctx, y: ctx.transpose(y, perm=(1, 0)), lambda y: y.T),
    "reverse": (lambda ctx, y: ctx.reverse(y, dims=(1,)), lambda y: y[:, ::-1]),
}


@on_each_device
@pytest.mark.spec("C6")
@pytest.mark.parametrize("kind", ELSEWHERE)
@pytest.mark.parametrize("numerics", ["fused", "strict"])
def test_what_is_read_elsewhere_is_not_written_over(kind, numerics, device):
    view, numpy = ELSEWHERE[kind]

    def emit(ctx, x):
        y = ctx.gemm(x, x)  # its own region: what follows reads it from storage
        return ctx.gemm(
            ctx.add(view(ctx, y), y), x
        )  # what is added is a temporary: it might lie where y does

    y = X @ X
    expected = (numpy(y) + y) @ X
    np.testing.assert_allclose(run(emit, device=device, numerics=numerics), expected, rtol=1e-4, atol=1e-4)


# --- what becomes one kernel ------------------------------------------------------------------------------------------

RNG = np.random.default_rng(7)
X3 = RNG.normal(size=(4, 6, 8)).astype(np.float32)
W, B, P = (RNG.normal(size=shape).astype(np.float32) for shape in ((8, 8), (8,), (6, 8)))


def weight(ctx, name, array):
    return ctx.param(name, array.shape, lambda shape, rng: array)


def projected(ctx, x, *, positions=False):
    h = ctx.gemm(ctx.reshape(x, shape=(24, 8)), weight(ctx, "w", W))
    h = ctx.tanh(ctx.bias_add(h, weight(ctx, "b", B)))
    return ctx.add(ctx.reshape(h, shape=(4, 6, 8)), weight(ctx, "p", P) if positions else x)


def heads(ctx, x):
    h = ctx.reshape(ctx.add(x, weight(ctx, "b", B)), shape=(4, 6, 2, 4))
    return ctx.scale(ctx.transpose(h, perm=(0, 2, 1, 3)), factor=2.0)


def groups(ctx, x):
    h = ctx.reshape(ctx.add(x, weight(ctx, "b", B)), shape=(4, 3, 16))
    return ctx.scale(ctx.reduce_sum(h, axes=(2,), keepdims=False), factor=3.0)


def halves(ctx, x):
    x = ctx.tanh(x)
    a, b = (ctx.slice(x, start=(0, 0, n), limit=(4, 6, n + 4)) for n in (0, 4))
    return ctx.sub(ctx.mul(a, b), b)


def mirrored(ctx, x):
    h = ctx.square(x)
    return ctx.add(ctx.add(h, ctx.reverse(h, dims=(2,))), ctx.reverse(h, dims=(0, 1)))


def under_another_shape(ctx, x):
    return ctx.reshape(ctx.add(x, weight(ctx, "b", B)), shape=(3, 64))


SQUARED, TANH = X3**2, np.tanh(X3)
FUSED = {
    "projected": (projected, ["reshape", "gemm + bias_add + tanh + reshape + add"], np.tanh(X3 @ W + B) + X3),
    "repeated rows": (
        lambda ctx, x: projected(ctx, x, positions=True),
        ["reshape", "gemm + bias_add + tanh + reshape + add"],
        np.tanh(X3 @ W + B) + P,
    ),
    "heads": (
        heads, ["add + reshape + transpose + scale"], 2 * (X3 + B).reshape(4, 6, 2, 4).transpose(0, 2, 1, 3),
    ),
    "groups": (groups, ["add + reshape + reduce_sum + scale"], 3 * (X3 + B).reshape(4, 3, 16).sum(2)),
    "halves": (halves, ["tanh + slice + slice + mul + sub"], TANH[..., :4] * TANH[..., 4:] - TANH[..., 4:]),
    "mirrored": (
        mirrored, ["square + reverse + add + reverse + add"], SQUARED + SQUARED[..., ::-1] + SQUARED[::-1, ::-1],
    ),
    "another shape": (under_another_shape, ["add + reshape"], (X3 + B).reshape(3, 64)),
}  # fmt: skip


@pytest.mark.spec("A3", "A12")
@pytest.mark.parametrize("name", FUSED)
def test_views_and_reshapes_end_no_region(name):
    emit, signatures, _ = FUSED[name]
    for device in ("cpu", "h200"):
        graph = graph_of(emit, "cpu" if device == "cpu" else "cuda", (4, 6, 8))
        _, regions, _ = planned(graph, device=preset(device))
        assert sorted(r.spec.signature for r in regions) == sorted(signatures), device


@on_each_device
@pytest.mark.spec("A12")
@pytest.mark.parametrize("name", FUSED)
def test_what_views_and_reshapes_are_fused_into_computes_what_numpy_does(name, device):
    emit, _, expected = FUSED[name]
    model = nn.Model({"x": aicf.TensorSpec(("batch", 6, 8))}, batch=4).add(Fn(emit))
    for numerics in ("fused", "strict"):
        made = aicf.compile(model, device=device, numerics=numerics).run({"x": X3})["output"].numpy()
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@on_each_device
@pytest.mark.spec("A12")
def test_a_reshape_that_leaves_and_is_reduced_is_written(device):
    """The reduction alone would take its operand as it lies."""

    def emit(ctx, x):
        y = ctx.reshape(x, shape=(2, 8))
        ctx.builder.output("y", y)
        return ctx.reduce_sum(y, axes=(0,))

    made = aicf.compile(model_of(emit, 4, 4), device=device).run({"x": X})
    np.testing.assert_array_equal(made["y"].numpy(), X.reshape(2, 8))
    np.testing.assert_allclose(made["output"].numpy(), X.reshape(2, 8).sum(0), rtol=1e-6)


# --- indices along an axis of what is reshaped --------------------------------------------------------------------------


@on_each_device
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 48), (24, 8), (2, 2, 6, 8), (192,), (4, 6, 2, 4), (1, 192)])
def test_indices_along_an_axis_keep_to_it_behind_a_reshape(axis, shape, device):
    """An index is of the axis that it counts, whatever shape the region's points have."""

    def emit(ctx, x):
        count = ctx.convert(ctx.iota(shape=(4, 6, 8), axis=axis, dtype="i32"), dtype="f32")
        y = ctx.reshape(ctx.add(ctx.reshape(x, shape=(4, 6, 8)), count), shape=shape)
        return ctx.reshape(ctx.scale(y, factor=2.0), shape=(24, 8))

    x = X3.reshape(24, 8)
    counts = np.indices((4, 6, 8))[axis].reshape(24, 8)
    np.testing.assert_allclose(run(emit, x, device), 2 * (x + counts), rtol=1e-6)


@on_each_device
def test_a_labels_gradient_behind_a_reshape(device):
    labels, classes = RNG.integers(0, 8, 24), np.arange(8)
    x = X3.reshape(24, 8)

    def emit(ctx, x):
        given = [ctx.constant(value) for value in (1.0, 0.0)]
        ones, zeros = (ctx.broadcast_in_dim(value, shape=(24,), dims=()) for value in given)
        label = weight(ctx, "labels", labels.astype(np.float32))
        label = ctx.convert(label, dtype="i32")
        grad = ctx.cross_entropy_grad(x, label, ones, zeros, ones)
        return ctx.reshape(ctx.scale(ctx.reshape(grad, shape=(2, 12, 8)), factor=3.0), shape=(24, 8))

    want = 3 * (np.exp(x.astype(np.float64)) - (labels[:, None] == classes))
    np.testing.assert_allclose(run(emit, x, device), want, rtol=1e-5, atol=1e-5)
