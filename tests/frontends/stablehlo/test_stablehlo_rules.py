"""Functions of JAX, lowered to StableHLO and run by aicf, beside XLA: each family of rules, odd and empty shapes, NaN and infinities."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import lax, nn  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from aicf.frontends.stablehlo import run_module  # noqa: E402

RNG = np.random.default_rng(0)
NAN, INF = np.nan, np.inf


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


X, Y, V = normal(4, 5), normal(4, 5), normal(5)
CUBE, PLACES = normal(4, 5, 6), np.array([2, 0, 1, 3], np.int32)
ODD = np.array([[NAN, INF, -INF, 0.0, -0.0], [1.5, -2.5, 3e38, -1e-30, 7.0]], np.float32)

FUNCTIONS = {
    "arithmetic": (lambda x, y: (x + y * 2 - x / 3, -x, abs(x), jnp.exp(x), jnp.sqrt(abs(y)), jnp.tanh(x), nn.sigmoid(x)), X, Y),
    "chosen": (lambda x, y: (jnp.maximum(x, y), jnp.where(x > y, x, 0), jnp.clip(x, -0.5, 0.5), lax.rsqrt(abs(x))), X, Y),
    "odd numbers": (lambda x: (jnp.sign(x), jnp.isfinite(x), x > 0, x == x, jnp.minimum(x, 0), x.max(0), x.min(1), jnp.argmax(x, 1)), ODD),
    "logic": (lambda x, y: ((x > 0) & (y > 0), (x > 0) | (y < 0), (x > 0) ^ (y > 0), ~(x > 0), jnp.logical_and(x, y)), X, Y),
    "powers": (lambda x: (x**2, x**3, x**-1, abs(x) ** 0.5, jnp.power(abs(x), 1.7)), X),
    "integers": (lambda i: (i + 1, i * i, jnp.maximum(i, 2), -i, i.sum(), i.max(), i.min()), PLACES),
    "types": (lambda x: (x.astype(jnp.float16) * 2, x.astype(jnp.bfloat16).sum(1), x.astype(jnp.int32), (x > 0).astype(float)), X),
    "constants": (lambda x: (x + np.arange(20.0, dtype="f").reshape(4, 5), x * jnp.asarray([1, 2, 3, 4, 5], jnp.bfloat16)), X),
    "repeated": (lambda x, v: (x + v, x - x.max(1, keepdims=True), x * x.mean(0), jnp.broadcast_to(v, (3, 4, 5))), X, V),
    "reduced": (lambda x: (x.sum(), x.max(1), x.mean((0, 1)), x.var(1), (x > 0).any(1), (x > 0).all(0), x.max(initial=9.0)), X),
    "placed": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(x)), X),
    "rows": (lambda x: (nn.softmax(x), nn.log_softmax(x, 0), nn.logsumexp(x, 1), nn.gelu(x), nn.silu(x)), X),
    "shapes": (lambda x: (x.T, x.reshape(2, 10), x[::-1], x[1:3, ::2], jnp.stack([x, x]), jnp.roll(x, 1, 0), jnp.tile(x, (2, 1))), X),
    "pads": (lambda x: (jnp.pad(x, ((1, 2), (0, 1)), constant_values=3), lax.pad(x, x[0, 0], ((-1, 1, 2), (0, -2, 0)))), X),
    "counted": (lambda x: (x + jnp.arange(5.0), jnp.tril(x), jnp.eye(4), nn.one_hot(jnp.arange(3), 5)), X),
    "products": (lambda x, y: (x @ y.T, x.T @ y, x[0] @ y[0], jnp.outer(x[0], y[1]), x @ y[0], jnp.tensordot(x, y)), X, Y),
    "einsum": (
        lambda a, b: (jnp.einsum("bthd,bshd->bhts", a, b), jnp.einsum("bthd,bthd->hb", a, a), jnp.einsum("bthd,bshe->dhe", a, b)),
        normal(2, 5, 3, 4), normal(2, 7, 3, 4),
    ),
    "products of others": (lambda i, x: (i @ i, jnp.dot(x.astype(jnp.bfloat16), x.T.astype(jnp.bfloat16), preferred_element_type="f")),
                           np.arange(9, dtype=np.int32).reshape(3, 3), X),
    "taken": (lambda x, i: (x[i], jnp.take(x, i, 1), x[i, i], x[-1], jnp.take_along_axis(x, i[:, None], 1), x[i[0]]), X, PLACES),
    "taken beyond": (lambda x: (jnp.take(x, jnp.array([7, -1, -9]), 0), x.at[jnp.array([9, 1])].get(mode="clip")), X),
    "windows": (
        lambda x, i: (x[:, i], x[i, 1:3], x[i[:, None], i[None]], jax.vmap(lambda r, j: lax.dynamic_slice(r, (j, 0), (2, 3)))(x, i)),
        CUBE, PLACES,
    ),
    "scattered": (lambda x, i: (x.at[i].add(1.0), x.at[i, i].add(2.0), x.at[:, 2].add(x[:, 0])), X, PLACES),
    "scattered beyond": (lambda x: (x.at[jnp.array([0, 0, 9])].add(1.0), x.at[jnp.array([-1, 4])].add(2.0)), X),
    "set": (lambda x, i: (x.at[1].set(9.0), x.at[1:3].set(0.0), x.at[2, 3].set(5.0), x.at[i].set(1.0, unique_indices=True)), X, PLACES),
    "scattered in batches": (lambda x, i: jax.vmap(lambda r, j: r.at[j].add(1.0))(x, i), CUBE, PLACES),
    "dynamic": (
        lambda x, k: (lax.dynamic_slice(x, (k, 1), (2, 3)), lax.dynamic_update_slice(x, x[:2, :2], (k, k)), x.at[k].set(1.0)), X, np.int32(3),
    ),
    "an embedding's gradient": (jax.grad(lambda t, i: (t[i] ** 2).sum()), normal(7, 3), np.array([[1, 2], [2, 6]], np.int32)),
    "a norm's gradient": (
        jax.grad(lambda x, g: ((x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * g).sum() ** 2, (0, 1)), X, V,
    ),
    "functions": (lambda x: (jnp.floor(x), jnp.round(x), jnp.sin(x), jnp.expm1(x), jnp.log1p(abs(x)), nn.gelu(x, approximate=False), nn.elu(x)), X),
    "bits": (lambda i: (i & 1, i | 2, i ^ 3, ~i, i << 1, (i - 2) >> 1, (i - 2) // 3, (i - 2) % 3, lax.rem(i - 2, 3)), PLACES),
    "loops": (
        lambda x: (lax.fori_loop(0, 3, lambda i, c: c * 2 + i, x), lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(5), x, reverse=True)), X,
    ),
    "a recurrence's gradient": (
        jax.grad(lambda w, x: lax.scan(lambda c, r: (jnp.tanh(c @ w + r), c), jnp.zeros(5), x)[1].sum()), normal(5, 5), X,
    ),
    "branches": (
        lambda x, i: (lax.switch(i, [lambda: x, lambda: -x, lambda: x * 2]), lax.cond(x.sum() > 0, lambda: x[0], lambda: x[1])), X, np.int32(9),
    ),
    "random numbers": (
        lambda k: (jax.random.normal(k, (7,)), jax.random.bernoulli(k, 0.3, (9,)), jax.random.split(k), jax.random.randint(k, (5,), 0, 10)),
        np.array([1, 7], np.uint32),
    ),
    "convolutions": (
        lambda x, w: (
            lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 1)), rhs_dilation=(1, 2)),
            lax.conv_general_dilated(x, w.transpose(2, 3, 1, 0), (1, 1), "SAME", dimension_numbers=("NCHW", "HWIO", "NHWC")),
            lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")),
        ), normal(2, 2, 7, 6), normal(2, 2, 3, 3),
    ),
    "a convolution's gradients": (
        jax.grad(lambda x, w: (lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 1))) ** 2).sum(), (0, 1)), normal(2, 2, 7, 6), normal(3, 2, 3, 3),
    ),
    "pools": (
        lambda x: (
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 1), (1, 2, 1, 1), "VALID"),
        ), normal(2, 7, 6, 3),
    ),
    "a pool's gradient": (
        jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME") ** 2).sum()), np.round(normal(2, 7, 6, 3)),
    ),
    "in order": (
        lambda x, i: (
            jnp.sort(x), jnp.sort(x, 0, descending=True), jnp.argsort(x), jnp.argsort(x, 0, descending=True), jnp.sort(i), jnp.argsort(-i),
            lax.sort((x, x * 2), dimension=0), lax.top_k(x, 2), lax.top_k(i, 3), jnp.argsort(x[:, :0]),
        ), ODD.round(), np.array([3, 1, 3, 0], np.int32),
    ),
    "up to each one": (
        lambda x, i: (
            jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1, reverse=True), lax.cummin(x, 0), lax.cumsum(x, 0, reverse=True), jnp.cumsum(i),
            jnp.cumsum(x[:, :1], 1), jnp.cumsum(x > 0),
        ), X, PLACES,
    ),
    "set again": (
        lambda x, i: (x.at[i].set(x[:3]), x.at[i, i].set(jnp.arange(3.0)), x.at[:, i].set(9.0), x.at[i + 2].set(x[1:]),
            x.at[i].mul(x[:3]), x.at[i + 2].max(x[:3]), x.at[:, i].min(-1.0), x.at[i, i].multiply(3.0)), X, np.array([1, -1, 1], np.int32),
    ),
    "nothing": (lambda x: (x.sum(1), x + 1, x.max(1, initial=0), x @ x.T, x.T @ x), normal(3, 0)),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_jax(name):
    function, *arguments = FUNCTIONS[name]
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    made = run_module(lowered, arguments)
    expected = jax.tree_util.tree_leaves(lowered.compile()(*arguments))
    assert len(made) == len(expected)
    for got, want in zip(made, map(np.asarray, expected)):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        exact = 1e-2 if want.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=exact, atol=exact)


@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
def test_floats_beyond_integers_saturate(source):
    x = np.array(
        [1e10, -1e10, NAN, INF, -INF, 2.5, -2.5, -0.5, 300, -3, -129, 2.0**31, -(2.0**31)], np.float32
    )
    with np.errstate(over="ignore"):
        x = x.astype(jnp.dtype(source))
    lowered = jax.jit(
        lambda x: [x.astype(t) for t in ("int32", "uint32", "int16", "uint16", "int8", "uint8")]
    ).lower(x)
    for got, want in zip(run_module(lowered, [x]), lowered.compile()(x)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint32])
def test_arithmetic_shifts_copy_the_highest_bit(dtype):
    top = np.iinfo(dtype).max
    a, b = np.array([top - 6, top - 6, 7, 0, top, 0, 5], dtype), np.array([0, 1, 1, 7, 40, 9, top], dtype)
    lowered = jax.jit(lax.shift_right_arithmetic).lower(a, b)
    np.testing.assert_array_equal(run_module(lowered, [a, b])[0], lowered.compile()(a, b))
