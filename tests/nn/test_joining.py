"""ctx.reduce and ctx.associative_scan by functions of the caller's, with gradients; split, broadcast_to and flip of Values."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError

from .mlp import host


class Emits(nn.Layer):
    def __init__(self, make) -> None:
        self.make = make

    def emit(self, ctx, *xs, **named):
        return self.make(ctx, *xs, *named.values())


def run(make, *arrays):
    """What `make` emits of these inputs."""
    names = [f"x{n}" for n in range(len(arrays))]
    inputs = {n: aicf.TensorSpec(a.shape, aicf.DType.of(a.dtype)) for n, a in zip(names, arrays)}
    return host(aicf.compile(nn.Model(inputs, Emits(make)), device="cpu")(dict(zip(names, arrays))))


RNG = np.random.default_rng(2)


def recurrence(left, right):
    return left[0] * right[0], right[0] * left[1] + right[1]


@pytest.mark.parametrize("size", [1, 2, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recurrence_is_a_scan_of_pairs(size, reverse):
    a, b = (RNG.uniform(-1, 1, (3, size)).astype(np.float32) for _ in range(2))

    def recur(ctx, a, b):
        return ctx.associative_scan(recurrence, (a, b), axis=-1, reverse=reverse)[1]

    want, h = np.zeros((3, size)), np.zeros(3)
    for t in range(size)[:: -1 if reverse else 1]:
        h = want[:, t] = a[:, t].astype(np.float64) * h + b[:, t]
    np.testing.assert_allclose(run(recur, a, b)["output"], want, rtol=1e-4, atol=1e-5)


def test_any_combiner_reduces_in_order():
    """A product of matrices, which does not commute, of an odd number of them."""
    x = RNG.normal(size=(7, 2, 2)).astype(np.float32)

    def times(a, b):
        return (
            a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]
        )  # fmt: skip

    def chained(ctx, x):
        rows = tuple(x[:, i, j] for i in (0, 1) for j in (0, 1))
        return ctx.stack(*ctx.reduce(times, rows), axis=0).reshape(2, 2)

    want = np.linalg.multi_dot(list(x.astype(np.float64)))
    np.testing.assert_allclose(run(chained, x)["output"], want, rtol=1e-4, atol=1e-5)


def test_axes_and_sizes_of_a_reduction():
    x = RNG.normal(size=(5, 4, 3)).astype(np.float32)

    def make(ctx, x):
        kept = ctx.reduce(lambda a, b: a * b, x, 1, keepdims=True)
        return {"all": ctx.reduce(ctx.maximum, x), "two": ctx.reduce(ctx.add, x, axes=(0, -1)), "kept": kept}

    got = run(make, x)
    assert got["all"] == x.max() and got["kept"].shape == (5, 1, 3)
    np.testing.assert_allclose(got["two"], x.sum((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(got["kept"], x.prod(1, keepdims=True), rtol=1e-5)


def test_a_scan_is_differentiated():
    a = RNG.uniform(0.2, 1, 5).astype(np.float32)

    class Scanned(nn.Layer):
        def emit(self, ctx, x):
            p = ctx.param("p", (5,), lambda shape, rng: a)
            return ctx.associative_scan(recurrence, (p, x), axis=0)[1]

    x = RNG.normal(size=5).astype(np.float32)
    model = nn.Model({"x": aicf.TensorSpec((5,))}, Scanned())
    got = host(aicf.compile(model, "grad", device="cpu", loss=lambda out: out.sum())({"x": x}))["grad.p"]

    def total(p):
        h = made = 0.0
        for u, v in zip(p, x):
            h = u * h + v
            made += h
        return made

    want = [(total(a + d) - total(a - d)) / 2e-5 for d in 1e-5 * np.eye(5)]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_parts_of_a_value():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    def make(ctx, x):
        a, b = x.split((1, 2), axis=1)
        c, d = x.split(3, -1)
        return {
            "a": a,
            "b": b,
            "c": c,
            "d": d,
            "e": x[:, :1].broadcast_to(5, 2, 3, 4),
            "f": x.flip(0),
            "g": x.flip(),
        }

    got = run(make, x)
    assert np.array_equal(got["a"], x[:, :1]) and np.array_equal(got["b"], x[:, 1:])
    assert np.array_equal(got["c"], x[..., :3]) and np.array_equal(got["d"], x[..., 3:])
    assert np.array_equal(got["e"], np.broadcast_to(x[:, :1], (5, 2, 3, 4)))
    assert np.array_equal(got["f"], x[::-1]) and np.array_equal(got["g"], x[::-1, ::-1, ::-1])


REFUSED = {
    "empty": (lambda ctx, x: ctx.reduce(ctx.add, x[:0]), r"ctx\.reduce: axis 0 has no element"),
    "axis": (lambda ctx, x: ctx.associative_scan(ctx.add, x, axis=2), r"ctx\.associative_scan: axis 2 is not in \[-2, 2\)"),
    "another shape": (lambda ctx, x: ctx.reduce(lambda a, b: (a + b).sum(), x), r"ctx\.reduce: the function returned"),
    "a pair": (lambda ctx, x: ctx.reduce(lambda a, b: (a, b), x), r"returned a tuple of 2(.|\n)*one Value"),
    "two shapes": (lambda ctx, x: ctx.associative_scan(lambda a, b: a, (x, x[:1])), r"xs have different shapes"),
    "no Value": (lambda ctx, x: ctx.reduce(ctx.add, ()), r"reduce: xs"),
    "sizes": (lambda ctx, x: x.split((1, 1), 1)[0], r"split: sizes \(1, 1\) of axis 1(.|\n)*add up to 3"),
    "parts of 0": (lambda ctx, x: x.split(0)[0], r"split: parts of 0"),
    "stretched": (lambda ctx, x: x.broadcast_to(3, 3), r"broadcast_to: \(3, 3\)"),
    "flipped": (lambda ctx, x: x.flip(2), r"flip: axis 2"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_so(what):
    make, text = REFUSED[what]
    with pytest.raises(VerifyError, match=text):
        run(make, np.zeros((2, 3), np.float32))
