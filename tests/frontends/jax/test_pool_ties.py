"""Gradients of maxima of windows with many equal elements are JAX's: drawn windows, beside jax.grad."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from draws.seeds import rng  # noqa: E402
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ties_of_reduce_window(dtype):
    draw = rng("JAX's windows", dtype)
    for axes, most in ((int(draw.integers(1, 4)), 4), (1, 2)):  # the last: each element is a window
        shape = (2, *draw.integers(3, 6, axes).tolist(), 2)
        window, strides = ((1, *draw.integers(1, most, axes).tolist(), 1) for _ in range(2))
        pads = [
            (0, 0),
            *((int(p), int(p)) for p in [draw.integers(0, k // 2 + 1) for k in window[1:-1]]),
            (0, 0),
        ]

        def pooled(x, how=(window, strides, pads)):
            return lax.reduce_window(x, -jnp.inf, lax.max, *how)

        x = jnp.asarray(draw.integers(-1, 2, shape), dtype)
        weights = jnp.asarray(draw.integers(1, 5, pooled(x).shape), dtype)

        def slope(x, w=weights, pooled=pooled):
            return jax.grad(lambda x: (pooled(x) * w).sum())(x)

        case = f"{dtype} {shape} {window} {strides} {pads}"
        got = aicf.jax.jit(slope, fallback="error")(x)
        np.testing.assert_array_equal(*(np.asarray(y, np.float32) for y in (got, slope(x))), err_msg=case)
