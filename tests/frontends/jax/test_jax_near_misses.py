"""Functions of JAX that nearly are a loss or a norm keep their values and gradients. Their forms, clips and constants are drawn; numbers are JAX's own."""

import numpy as np
import pytest
from draws.seeds import rng

jax = pytest.importorskip("jax")
from jax import lax, nn  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402
from aicf.graph.fuse.price import Pricer  # noqa: E402

ROWS, CLASSES = 12, 40
DRAWS = 1


@pytest.fixture(autouse=True)
def whatever_it_costs(monkeypatch):
    """Small sizes do not pay on the CPU; what is recognised is computed all the same."""
    monkeypatch.setattr(Pricer, "__call__", lambda *_: 0.0)


def any_of(draw, choices):
    name = list(choices)[draw.integers(len(choices))]
    return name, choices[name]


def logits(draw):
    """Rows of ordinary logits, and saturated ones."""
    x = 3 * draw.normal(size=(ROWS, CLASSES))
    x[:6] = 0
    x[np.arange(6), draw.integers(0, CLASSES, 6)] = draw.uniform(20, 80, 6)
    return x.astype(np.float32)


def losses(low, most, label):
    """Losses (logarithms of probabilities, labels) -> a number for each row."""

    def picked(logs, y):
        return -jnp.take_along_axis(logs, y[:, None], 1)[:, 0]

    return {
        "clipped logarithms": lambda logs, y: picked(jnp.clip(logs, -low, 0.0), y),
        "marked logarithms": lambda logs, y: picked(jnp.where(logs < -low, -low, logs), y),
        "clipped probabilities": lambda logs, y: -jnp.log(jnp.clip(jnp.exp(-picked(logs, y)), jnp.exp(-low), 1.0)),
        "an eps": lambda logs, y: -jnp.log(jnp.exp(-picked(logs, y)) + jnp.exp(-low)),
        "a ceiling": lambda logs, y: jnp.minimum(picked(logs, y), most),
        "large ones left out": lambda logs, y: jnp.where(picked(logs, y) > most, 0.0, picked(logs, y)),
        "a label left out": lambda logs, y: jnp.where(y == label, 0.0, picked(logs, y)),
        "one label for another": lambda logs, y: picked(logs, jnp.where(y == label, 3, y)),
        "a soft cap": lambda logs, y: most * jnp.tanh(picked(logs, y) / most),
    }  # fmt: skip


def norms(low, most):
    """Norms of rows."""

    def squares(x):
        return (x * x).mean(-1, keepdims=True)

    def centred(x):
        return x - x.mean(-1, keepdims=True)

    return {
        "a floor under the mean square": lambda x: x * lax.rsqrt(jnp.maximum(squares(x), low)),
        "a floor under the variance": lambda x: centred(x) / jnp.sqrt(jnp.maximum(squares(centred(x)), low)),
        "a clipped operand": lambda x: (lambda h: h * lax.rsqrt(squares(h) + 1e-6))(jnp.clip(x, -50.0, 50.0)),
        "a clipped result": lambda x: jnp.clip(x * lax.rsqrt(squares(x) + 1e-6), -most, most),
        "large ones left out": lambda x: (lambda h: jnp.where(h > most, 0.0, h))(x * lax.rsqrt(squares(x) + 1e-6)),
    }  # fmt: skip


@pytest.mark.spec("A12")
@pytest.mark.parametrize("n", range(DRAWS))
def test_near_misses_keep_their_values_and_gradients(n, request):
    draw = rng(request.node.nodeid)
    label = int(draw.integers(4, CLASSES))
    name, loss = any_of(draw, losses(np.float32(draw.uniform(5, 30)), np.float32(draw.uniform(5, 30)), label))
    other, norm = any_of(draw, norms(np.float32(10 ** draw.uniform(-3, -1)), np.float32(draw.uniform(2, 4))))
    x, y = logits(draw), draw.integers(0, CLASSES, ROWS).astype(np.int32)
    y[:2] = label
    rows = (draw.normal(size=(6, 16)) * np.array([[0.02], [200], [1], [1], [1], [0.1]])).astype(np.float32)
    rows[2, 3] = 40
    c = draw.normal(size=(6, 16)).astype(np.float32)

    def f(x, y, rows):
        value, gradient = jax.value_and_grad(lambda x: loss(nn.log_softmax(x), y).mean())(x)
        return (
            loss(nn.log_softmax(x), y),
            value,
            gradient,
            jax.grad(lambda rows: (norm(rows) * c).sum())(rows),
        )

    got = aicf.jax.jit(f, fallback="error")(x, y, rows)
    for what, ours, theirs in zip(("rows", "loss", "gradient", "norm"), got, jax.jit(f)(x, y, rows)):
        np.testing.assert_allclose(
            np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-4 if what == "norm" else 1e-6,
            err_msg=f"{what} of {other if what == 'norm' else name}, label {label}",
        )  # fmt: skip
