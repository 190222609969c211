"""`aicf.jax.jit` on an NVIDIA GPU, beside `jax.jit` there: arrays by DLPack, streams, training steps."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import nn  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402

from .test_jax_jit import CASES, normal, same  # noqa: E402


def _gpu():
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        return None


pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _on_a_gpu():
    """Not a mark: JAX opens its devices when it is asked for them, and collecting tests opens none."""
    if _gpu() is None:
        pytest.skip("JAX sees no NVIDIA GPU")


def on_gpu(tree):
    return jax.device_put(tree, _gpu())


def test_arrays_of_the_gpu_in_and_out_a_thousand_times():
    """Each call's input is JAX's result of the one before, not waited for."""

    def f(x, w):
        return jnp.tanh(x @ w) + x

    ours, theirs = aicf.jax.jit(f, fallback="error"), jax.jit(f)
    x, w = on_gpu((normal(33, 65), normal(65, 65, scale=0.1)))
    a = b = x
    for n in range(1000):
        a, b = ours(a * 0.5, w), theirs(b * 0.5, w)
        if n % 100 == 99:
            same(a, b, exact=2e-5)
        assert next(iter(a.devices())) == _gpu()


def test_half_precision_and_integers():
    def f(x, w, tokens):
        h = nn.gelu(x @ w).astype(jnp.float32)
        return (h - h.mean(-1, keepdims=True), jnp.argsort(tokens, 1), w[tokens[:, 0] % 64])

    given = on_gpu(
        (
            normal(48, 64).astype(jnp.bfloat16),
            normal(64, 128).astype(jnp.bfloat16),
            jnp.arange(60).reshape(6, 10) * 7 % 11,
        )
    )
    got, want = aicf.jax.jit(f, fallback="error")(*given), jax.jit(f)(*given)
    same(got[1:], want[1:])
    np.testing.assert_allclose(np.asarray(got[0]), np.asarray(want[0]), rtol=2e-2, atol=8e-2)


@pytest.mark.parametrize("name", CASES)
def test_twenty_training_steps(name):
    optimizer, model, params, x, y = CASES[name]()
    params, x, y = on_gpu((params, jnp.asarray(x), jnp.asarray(y)))

    def step(params, state, x, y):
        def loss(p):
            logits = model(p, x)
            return -jnp.take_along_axis(nn.log_softmax(logits), y[..., None], -1).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return jax.tree_util.tree_map(jnp.add, params, updates), state, value

    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        ours, theirs = aicf.jax.jit(step, fallback="error"), jax.jit(step)
        a = b = (params, optimizer.init(params))
        for _ in range(20):
            *a, got = ours(*a, x, y)
            *b, want = theirs(*b, x, y)
            np.testing.assert_allclose(float(got), float(want), rtol=1e-4)
    finally:
        jax.config.update("jax_default_matmul_precision", None)
