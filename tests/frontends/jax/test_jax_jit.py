"""`aicf.jax.jit` beside `jax.jit`: trees, static arguments, keys, gradients, whole training steps, what is left to JAX."""

import warnings
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
from jax import nn  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402
from aicf.errors import FrontendError, NoKernelError  # noqa: E402

RNG = np.random.default_rng(0)


def normal(*shape, scale=1.0):
    return jnp.asarray(RNG.standard_normal(shape) * scale, jnp.float32)


def same(ours, theirs, exact=1e-5):
    assert jax.tree_util.tree_structure(ours) == jax.tree_util.tree_structure(theirs)
    for got, want in zip(jax.tree_util.tree_leaves(ours), jax.tree_util.tree_leaves(theirs)):
        assert isinstance(got, jax.Array) and (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(
            np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=exact, atol=exact
        )


class Pair(NamedTuple):
    left: object
    right: object


def test_trees_in_and_out():
    def f(pair, *rest, scale):
        return {"sum": pair.left + pair.right["x"], "none": None}, Pair(
            rest[0] * scale, (rest[1] > 0, jnp.zeros((0, 3)))
        )

    arguments = Pair(normal(3), {"x": normal(3)}), 2.0, np.arange(4) - 1
    same(aicf.jax.jit(f, fallback="error")(*arguments, scale=3), jax.jit(f)(*arguments, scale=3))


def test_static_arguments_by_number_and_by_name():
    def f(x, axis, keepdims=False):
        return x.sum(axis, keepdims=keepdims)

    x, g = normal(3, 4), aicf.jax.jit(f, static_argnums=1, static_argnames="keepdims", fallback="error")
    for arguments, named in (
        ((x, 0), {}),
        ((x, 1), {"keepdims": True}),
        ((x,), {"axis": 1}),
        ((x, 1, True), {}),
    ):
        same(g(*arguments, **named), f(*arguments, **named))
    assert "4 signatures" in repr(g)


def test_equal_static_arguments_of_other_types_are_other_programs():
    x = np.arange(3, dtype=np.int32)
    g = aicf.jax.jit(lambda x, n: x * n, static_argnums=1, fallback="error")
    assert [g(x, n).dtype for n in (1, 1.0, True)] == [jnp.int32, jnp.float32, jnp.int32]


def test_results_keep_weak_types():
    f, g = (
        jit(lambda x: (x * 2, jnp.broadcast_to(x, (2, 3))))
        for jit in (jax.jit, aicf.jax.jit(fallback="error"))
    )
    for x in (3.0, 3, np.float32(3), jnp.asarray(3.0), jnp.zeros((), jnp.float32)):
        same(g(x), f(x))
        assert [y.weak_type for y in g(x)] == [y.weak_type for y in f(x)]
    half = jnp.ones(2, jnp.bfloat16)
    assert (g(3.0)[0] * half).dtype == jnp.bfloat16 and (g(np.float32(3))[0] * half).dtype == jnp.float32


def test_signatures_are_compiled_once():
    traced = []

    @aicf.jax.jit(fallback="error")
    def f(x):
        traced.append(x.shape)
        return x * 2

    for size in (3, 4, 3, 4, 3):
        assert f(normal(size)).shape == (size,)
    assert traced == [(3,), (4,)]
    assert f(np.float64(1.5)).dtype == jnp.float32  # as JAX without x64
    assert f(3).dtype == jnp.int32


def test_results_share_memory_and_arguments_stay():
    f, x = aicf.jax.jit(lambda x: (x, x + 1, x), fallback="error"), normal(64)
    kept = np.array(x)
    a, b, c = f(x)
    assert len({y.unsafe_buffer_pointer() for y in (x, a, b, c)}) == 4
    before = np.array(b)
    f(x + 1)
    np.testing.assert_array_equal(np.array(b), before)
    np.testing.assert_array_equal(np.array(x), kept)


def test_donated_arguments_are_used_up():
    f, x = aicf.jax.jit(lambda s, x: s + x, donate_argnums=0, fallback="error"), normal(3)
    s = f(x + 1, x)
    with pytest.raises(RuntimeError, match="deleted"):
        f(s, x) + s
    assert not x.is_deleted()


def test_a_function_within_another_is_a_part_of_it():
    inner = aicf.jax.jit(jnp.tanh)
    x = normal(3)
    same(aicf.jax.jit(lambda x: inner(x) * 2, fallback="error")(x), jnp.tanh(x) * 2)
    same(aicf.jax.jit(aicf.jax.jit(jnp.tanh, fallback="error"), fallback="error")(x), jnp.tanh(x))
    with pytest.raises(FrontendError, match=r"next: put jax\.grad"):
        jax.grad(lambda x: inner(x).sum())(x)


def test_what_aicf_lacks_is_left_to_jax_and_told():
    report = aicf.jax.report()
    report.clear()
    f = aicf.jax.jit(lambda x: jnp.fft.fft(x).real)
    x = normal(4)
    with pytest.warns(UserWarning, match=r"leaves .*<lambda> to JAX(.|\n)*stablehlo\.fft"):
        same(f(x), jnp.fft.fft(x).real)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(x)
        f(normal(5))
    assert sum(report.left.values()) == 2 and any("stablehlo.fft" in reason for reason in report.reasons)
    assert "left to JAX" in str(report)
    with pytest.raises(FrontendError, match=r"stablehlo\.fft"):
        aicf.jax.jit(lambda x: jnp.fft.fft(x).real, fallback="error")(x)


def test_what_no_kernel_takes_is_left_to_jax_and_told():
    registry = aicf.KernelRegistry()  # of a device without kernels
    report, x = aicf.jax.report(), normal(4)
    report.clear()
    f = aicf.jax.jit(lambda x: x + 1, registry=registry)
    with pytest.warns(UserWarning, match="leaves .*<lambda> to JAX: no kernel takes add"):
        same(f(x), x + 1)
    assert sum(report.left.values()) == 1
    (reason,) = report.reasons  # not one for each kernel that refused
    assert reason.startswith("no kernel takes add")
    with pytest.raises(NoKernelError, match="no kernel takes add"):
        aicf.jax.jit(lambda x: x + 1, registry=registry, fallback="error")(x)


def test_explained_for_a_device_that_is_absent():
    f = aicf.jax.jit(lambda x, w: nn.relu(x @ w))
    spec = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    assert "cuda.gemm" in str(f.explain(spec, spec, device="h200"))
    assert "cpu.gemm" in str(f.explain(normal(3, 4), normal(4, 5)))
    assert "stablehlo.dot_general" in f.lower(spec, spec).as_text()


def test_bad_arguments_of_jit():
    for wrong in ({"fallback": "eager"}, {"fun": 3}):
        with pytest.raises(FrontendError):
            aicf.jax.jit(**{"fun": jnp.tanh, **wrong})
    with pytest.raises(FrontendError, match="static argument 1 of"):
        aicf.jax.jit(lambda x, n: x, static_argnums=1)(normal(3), [1])


# --- training ---------------------------------------------------------------------------------------------------------


def perceptron(params, x):
    for layer in params[:-1]:
        x = nn.gelu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def layers(*sizes):
    return [{"w": normal(a, b, scale=a**-0.5), "b": jnp.zeros(b)} for a, b in pairwise(sizes)]


def transformer(params, tokens):
    size, heads = params["places"].shape[1], 2
    x = params["tokens"][tokens] + params["places"]
    for block in params["blocks"]:
        h = _norm(x, block["n1"])
        q, k, v = jnp.split((h @ block["qkv"]).reshape(*h.shape[:2], heads, -1), 3, -1)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(size // heads)
        scores = jnp.where(jnp.tril(jnp.ones((h.shape[1], h.shape[1]), bool)), scores, -1e9)
        x = x + jnp.einsum("bhts,bshd->bthd", nn.softmax(scores), v).reshape(x.shape) @ block["out"]
        x = x + nn.gelu(_norm(x, block["n2"]) @ block["up"]) @ block["down"]
    return x @ params["tokens"].T


def _norm(x, weight):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * weight


def small_transformer(size=16, words=11, length=6):
    def block():
        square = (
            ("qkv", 3 * size, size),
            ("out", size, size),
            ("up", 2 * size, size),
            ("down", size, 2 * size),
        )
        return {"n1": jnp.ones(size), "n2": jnp.ones(size)} | {
            n: normal(i, o, scale=0.2) for n, o, i in square
        }

    return {
        "tokens": normal(words, size, scale=0.3),
        "places": normal(length, size, scale=0.3),
        "blocks": [block(), block()],
    }


# Functions that create an optimizer, a model with its parameters, inputs and labels.
CASES = {
    "sgd": lambda: (
        optax.sgd(0.1, momentum=0.9),
        perceptron,
        layers(20, 32, 10),
        normal(64, 20),
        RNG.integers(0, 10, 64),
    ),
    "adamw": lambda: (
        optax.adamw(1e-2),
        perceptron,
        layers(20, 32, 10),
        normal(64, 20),
        RNG.integers(0, 10, 64),
    ),
    "transformer with adam": lambda: (
        optax.adam(3e-3),
        transformer,
        small_transformer(),
        RNG.integers(0, 11, (3, 6)),
        RNG.integers(0, 11, (3, 6)),
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_fifty_training_steps(name):
    optimizer, model, params, x, y = CASES[name]()

    def step(params, state, x, y):
        def loss(p):
            return optax.softmax_cross_entropy_with_integer_labels(model(p, x), y).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    ours, theirs = aicf.jax.jit(step, fallback="error"), jax.jit(step)
    a = b = (params, optimizer.init(params))
    for _ in range(50):
        *a, got = ours(*a, x, y)
        *b, want = theirs(*b, x, y)
        np.testing.assert_allclose(float(got), float(want), rtol=1e-4)
    assert float(got) < 2
    same(a, b, exact=1e-3)


def test_why_it_compiled_again():
    @aicf.jax.jit
    def double(x):
        return x + x

    for array in (jnp.ones((2, 3)), jnp.ones((2, 3)), jnp.ones((4, 3)), jnp.ones((4, 3), jnp.bfloat16)):
        double(array)
    assert [one.why for one in double.compilations] == [
        "the first", "array 0 f32[2,3] → f32[4,3]", "array 0 f32[4,3] → bf16[4,3]",
    ]  # fmt: skip
    assert str(double.compilations).startswith(
        "aicf.jax.jit(test_why_it_compiled_again.<locals>.double): 3 compilations"
    )
