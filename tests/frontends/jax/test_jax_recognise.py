"""What JAX spells out is recognised: attention in functions, in whole training steps, in `jax.nn`. Numbers are JAX's own."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
from jax import nn  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402
from aicf.graph.fuse.price import Pricer  # noqa: E402

RNG = np.random.default_rng(0)
B, T, H, D = 2, 6, 4, 8


@pytest.fixture(autouse=True)
def whatever_it_costs(monkeypatch):
    """Small sizes do not pay on the CPU; what is recognised is computed all the same."""
    monkeypatch.setattr(Pricer, "__call__", lambda *_: 0.0)


def normal(*shape, dtype=jnp.float32):
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def recognised(f, *args):
    """Notes of a function, which gives what JAX gives."""
    jitted = aicf.jax.jit(f, fallback="error")
    for got, want in zip(jax.tree.leaves(jitted(*args)), jax.tree.leaves(jax.jit(f)(*args))):
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=2e-4, atol=2e-5
        )
    return told(jitted.explain(*args))


def told(explained):
    return [(n.what, n.told, n.ops > 0) for n in explained.recognised if n.what != "what constants decide"]


def spelt(q, k, v, causal=True, padding=None):
    x = jnp.einsum("bthd,bshd->bhts", q, k) / np.float32(np.sqrt(q.shape[-1]))
    if causal:
        x = jnp.where(jnp.tril(jnp.ones(x.shape[-2:], bool)), x, -1e9)
    if padding is not None:
        x = jnp.where(padding[:, None, None, :], x, jnp.finfo(x.dtype).min)
    return jnp.einsum("bhts,bshd->bthd", nn.softmax(x), v)


SCALE = f"scale {D**-0.5:.4g}"


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("form", ["einsum", "jax.nn", "jax.nn, grouped", "padded"])
def test_attention_forward_and_backward(form):
    q, k, v = (normal(B, T, H, D) for _ in range(3))
    if form == "jax.nn, grouped":
        k, v = k[:, :, :2], v[:, :, :2]
    padding = jnp.asarray(RNG.random((B, T)) < 0.6).at[0].set(False) if form == "padded" else None

    def f(q, k, v):
        if form.startswith("jax.nn"):
            return nn.dot_product_attention(q, k, v, is_causal=True)
        return spelt(q, k, v, form == "einsum", padding)

    what = {
        "einsum": f"causal, {SCALE}", "jax.nn": f"causal, {SCALE}", "jax.nn, grouped": f"causal, {SCALE}, 2 heads share keys",
        "padded": f"mask, {SCALE}",
    }[form]  # fmt: skip
    assert recognised(f, q, k, v) == [("attention", what, True)]
    dy = normal(B, T, H, D)

    def gradients(q, k, v):
        y, pull = jax.vjp(f, q, k, v)
        return y, pull(dy)

    assert recognised(gradients, q, k, v) == [("attention", f"{what}, with its gradient", True)]


def test_halves_are_multiplied_as_halves():
    q, k, v = (normal(B, T, H, D, dtype=jnp.bfloat16) for _ in range(3))
    explained = aicf.jax.jit(lambda q, k, v: nn.dot_product_attention(q, k, v, is_causal=True)).explain(
        q, k, v, device="h200"
    )
    (op,) = (op for r in explained.regions for op in r.spec.ops if op.kind.name == "attention")
    assert all(str(t.dtype) == "bf16" for r in explained.regions if op in r.spec.ops for t in r.spec.operands)


def test_dropout_of_weights_is_left_and_told():
    key = jax.random.key(0)

    def f(q, k, v):
        weights = nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        kept = jax.random.bernoulli(key, 0.9, weights.shape)
        return jnp.einsum("bhts,bshd->bthd", jnp.where(kept, weights / 0.9, 0.0), v)

    ((what, why, found),) = recognised(f, *(normal(B, T, H, D) for _ in range(3)))
    assert (what, found) == ("attention", False) and why.startswith("weights go through select by ")


def test_weights_that_are_returned_are_told():
    def f(q, k, v):
        weights = nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        return weights, jnp.einsum("bhts,bshd->bthd", weights, v)

    ((_, why, found),) = recognised(f, *(normal(B, T, H, D) for _ in range(3)))
    assert not found and why.startswith("weights at ") and why.endswith(" are returned, too")


def test_strict_numerics_recognise_nothing():
    args = [normal(B, T, H, D) for _ in range(3)]
    (note,) = aicf.jax.jit(spelt, numerics="strict").explain(*args).recognised
    assert not note.ops and note.told == 'numerics="strict" keeps every op as it is'


def test_a_training_step_with_an_optimizer():
    size = H * D
    params = {name: normal(size, size) * 0.2 for name in ("q", "k", "v", "o")}
    optimizer = optax.adam(1e-2)
    x, y = normal(B, T, size), normal(B, T, size)

    def step(params, state):
        def loss(p):
            q, k, v = ((x @ p[n]).reshape(B, T, H, D) for n in "qkv")
            return jnp.mean((spelt(q, k, v).reshape(B, T, size) @ p["o"] - y) ** 2)

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    ours, theirs = aicf.jax.jit(step, fallback="error"), jax.jit(step)
    a = b = (params, optimizer.init(params))
    for _ in range(30):
        *a, got = ours(*a)
        *b, want = theirs(*b)
        np.testing.assert_allclose(float(got), float(want), rtol=1e-4)
    assert told(ours.explain(params, optimizer.init(params))) == [
        ("attention", f"causal, {SCALE}, with its gradient", True)
    ]
    text = str(ours.explain(params, optimizer.init(params), device="h200"))
    assert f"recognised  attention 1 × (causal, {SCALE}, with its gradient) from " in text


# --- cross entropy ----------------------------------------------------------------------------------------------------

CLASSES = 19


def of_logarithms(x, y):
    return -jnp.take_along_axis(nn.log_softmax(x), y[..., None], -1)[..., 0]


def of_one_hot(x, y):
    return -(nn.one_hot(y, CLASSES) * nn.log_softmax(x)).sum(-1)


def of_optax(x, y):
    return optax.softmax_cross_entropy_with_integer_labels(x, y)


def of_optax_with_one_hot(x, y):
    return optax.softmax_cross_entropy(x, nn.one_hot(y, CLASSES))


LOSSES = (of_logarithms, of_one_hot, of_optax, of_optax_with_one_hot)


@pytest.mark.sample(1)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("labels", ["classes", "negative", "beyond"])
def test_cross_entropy_forward_and_backward(loss, labels):
    low, high = {"classes": (0, CLASSES), "negative": (-CLASSES, 0), "beyond": (CLASSES, 2 * CLASSES)}[labels]
    x, y, weights = (
        normal(4, 5, CLASSES),
        jnp.asarray(RNG.integers(low, high, (4, 5)), jnp.int32),
        normal(4, 5),
    )
    assert recognised(loss, x, y) == [("cross entropy", f"{CLASSES} classes", True)]

    def mean(x, y, weights):
        return (loss(x, y) * weights).mean()

    both = ("cross entropy", f"{CLASSES} classes, with its gradient", True)
    assert recognised(jax.value_and_grad(mean), x, y, weights) == [both]


def test_halves_of_logits_are_read_as_halves():
    x, y = normal(8, CLASSES, dtype=jnp.bfloat16), jnp.arange(8, dtype=jnp.int32)

    def mean(x, y):
        return of_optax(x.astype(jnp.float32), y).mean()

    explained = aicf.jax.jit(jax.value_and_grad(mean)).explain(x, y, device="h200")
    found = {
        op.kind.name: [str(t.dtype) for t in r.spec.operands] for r in explained.regions for op in r.spec.ops
    }
    assert found["cross_entropy"][0] == "bf16" and found["cross_entropy_grad"][0] == "bf16"


def test_labels_that_padding_hides():
    x, y = normal(6, CLASSES), jnp.asarray([3, -100, 5, 0, -100, 18], jnp.int32)

    def mean(x, y):
        kept = y >= 0
        return jnp.where(kept, of_optax(x, y), 0.0).sum() / kept.sum()

    notes = recognised(jax.value_and_grad(mean), x, y)
    assert notes == [("cross entropy", f"{CLASSES} classes, with its gradient", True)]


# --- norms ------------------------------------------------------------------------------------------------------------


def of_layers(x, w, b):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def of_layers_as_flax_has_it(x, w, b):
    mean = x.mean(-1, keepdims=True)
    variance = jnp.maximum((x * x).mean(-1, keepdims=True) - mean * mean, 0.0)
    return (x - mean) * (jax.lax.rsqrt(variance + 1e-6) * w) + b


def of_squares(x, w, b):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * w


NORMS = {of_layers: "layer_norm", of_layers_as_flax_has_it: "layer_norm", of_squares: "rms_norm"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("norm", NORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("residual", [False, True])
def test_gradients_of_norms(norm, residual):
    x, w, b, dy = normal(3, 5, 24), normal(24), normal(24), normal(3, 5, 24)

    def gradients(x, w, b, dy):
        y, pull = jax.vjp(lambda x, w, b: norm(x, w, b) + x * residual, x, w, b)
        return y, pull(dy)

    ((what, told_of, found),) = recognised(gradients, x, w, b, dy)
    assert (what, found) == ("gradient of a norm", True) and told_of.startswith(f"{NORMS[norm]} of 24")
    assert recognised(norm, x, w, b) == []


def test_a_block_of_a_transformer_is_all_recognised():
    size = H * D
    params = {n: normal(size, size) * 0.2 for n in ("q", "k", "v", "o", "up")} | {
        "n1": jnp.ones(size),
        "n2": jnp.ones(size),
    }
    x, y = normal(B, T, size), jnp.asarray(RNG.integers(0, CLASSES, (B, T)), jnp.int32)
    head = normal(size, CLASSES)

    def loss(p, x, y):
        h = of_squares(x, p["n1"], None)
        q, k, v = ((h @ p[n]).reshape(B, T, H, D) for n in "qkv")
        x = x + spelt(q, k, v).reshape(B, T, size) @ p["o"]
        x = x + nn.gelu(of_layers(x, p["n2"], 0.0) @ p["up"])
        return of_optax(x @ head, y).mean()

    found = sorted(
        what for what, _, good in recognised(jax.value_and_grad(loss, argnums=(0, 1)), params, x, y) if good
    )
    assert found == ["attention", "cross entropy", "gradient of a norm", "gradient of a norm"]
