"""Optimizer steps over several updates, against plain Python formulas and, where it is there, PyTorch."""

import math

import numpy as np
import pytest
from draws.seeds import rng as rng_of

from aicf.ops.schema import schema_of

from .evaluate import evaluate
from .sampling import packed


def run(op, *operands, **attrs):
    """The reference; Python floats are 0-D operands of the arrays' type."""
    wide = next(
        (o.dtype for o in operands if isinstance(o, (np.ndarray, np.generic)) and o.dtype.kind == "f"),
        np.float32,
    )
    arrays = [np.asarray(o, wide) if type(o) is float else np.asarray(o) for o in operands]
    schema = schema_of(op)
    out = schema.call_reference(arrays, packed(schema, arrays, attrs))
    return out if len(out) > 1 else out[0]


ADAPTIVE = [  # op, states, numbers
    ("lion_step", 1, 4),
    ("rmsprop_step", 2, 5),
    ("rmsprop_centered_step", 3, 5),
    ("adagrad_step", 1, 4),
    ("amsgrad_step", 3, 7),
]


def gradients(steps, shape=(5,), seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), [rng.normal(size=shape) for _ in range(steps)]


def test_what_is_not_valid_stays_as_it_is():
    rng = np.random.default_rng(2)
    p, m, v = rng.normal(size=(3, 6)).astype(np.float32)
    g, rates = np.full(6, np.nan, np.float32), [np.float32(0.1)] * 7
    for valid in (np.bool_(False), np.array([False] * 6)):
        for got, want in zip(run("adam_step", p, g, m, v, *rates, valid), (p, m, v)):
            np.testing.assert_array_equal(got, want)
        for got, want in zip(run("sgd_step", p, g, v, *rates[:3], valid), (p, v)):
            np.testing.assert_array_equal(got, want)
        for op, kept, numbers in ADAPTIVE:
            for got, want in zip(run(op, p, g, *[v] * kept, *rates[:numbers], valid), (p, *[v] * kept)):
                np.testing.assert_array_equal(got, want)
    assert run("increment", np.int32(7), np.bool_(False)) == 7
    np.testing.assert_array_equal(run("rng_advance", np.array([5, 7]), np.bool_(False)), [5, 7])


def sgd(p, grads, lr, momentum, weight_decay, nesterov):
    v = np.zeros_like(p)
    for g in grads:
        p, v = run("sgd_step", p, g, v, lr, momentum, weight_decay, np.bool_(True), nesterov=nesterov)
    return p


def adam(p, grads, lr, beta1, beta2, eps, weight_decay, decoupled):
    m, v, step = np.zeros_like(p), np.zeros_like(p), np.int64(0)
    for g in grads:
        step = run("increment", step, np.bool_(True))
        c1, c2 = run("adam_correction", step, np.float64(beta1), np.float64(beta2))
        p, m, v = run(
            "adam_step",
            p,
            g,
            m,
            v,
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
            c1,
            c2,
            np.bool_(True),
            decoupled=decoupled,
        )
    return p


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum, weight_decay", [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_sgd_is_its_closed_form(momentum, weight_decay, nesterov):
    """Without decay, the velocity after t steps is the sum of momentum^(t-i) g_i; with it, one step at a time."""
    p, grads = gradients(4)
    want, velocity = list(p), [0.0] * len(p)
    for g in grads:
        for i in range(len(want)):
            decayed = g[i] + weight_decay * want[i]
            velocity[i] = momentum * velocity[i] + decayed
            want[i] -= 0.1 * (decayed + momentum * velocity[i] if nesterov else velocity[i])
    assert np.allclose(sgd(p, grads, 0.1, momentum, weight_decay, nesterov), want, rtol=1e-12)
    if not weight_decay and not nesterov:
        total = sum(sum(momentum ** (t - i) * grads[i] for i in range(t + 1)) for t in range(4))
        assert np.allclose(want, p - 0.1 * total, rtol=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_is_its_paper(decoupled):
    """Algorithm 1 of Kingma and Ba with bias-corrected moments, AdamW's algorithm 2, element by element."""
    p, grads = gradients(5)
    lr, beta1, beta2, eps, decay = 0.01, 0.9, 0.999, 1e-8, 0.1
    want, m, v = list(p), [0.0] * len(p), [0.0] * len(p)
    for t, g in enumerate(grads, 1):
        for i in range(len(want)):
            gi = g[i] if decoupled else g[i] + decay * want[i]
            m[i] = beta1 * m[i] + (1 - beta1) * gi
            v[i] = beta2 * v[i] + (1 - beta2) * gi**2
            step = lr * (m[i] / (1 - beta1**t)) / (math.sqrt(v[i] / (1 - beta2**t)) + eps)
            want[i] -= step + (lr * decay * want[i] if decoupled else 0)
    assert np.allclose(adam(p, grads, lr, beta1, beta2, eps, decay, decoupled), want, rtol=1e-12)


def test_adams_first_step_moves_by_lr():
    p, grads = gradients(1)
    moved = adam(p, grads, 0.01, 0.9, 0.999, 1e-12, 0.0, False)
    assert np.allclose(moved, p - 0.01 * np.sign(grads[0]), rtol=1e-4)


def scalar(op, *operands, **attrs):
    """The op's scalar function in f32: one value per result."""
    kinds = {bool: np.bool_, int: np.int64, float: np.float32}
    arrays = [np.asarray([o], kinds[type(o)]) for o in operands]
    return [values[0] for values in evaluate(schema_of(op), arrays, attrs, np.float32)]


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999])
@pytest.mark.parametrize("step", [1, 2, 10, 1000, 100_000, 10_000_000])
def test_adam_correction_keeps_f32s_precision(step, beta):
    """1 - beta^t formed directly would lose all digits as beta comes close to 1."""
    exact = -math.expm1(step * math.log(float(np.float32(beta))))
    for got in (
        *scalar("adam_correction", step, beta, beta),
        *run("adam_correction", np.int64(step), beta, beta),
    ):
        assert got == pytest.approx(exact, rel=1e-6)


def test_adam_correction_of_no_momentum():
    assert [float(c) for c in run("adam_correction", np.int32(1), 0.0, 0.0)] == [1, 1]
    assert scalar("adam_correction", 1, 0.0, 0.0) == [1, 1]


def both(op, *operands):
    """The results of the reference and of the scalar function, which have to tell of the same NaN."""
    given = [np.bool_(o) if isinstance(o, bool) else o for o in operands]
    for results in (run(op, *given), scalar(op, *operands)):
        yield [float(r if np.ndim(r) == 0 else r[0]) for r in results]


@pytest.mark.parametrize(
    "m, g, sign", [(1.0, -2.9, 1), (-1.0, 2.9, -1), (0.0, 0.0, 0), (1.0, -3.0, 0), (0.0, math.nan, math.nan)]
)
def test_lions_step_is_one_of_three(m, g, sign):
    """By the sign of (3 m + g) / 4, while m becomes (m + g) / 2."""
    for p2, m2 in both("lion_step", 3.0, g, m, 0.25, 0.75, 0.5, 0.5, True):
        assert p2 == pytest.approx(3 * (1 - 0.125) - 0.25 * sign, nan_ok=True)
        assert m2 == pytest.approx(0.5 * m + 0.5 * g, nan_ok=True)


@pytest.mark.parametrize("g, step", [(2.0, 2.0 / 0.5), (math.nan, math.nan)])
def test_a_variance_that_rounding_makes_negative_is_none(g, step):
    """The square of the average is over the average of squares: PyTorch's root is NaN. A gradient's own NaN stays."""
    for p2, v2, a2, b2 in both(
        "rmsprop_centered_step", 1.0, g, 3.9, 2.0, 0.0, 0.125, 0.5, 0.5, 0.0, 0.0, True
    ):
        assert [p2, b2] == pytest.approx([1 - 0.125 * step, step], nan_ok=True)
        assert [v2, a2] == pytest.approx([(3.9 + g * g) / 2, (2 + g) / 2], nan_ok=True)


@pytest.mark.parametrize(
    "largest, g, want",
    [(9.0, 2.0, 9.0), (1.0, 2.0, 2.5), (9.0, math.nan, math.nan), (math.nan, 2.0, math.nan)],
)
def test_amsgrad_keeps_the_largest_square_and_every_nan(largest, g, want):
    for p2, _, v2, x2 in both(
        "amsgrad_step", 1.0, g, 0.0, 1.0, largest, 0.5, 0.5, 0.5, 0.0, 0.0, 1.0, 1.0, True
    ):
        assert x2 == pytest.approx(want, nan_ok=True)
        assert v2 == pytest.approx((1 + g * g) / 2, nan_ok=True)
        assert p2 == pytest.approx(1 - 0.5 * (0.5 * g) / math.sqrt(want), nan_ok=True)


@pytest.mark.parametrize(
    "p2, u2, want", [(4.0, 16.0, 0.5), (0.0, 16.0, 1), (4.0, 0.0, 1), (0.0, 0.0, 1), (4.0, math.inf, 0)]
)
def test_lambs_trust_is_a_ratio_of_norms_or_one(p2, u2, want):
    assert float(run("lamb_trust", p2, u2)) == want
    assert scalar("lamb_trust", p2, u2) == [want]


@pytest.mark.parametrize("step, decay, want", [(1, 0.5, 1), (2, 0.5, 1.5), (11, 0.25, 3.5), (5, 0.0, 1)])
def test_adagrads_rate_slows_from_the_second_step(step, decay, want):
    assert float(run("adagrad_slowing", np.int64(step), decay)) == want
    assert scalar("adagrad_slowing", step, decay) == [want]


@pytest.mark.parametrize(
    "norm2, max_norm, want",
    [
        (4.0, 1.0, 1 / (2 + 1e-6)),
        (0.25, 1.0, 1),
        (0.0, 1.0, 1),
        (math.inf, 1.0, 0),
        (math.nan, 1.0, math.nan),
        (1.0, 0.0, 0),
    ],
)
def test_clip_scale(norm2, max_norm, want):
    for got in (run("clip_scale", norm2, max_norm), *scalar("clip_scale", norm2, max_norm)):
        assert float(got) == pytest.approx(want, rel=1e-6, nan_ok=True)


def schedule(op, steps, base=0.5, **attrs):
    return [float(run(f"schedule_{op}", np.int64(s), base, **attrs)) for s in steps]


@pytest.mark.spec("C13")
def test_schedules_by_hand():
    assert schedule("step", [0, 1, 2, 3, 6, 60], every=3, gamma=0.1) == pytest.approx(
        [0.5, 0.5, 0.5, 0.05, 0.005, 0.5e-20], rel=1e-6
    )
    line = {"warmup": 4, "total": 12, "floor": 0.1}
    assert schedule("linear", [0, 1, 4, 8, 12, 99], **line) == pytest.approx([0, 0.125, 0.5, 0.3, 0.1, 0.1])
    assert schedule("cosine", [0, 1, 4, 8, 12, 99], **line) == pytest.approx([0, 0.125, 0.5, 0.3, 0.1, 0.1])
    assert schedule("cosine", [6], **line)[0] == pytest.approx(0.1 + 0.4 * (1 + math.cos(math.pi / 4)) / 2)
    assert schedule("linear", [0, 5, 10], total=10) == pytest.approx([0.5, 0.25, 0])
    assert schedule("cosine", [0, 5, 10], total=10) == pytest.approx([0.5, 0.25, 0], abs=1e-7)


@pytest.mark.spec("C13")
@pytest.mark.parametrize("op", ["linear", "cosine"])
def test_schedules_have_all_digits_up_to_their_end(op):
    """Drawn steps, most of them the last ones, where 1 minus what is done has few digits."""
    draw = rng_of("ends of schedules", op)
    for _ in range(30):
        total = int(draw.integers(8, 100_000))
        remaining, base = (
            int(draw.choice([1, 2, 3, int(draw.integers(1, total))])),
            float(draw.uniform(0.01, 1)),
        )
        part = remaining / total if op == "linear" else math.sin(math.pi / 2 * remaining / total) ** 2
        (got,) = scalar(f"schedule_{op}", total - remaining, base, warmup=0, total=total, floor=0.0)
        assert float(got) == pytest.approx(float(np.float32(base)) * part, rel=1e-6), (total, remaining)


@pytest.mark.parametrize("op", ["sgd_step", "adam_step", "increment", *[op for op, *_ in ADAPTIVE]])
def test_steps_are_written_in_place(op):
    schema = schema_of(op)
    assert [how for _, how in schema.alias.values()] == ["must"] * len(schema.results)
    for result, (operand, _) in schema.alias.items():
        assert schema.results[result] in (schema.operands[operand].name + "2", "y")


# --- PyTorch ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def train(torch, optimizer, p, grads, **options):
    weight = torch.nn.Parameter(torch.tensor(p))
    made = getattr(torch.optim, optimizer)([weight], **options)
    for g in grads:
        weight.grad = torch.tensor(g)
        made.step()
    return weight.detach().numpy()


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_pytorchs(torch, nesterov):
    p, grads = gradients(6)
    want = train(torch, "SGD", p, grads, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    assert np.allclose(sgd(p, grads, 0.1, 0.9, 0.01, nesterov), want, rtol=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_is_pytorchs(torch, decoupled):
    p, grads = gradients(6)
    options = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    want = train(torch, "AdamW" if decoupled else "Adam", p, grads, **options)
    assert np.allclose(adam(p, grads, 0.01, 0.9, 0.999, 1e-8, 0.1, decoupled), want, rtol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_is_pytorchs(torch, centered, momentum):
    p, grads = gradients(6)
    want = train(
        torch, "RMSprop", p, grads, lr=0.01, alpha=0.9, weight_decay=0.1, momentum=momentum, centered=centered
    )
    op = "rmsprop_centered_step" if centered else "rmsprop_step"
    state = [np.zeros_like(p)] * (2 + centered)
    for g in grads:
        p, *state = run(op, p, g, *state, 0.01, 0.9, 1e-8, 0.1, momentum, np.bool_(True))
    assert np.allclose(p, want, rtol=1e-12)


def test_adagrad_is_pytorchs(torch):
    p, grads = gradients(6)
    options = {"lr": 0.1, "lr_decay": 0.5, "weight_decay": 0.1, "initial_accumulator_value": 0.25}
    want, state = train(torch, "Adagrad", p, grads, **options), np.full_like(p, 0.25)
    for step, g in enumerate(grads, 1):
        slowing = float(run("adagrad_slowing", np.int64(step), np.float64(0.5)))
        p, state = run("adagrad_step", p, g, state, 0.1, 1e-10, 0.1, slowing, np.bool_(True))
    assert np.allclose(p, want, rtol=1e-12)


@pytest.mark.parametrize("decoupled", [False, True])
def test_amsgrad_is_pytorchs(torch, decoupled):
    p, grads = gradients(6)
    options = {"lr": 0.01, "betas": (0.9, 0.6), "weight_decay": 0.1, "amsgrad": True}
    want, state = train(torch, "AdamW" if decoupled else "Adam", p, grads, **options), [np.zeros_like(p)] * 3
    for step, g in enumerate(grads, 1):
        c1, c2 = (1 - beta**step for beta in (0.9, 0.6))
        p, *state = run(
            "amsgrad_step",
            p,
            g,
            *state,
            0.01,
            0.9,
            0.6,
            1e-8,
            0.1,
            c1,
            c2,
            np.bool_(True),
            decoupled=decoupled,
        )
    assert np.allclose(p, want, rtol=1e-12)


def test_clip_scale_is_pytorchs(torch):
    for scale in (0.01, 10.0):
        g = (np.random.default_rng(0).normal(size=20) * scale).astype(np.float32)
        weight = torch.nn.Parameter(torch.zeros(20))
        weight.grad = torch.tensor(g)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        got = g * run("clip_scale", np.sum(np.square(g)), 1.0)
        assert np.allclose(got, weight.grad.numpy(), rtol=1e-6)


def test_step_schedule_is_pytorchs(torch):
    weight = torch.nn.Parameter(torch.zeros(1))
    made = torch.optim.SGD([weight], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(made, step_size=3, gamma=0.5)
    for step in range(10):
        assert schedule("step", [step], every=3, gamma=0.5)[0] == pytest.approx(scheduler.get_last_lr()[0])
        made.step()
        scheduler.step()
