"""`lax.scan`, `map`, `fori_loop` and counted `while_loop` beside XLA: values, gradients and whole training runs. Loops become scans."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402
from aicf.frontends.stablehlo.reading import read  # noqa: E402

from .test_jax_jit import normal, same  # noqa: E402


def scans_of(f, *arguments):
    """Of each scan of a function: how many values it carries, and how many stacked ones it has."""
    model = read(jax.jit(f).lower(*arguments))
    program = aicf.compile(model, device="cpu")
    ops = [op for step in program.plan.steps for op in step.region.ops if op.kind.name == "scan"]
    return [(op.attrs["carried"], op.attrs["stacked"]) for op in ops]


def check(f, *arguments, exact=1e-5):
    g = aicf.jax.jit(f, fallback="error")
    same(g(*arguments), jax.jit(f)(*arguments), exact)
    return g


STEPS = 40  # enough to be no loop that is unrolled


def rnn(w, x, reverse=False):
    def step(h, row):
        h = jnp.tanh(row + h @ w)
        return h, (h, h.sum())

    return lax.scan(step, jnp.zeros(x.shape[1:]), x, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    check(lambda w, x: rnn(w, x, reverse), normal(4, 4, scale=0.5), normal(STEPS, 3, 4))


def test_rows_are_stacked_and_only_what_is_carried_is_carried():
    assert scans_of(rnn, normal(4, 4), normal(STEPS, 3, 4)) == [(1, 1)]
    grad = jax.grad(lambda w, x: rnn(w, x)[0].sum(), 0)
    assert all(carried <= 3 for carried, _ in scans_of(grad, normal(4, 4), normal(STEPS, 3, 4)))
    assert scans_of(lambda x: lax.fori_loop(0, 3, lambda n, v: v + n, x), normal(3)) == []  # short: unrolled


@pytest.mark.sample(1)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_a_scan(reverse):
    def loss(w, x):
        h, (ys, sums) = rnn(w, x, reverse)
        return (h**2).sum() + (ys * jnp.cos(ys)).mean() + sums.sum() * 0.1

    check(jax.value_and_grad(loss, (0, 1)), normal(4, 4, scale=0.5), normal(STEPS, 3, 4))


def test_what_a_step_reads_of_the_counter():
    def f(x):
        def turn(n, carry):
            total, rows = carry
            return total + n * x[n], rows.at[n].set(x[n] * total)

        return lax.fori_loop(0, STEPS, turn, (jnp.zeros(3), jnp.zeros((STEPS, 3))))

    check(f, normal(STEPS, 3), exact=1e-4)  # rows of a total of 40 steps


def test_rows_of_a_part_and_backwards():
    def f(x):
        return lax.fori_loop(
            0, STEPS, lambda n, total: total * 0.5 + x[STEPS + 4 - n] * x[n + 3], jnp.zeros(3)
        )

    check(f, normal(STEPS + 9, 3))


def test_what_is_read_while_it_is_written():
    def f(x):
        def turn(n, rows):
            return rows.at[n].set(rows[jnp.maximum(n - 1, 0)] * 0.5 + x[n])

        return lax.fori_loop(0, STEPS, turn, jnp.zeros((STEPS, 3)))

    check(f, normal(STEPS, 3))


def test_a_row_that_data_choose():
    def f(x, at):
        return lax.scan(lambda total, n: (total + x[n], total), jnp.zeros(3), at)

    check(f, normal(9, 3), jnp.asarray(np.random.default_rng(0).integers(0, 9, STEPS)))


def test_map_and_nested_loops():
    def f(x, w):
        def inner(row):
            return lax.fori_loop(0, 7, lambda _, v: jnp.tanh(v @ w) + row, row)

        return lax.map(inner, x)

    check(f, normal(6, 4), normal(4, 4, scale=0.3))


def test_a_counted_while():
    def f(x):
        return lax.while_loop(
            lambda c: c[0] < 200, lambda c: (c[0] + 3, c[1] * 0.9 + c[0]), (jnp.int32(5), x)
        )

    check(f, normal(3))


def test_no_turn_and_one():
    for turns in (0, 1):
        check(lambda x, turns=turns: lax.fori_loop(0, turns, lambda n, v: v * 2 + n, x), normal(3))


def lstm(params, x):
    """(steps, batch, features) -> what the last step shows."""
    hidden = params["u"].shape[0]

    def step(state, row):
        h, c = state
        i, f, g, o = jnp.split(row @ params["w"] + h @ params["u"] + params["b"], 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[1], hidden))
    (h, _), _ = lax.scan(step, (zeros, zeros), x)
    return h @ params["head"]


def test_twenty_steps_of_an_lstm():
    def loss(params, x, y):
        return ((lstm(params, x) - y) ** 2).mean()

    def update(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return value, jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads)

    params = {
        "w": normal(3, 32, scale=0.4),
        "u": normal(8, 32, scale=0.3),
        "b": normal(32, scale=0.1),
        "head": normal(8, 2),
    }
    ours, theirs = params, params
    step, xla = aicf.jax.jit(update, fallback="error"), jax.jit(update)
    for _ in range(20):
        x, y = normal(24, 4, 3), normal(4, 2)
        (a, ours), (b, theirs) = step(ours, x, y), xla(theirs, x, y)
        same((a, ours), (b, theirs), 1e-5)


def test_data_decide_how_many_turns_there_are():
    def root(x):
        """Newton's way to a square root, until it moves no more."""

        def more(c):
            before, now, _ = c
            return (jnp.abs(before - now) > 1e-4 * now).any()

        return lax.while_loop(more, lambda c: (c[1], 0.5 * (c[1] + x / c[1]), c[2] + 1), (x * 0, x, 0))

    x = jnp.abs(normal(7)) * 50 + 1
    check(root, x)
    check(lambda x: jax.jvp(lambda v: root(v)[1], (x,), (x * 0.1,)), x)


def test_a_loop_of_data_within_one_that_is_counted():
    def f(x):
        def halved(row):
            return lax.while_loop(lambda v: v.sum() > 1, lambda v: v * 0.5 + x[0] * 0.0, row)

        def turn(n, rows):
            return rows.at[n].set(halved(x[n]) + n)

        return lax.fori_loop(0, STEPS, turn, x * 0)

    check(f, jnp.abs(normal(STEPS, 3)) * 9)


def test_a_scan_within_a_loop_of_data():
    def f(x):
        def turn(c):
            n, v = c
            return n + 1, lax.scan(lambda h, row: (jnp.tanh(h + row), row * h), v, x)[0] * 1.5

        return lax.while_loop(lambda c: (c[0] < 4) & (c[1].min() < 20), turn, (0, x[0]))

    check(f, normal(STEPS, 3))
