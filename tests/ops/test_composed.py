"""Ops that a graph has others in the place of: the others, run in float64, make what the op's own reference makes; so they have its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.ops.schema import schema_of, schemas
from aicf.types import f32
from examples import EVERYTHING

from .numpy_emitter import NumpyEmitter, Tensor
from .sampling import name, operands, packed, types_of

SOMETIMES = {"gather"}  # of some operands only: tests/graph has those
COMPOSED = [
    s for s in schemas() if s.instead_fn is not None and s.origin == "aicf" and s.name not in SOMETIMES
]
CASES = [(s, sample) for s in COMPOSED for sample in s.sample_specs]


@pytest.mark.sample(2, each="schema")
@pytest.mark.parametrize("schema, sample", CASES, ids=name)
def test_what_stands_in_an_op_s_place_makes_what_it_does(schema, sample, request):
    """Of drawn operands; of three times as many with AICF_TEST_ALL=1."""
    draw = rng(request.node.nodeid)
    for dtype in types_of(schema):
        for seed in map(int, draw.integers(2**31, size=3 if EVERYTHING else 1)):
            arrays = operands(schema, sample, dtype, exact=True, seed=seed)
            attrs = packed(schema, arrays, sample["attrs"])
            emit = NumpyEmitter()
            emit.device, emit.check_indices = (
                "cuda",
                lambda *_, **__: None,
            )  # some ops are made of others there alone
            with np.errstate(all="ignore"):
                made = schema.instead_fn(emit, *map(Tensor, arrays), **schema.values(attrs))
            if made is None:
                assert schema.name == "convolution_channels_last"  # but for windows of one element
                whole = arrays[1].size == arrays[1].shape[0] * arrays[1].shape[-1]
                assert not whole or attrs["groups"] > 1 or any(0 in a.shape for a in arrays)
                continue
            wanted = schema.call_reference(arrays, attrs)
            for got, want in zip(made if isinstance(made, tuple) else (made,), wanted, strict=True):
                assert got.data.shape == want.shape and (
                    got.data.dtype == want.dtype or want.dtype.kind == "f"
                )
                np.testing.assert_allclose(got.data, want, rtol=1e-12, atol=1e-12)


def test_a_depthwise_convolution_on_the_host_is_maps():
    """Where no kernel has groups of one channel; elsewhere one has."""
    schema = schema_of("convolution")
    (sample,) = [s for s in schema.sample_specs if s["attrs"].get("groups") == s["shapes"][0][1]]
    arrays = operands(schema, sample, f32, exact=True)
    attrs = packed(schema, arrays, sample["attrs"])
    for device, chosen in (("cpu", False), ("cuda", True)):
        emit = NumpyEmitter()
        emit.device = device
        got = schema.instead_fn(emit, *map(Tensor, arrays), **schema.values(attrs))
        (want,) = schema.call_reference(arrays, attrs)
        np.testing.assert_allclose(got.data, want, rtol=1e-12, atol=1e-12)
        assert ("convolution_channels_last" in emit.emitted) == chosen


def test_they_all_say_so():
    assert {s.name for s in COMPOSED} >= {
        "reduce_any",
        "reduce_var",
        "tril",
        "one_hot",
        "roll",
        "pad_reflect",
        "dynamic_slice",
    }


class Chain(nn.Layer):
    """A few of them on the way from x to y."""

    def emit(self, ctx, x):
        starts = ctx.constant(1, aicf.i64)
        starts = ctx.broadcast_in_dim(starts, shape=(2,), dims=())
        x = ctx.roll(ctx.tril(x), shifts=(1, -2), axes=(0, 1))
        x = ctx.dynamic_update_slice(x, ctx.dynamic_slice(x, starts, sizes=(2, 3)), ctx.add(starts, 1))
        x = ctx.pad_edge(ctx.pad_reflect(x, low=(0, 1), high=(0, 2)), low=(1, 0), high=(0, 1))
        return ctx.div(ctx.tile(x, repeats=(1, 2)), ctx.reduce_std(x, correction=1.0))


def chained(x):
    x = np.roll(np.tril(x), (1, -2), (0, 1))
    x = x.copy()
    x[2:4, 2:5] = x[1:3, 1:4]
    x = np.pad(np.pad(x, ((0, 0), (1, 2)), "reflect"), ((1, 0), (0, 1)), "edge")
    return np.tile(x, (1, 2)) / np.std(x, ddof=1)


class Shifted(nn.Layer):
    def emit(self, ctx, x):
        return ctx.add(x, ctx.param("w", (5, 6), lambda shape, rng: np.linspace(-1, 1, 30).reshape(shape)))


def test_a_model_of_them_runs_and_has_their_gradient():
    model = nn.Model({"x": aicf.TensorSpec((5, 6))}).add(Shifted()).add(Chain())
    program = aicf.compile(
        model, "grad", device="cpu", loss=nn.LossFunction(lambda out: (out * out * out).mean())
    )
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    made = program({"x": x})
    (grad,) = [np.asarray(v) for n, v in made.items() if n.startswith("grad")]
    w = np.linspace(-1, 1, 30).reshape(5, 6)

    def loss(w):
        return (chained(w + x) ** 3).mean()

    assert float(made["loss"]) == pytest.approx(loss(w), rel=1e-4)
    for at in np.ndindex(5, 6):
        step = np.zeros((5, 6))
        step[at] = 1e-5
        assert grad[at] == pytest.approx((loss(w + step) - loss(w - step)) / 2e-5, rel=1e-3, abs=1e-5)


class Pooled(nn.Layer):
    def emit(self, ctx, x):
        ties = np.array([[1, 1, 0, 0], [1, 1, 0, 2], [0, 0, 5, 5], [0, 0, 5, 1]])
        w = ctx.param("w", (1, 1, 4, 4), lambda shape, rng: ties.reshape(shape))
        return ctx.max_pool(ctx.add(w, x), window=(2, 2), strides=(2, 2))


def test_of_equal_elements_of_a_window_the_first_has_the_gradient():
    model = nn.Model({"x": aicf.TensorSpec((1, 1, 4, 4))}).add(Pooled())
    program = aicf.compile(model, "grad", device="cpu", loss=nn.LossFunction(lambda out: out.sum()))
    made = program({"x": np.zeros((1, 1, 4, 4), np.float32)})
    (grad,) = [np.asarray(v) for n, v in made.items() if n.startswith("grad")]
    assert np.array_equal(grad[0, 0], [[1, 0, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0], [0, 0, 0, 0]])


def test_zeros_end_a_product_s_gradient_where_they_stand():
    """Against differences: one zero, two, at the ends, and none."""
    from .test_gradient import gradient_at

    dy = np.array([1.0, -2, 0.5, 3])
    for x in map(np.array, ([2.0, 0, 3, 4], [2.0, 0, 3, 0], [0.0, 1, 2, 3], [1.0, 2, 3, 0], [1.0, 2, 3, 4])):
        for how in ({}, {"reverse": True}, {"exclusive": True}):
            (got,) = gradient_at("cumprod", x, dy=dy, axis=0, **how)
            want = differences(lambda v, how=how: dy @ product_so_far(v, **how), x)
            assert np.allclose(got, want, atol=1e-5)
        (got,) = gradient_at("reduce_prod", x)
        assert np.allclose(got, differences(np.prod, x), atol=1e-5)


def product_so_far(x, reverse=False, exclusive=False):
    order = x[::-1] if reverse else x
    made = np.array([np.prod(order[: n + (not exclusive)]) for n in range(len(x))])
    return made[::-1] if reverse else made


def differences(function, x, step=1e-6):
    return [(function(x + e) - function(x - e)) / (2 * step) for e in np.eye(len(x)) * step]


def test_equal_elements_keep_their_order_and_nan_is_the_greatest():
    from aicf.ops.schema import schema_of

    x = np.array([3, np.nan, 1, 3, -0.0, 0.0, np.inf, 1], np.float32)
    for descending, want in [(False, [4, 5, 2, 7, 0, 3, 6, 1]), (True, [1, 6, 0, 3, 2, 7, 4, 5])]:
        for device in ("cpu", "cuda"):
            emit = NumpyEmitter()
            emit.device = device
            made = schema_of("argsort").instead_fn(emit, Tensor(x), axis=0, descending=descending)
            if device == "cpu":
                assert made is None
                (got,) = schema_of("argsort").call_reference([x], {"axis": 0, "descending": descending})
            else:
                got = made.data
            assert got.tolist() == want
