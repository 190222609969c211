"""Arguments of jax.numpy that are 0, False or empty are values, not absent ones: drawn calls, beside jax.jit."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from draws.seeds import rng as rng_of  # noqa: E402
from jax import lax, nn  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402

CALLS = 3  # of each run
AXES = (), 0, (0,), None
CALLED = {
    "sum": (jnp.sum, {"axis": AXES, "keepdims": (False, True), "initial": (0, 0.0, 2.0)}),
    "mean": (jnp.mean, {"axis": (0, (0,), None), "keepdims": (False, True)}),
    "max": (jnp.max, {"axis": AXES, "initial": (0.0, 5.0)}),
    "prod": (jnp.prod, {"axis": AXES, "initial": (0.0, 2.0)}),
    "any": (lambda x, **how: jnp.any(x > 1, **how), {"axis": AXES}),
    "var": (jnp.var, {"axis": (0, None), "ddof": (0, 1)}),
    "argmax": (jnp.argmax, {"axis": (0, None), "keepdims": (False, True)}),
    "cumsum": (jnp.cumsum, {"axis": (0, 1)}),
    "clip": (jnp.clip, {"min": (0, 0.0, -1), "max": (0, 0.0, 1)}),
    "where": (lambda x, other=1.0: jnp.where(x > 0, x, other), {"other": (0, 0.0, False)}),
    "pad": (lambda x, **how: jnp.pad(x, ((0, 0), (0, 1)), **how), {"constant_values": (0, 0.0, 2)}),
    "roll": (lambda x, shift=1, **how: jnp.roll(x, shift, **how), {"shift": (0, 2), "axis": (0, None)}),
    "flip": (jnp.flip, {"axis": ((), 0, None)}),
    "expand_dims": (lambda x, axis=1: jnp.expand_dims(x, axis) * 2, {"axis": (0, (0,))}),
    "tril": (jnp.tril, {"k": (0, 1)}),
    "eye": (lambda x, **how: x @ jnp.eye(4, **how), {"k": (0, 1)}),
    "power": (lambda x, n=2: x**n, {"n": (0, 0.0, 1)}),
    "nan_to_num": (lambda x, **how: jnp.nan_to_num(jnp.log(x), **how), {"nan": (0.0, 1.0), "neginf": (0.0,)}),
    "leaky_relu": (nn.leaky_relu, {"negative_slope": (0, 0.0, 0.3)}),
    "elu": (nn.elu, {"alpha": (0.0, 2.0)}),
    "softmax": (nn.softmax, {"axis": (0, 1)}),
    "one_hot": (lambda x, **how: nn.one_hot(jnp.array([0, 2, 9]), 3, **how), {"axis": (0, -1)}),
    "attention": (
        lambda x, **how: nn.dot_product_attention(*[x[None, :, None] * k for k in (3, 1, 2)], **how),
        {"scale": (0.0, 0.5, None), "is_causal": (False, True)},
    ),
    "top_k": (lambda x, k=2: lax.top_k(x, k), {"k": (0, 1)}),
    "dynamic_slice": (lambda x, at=1: lax.dynamic_slice(x, (at, at), (1, 2)), {"at": (0, 1)}),
    "norm": (jnp.linalg.norm, {"ord": (1, 2), "axis": (0, 1)}),
}  # fmt: skip


def check(rng, name):
    """That a call with drawn arguments is jax.jit's."""
    function, known = CALLED[name]
    how = {k: v[rng.integers(len(v))] for k, v in known.items() if rng.random() < 0.8}
    x = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    print(name, how)
    want = jax.jit(lambda x: function(x, **how))(x)
    got = aicf.jax.jit(lambda x: function(x, **how))(x)
    for ours, theirs in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        np.testing.assert_allclose(
            np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-5, err_msg=f"{name} {how}"
        )


def test_drawn_calls_with_falsy_arguments():
    rng = rng_of("falsy arguments")
    for name in ["attention", *rng.choice(sorted(CALLED), CALLS - 1, replace=False)]:
        check(rng, name)


def test_falsy_options_of_jit():
    """Argument 0 is static or donated; no argument is, where the tuple is empty."""
    x = jnp.arange(3.0)
    assert float(aicf.jax.jit(lambda n, x: x[n], static_argnums=0)(0, x)) == 0.0
    for none in ((), None, []):
        assert float(aicf.jax.jit(lambda x: x.sum(), static_argnums=none, donate_argnums=none)(x)) == 3.0
    donated = jnp.arange(4.0) + 1
    aicf.jax.jit(lambda x: x * 2, donate_argnums=0)(donated)
    assert donated.is_deleted()
