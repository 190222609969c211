"""Losses named as PyTorch's: beside formulas written per element in float64, their slopes beside differences of these, and beside PyTorch where it is installed."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError

from .mlp import host

RNG = np.random.default_rng(11)
W3, W7 = RNG.uniform(0.2, 2, 3), RNG.uniform(0.2, 2, 7)


class Given(nn.Layer):
    """Params of these arrays, as the model's results."""

    def __init__(self, arrays) -> None:
        self.arrays = arrays

    def emit(self, ctx, x):
        made = [
            ctx.param(f"p{n}", a.shape, lambda shape, rng, a=a: a) * 1.0 + x.sum() * 0.0
            for n, a in enumerate(self.arrays)
        ]
        return made[0] if len(made) == 1 else tuple(made)


def computed(loss, arrays, targets):
    """(the loss, the gradients of the arrays) of a compiled program."""
    model = nn.Model({"x": aicf.TensorSpec((1,))}, Given([a.astype(np.float32) for a in arrays]))
    program = aicf.compile(model, "grad", device="cpu", loss=loss)
    got = host(program({"x": np.zeros(1, np.float32), **targets}))
    return float(got["loss"]), [got[f"grad.p{n}"] for n in range(len(arrays))]


def each(formula):
    return lambda x, t: np.vectorize(formula, otypes=[np.float64])(x, t)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rows(x, y):
    """(row of an output of (N, classes, ...), its label), one by one."""
    x, y = np.moveaxis(x, 1, -1), np.asarray(y)
    return list(zip(x.reshape(-1, x.shape[-1]), y.reshape(-1)))


def cross_entropy(
    x, y, weight=None, ignore=-100, smoothing=0.0, reduction="mean", log=lambda row: np.log(softmax(row))
):
    total = shares = 0.0
    for row, label in rows(x, y):
        if label == ignore:
            continue
        w, logs = np.ones(len(row)) if weight is None else weight, log(row)
        total -= (1 - smoothing) * w[label] * logs[label] + smoothing / len(row) * (w * logs).sum()
        shares += w[label]
    return total / (shares if reduction == "mean" else 1)


def multi_margin(x, y, p=1, margin=1.0, weight=None):
    made = []
    for row, label in zip(x, y):
        others = [max(0, margin - row[label] + v) ** p for c, v in enumerate(row) if c != label]
        made.append(sum(others) / len(row) * (1 if weight is None else weight[label]))
    return np.mean(made)


def multi_label_margin(x, y):
    made = []
    for row, labels in zip(x, y):
        labels = list(itertools.takewhile(lambda n: n >= 0, labels))
        made.append(
            sum(max(0, 1 - row[n] + row[c]) for n in labels for c in range(len(row)) if c not in labels)
            / len(row)
        )
    return np.mean(made)


def ctc(x, y, times, sizes, blank=0):
    """The sum over all paths, one by one; the mean of -log of it by labels."""
    made = []
    for n, (time, size) in enumerate(zip(times, sizes)):
        total = 0.0
        for path in itertools.product(range(x.shape[2]), repeat=int(time)):
            read = [c for c, _ in itertools.groupby(path) if c != blank]
            if read == list(y[n][:size]):
                total += math.exp(sum(x[t, n, c] for t, c in enumerate(path)))
        made.append(-math.log(total) / max(size, 1))
    return np.mean(made)


def cosine(a, b, eps=1e-12):
    return (a * b).sum(-1) / np.sqrt(((a * a).sum(-1) + eps) * ((b * b).sum(-1) + eps))


def triplet(a, p, n, margin=1.0, norm=2.0, eps=1e-6, swap=False):
    def far(u, v):
        return (np.abs(u - v + eps) ** norm).sum(-1) ** (1 / norm)

    other = np.minimum(far(a, n), far(p, n)) if swap else far(a, n)
    return np.maximum(far(a, p) - other + margin, 0).mean()


def gaussian(mean, var, t, full):
    return (0.5 * (np.log(var) + (mean - t) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0)).mean()


def poisson(x, t, log_input=True, full=False, eps=1e-8):
    made = math.exp(x) - t * x if log_input else x - t * math.log(x + eps)
    return made + (t * math.log(t) - t + 0.5 * math.log(2 * math.pi * t) if full and t > 1 else 0)


X, T = RNG.normal(size=(4, 7)) * 1.5, RNG.normal(size=(4, 7))
SIGNS, P = np.sign(T), RNG.uniform(0.05, 0.95, (4, 7))
LOGITS, IMAGE = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 3, 4))
LABELS, FEW = RNG.integers(0, 3, 5), np.array([0, 2, -100, 1, 2])
PIXELS = RNG.integers(0, 3, (2, 4))
MANY = np.array(
    [[3, 0, -1, 1, 2, 4, 6], [-1, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0], [1, 4, 1, -1, -1, -1, -1]]
)
A, B, C = (RNG.normal(size=(6, 5)) for _ in range(3))
NEAR = np.array([1.0, -1, 1, -1, -1, 1])
PATHS = np.log(softmax(RNG.normal(size=(4, 3, 3))))
READ, TIMES, SIZES = np.array([[1, 1], [2, 0], [1, 2]]), np.array([4, 3, 4]), np.array([2, 1, 2])


def mean(made):
    return lambda *given: made(*given).mean()


# name: the loss, what it reads, what it is fed, the oracle, PyTorch's module or None
CASES = {
    "l1": (nn.L1Loss(), [X], {"y": T}, mean(each(lambda x, t: abs(x - t))), "L1Loss"),
    "mse": (nn.MSELoss(), [X], {"y": T}, mean(each(lambda x, t: (x - t) ** 2)), "MSELoss"),
    "mse, sum": (nn.MSELoss(reduction="sum"), [X], {"y": T}, lambda x, t: ((x - t) ** 2).sum(), ("MSELoss", {"reduction": "sum"})),
    "huber": (
        nn.HuberLoss(delta=0.7), [X], {"y": T},
        mean(each(lambda x, t: 0.5 * (x - t) ** 2 if abs(x - t) <= 0.7 else 0.7 * (abs(x - t) - 0.35))), ("HuberLoss", {"delta": 0.7}),
    ),
    "smooth l1": (
        nn.SmoothL1Loss(beta=0.5), [X], {"y": T},
        mean(each(lambda x, t: (x - t) ** 2 if abs(x - t) < 0.5 else abs(x - t) - 0.25)), ("SmoothL1Loss", {"beta": 0.5}),
    ),
    "smooth l1 of beta 0": (nn.SmoothL1Loss(beta=0.0), [X], {"y": T}, lambda x, t: abs(x - t).mean(), ("SmoothL1Loss", {"beta": 0.0})),
    "log cosh": (nn.LogCoshLoss(), [X], {"y": T}, mean(each(lambda x, t: math.log(math.cosh(x - t)))), None),
    "poisson": (nn.PoissonNLLLoss(full=True), [X], {"y": 4 * P}, mean(each(lambda x, t: poisson(x, t, full=True))), ("PoissonNLLLoss", {"full": True})),
    "poisson of rates": (
        nn.PoissonNLLLoss(log_input=False), [P], {"y": 4 * P}, mean(each(lambda x, t: poisson(x, t, False))), ("PoissonNLLLoss", {"log_input": False}),
    ),
    "gaussian": (nn.GaussianNLLLoss(full=True), [X, P], {"y": T}, lambda m, v, t: gaussian(m, v, t, True), ("GaussianNLLLoss", {"full": True})),
    "gaussian, one variance a row": (nn.GaussianNLLLoss(), [X, P[:, :1]], {"y": T}, lambda m, v, t: gaussian(m, v, t, False), "GaussianNLLLoss"),
    "kl": (nn.KLDivLoss(), [X], {"y": P}, mean(each(lambda x, t: t * (math.log(t) - x))), "KLDivLoss"),
    "kl of zeros, batchmean": (
        nn.KLDivLoss(reduction="batchmean"), [X], {"y": np.where(P > 0.5, P, 0)},
        lambda x, t: sum(p * (math.log(p) - v) for v, p in zip(x.flat, t.flat) if p) / 4, ("KLDivLoss", {"reduction": "batchmean"}),
    ),
    "kl of logs": (nn.KLDivLoss(log_target=True), [X], {"y": T}, mean(each(lambda x, t: math.exp(t) * (t - x))), ("KLDivLoss", {"log_target": True})),
    "bce": (nn.BCELoss(), [P], {"y": P[::-1]}, mean(each(lambda x, t: -(t * math.log(x) + (1 - t) * math.log(1 - x)))), "BCELoss"),
    "bce, weighted": (
        nn.BCELoss(weight=W7), [P], {"y": P[::-1]},
        lambda x, t: (-(t * np.log(x) + (1 - t) * np.log(1 - x)) * W7).mean(), ("BCELoss", {"weight": W7}),
    ),
    "bce of logits": (
        nn.BCEWithLogitsLoss(), [3 * X], {"y": P}, mean(each(lambda x, t: math.log1p(math.exp(x)) - x * t)), "BCEWithLogitsLoss",
    ),
    "bce of logits, weighted": (
        nn.BCEWithLogitsLoss(weight=W7[::-1].tolist(), pos_weight=W7), [X], {"y": P},
        lambda x, t: ((W7 * t * np.log1p(np.exp(-x)) + (1 - t) * np.log1p(np.exp(x))) * W7[::-1]).mean(),
        ("BCEWithLogitsLoss", {"weight": W7[::-1].copy(), "pos_weight": W7}),
    ),
    "soft margin": (nn.SoftMarginLoss(), [X], {"y": SIGNS}, mean(each(lambda x, t: math.log1p(math.exp(-x * t)))), "SoftMarginLoss"),
    "hinge": (nn.HingeLoss(), [X], {"y": SIGNS}, mean(each(lambda x, t: max(0, 1 - x * t))), None),
    "hinge embedding": (
        nn.HingeEmbeddingLoss(margin=1.5), [X], {"y": SIGNS},
        mean(each(lambda x, t: x if t == 1 else max(0, 1.5 - x))), ("HingeEmbeddingLoss", {"margin": 1.5}),
    ),
    "cross entropy": (nn.CrossEntropyLoss(), [LOGITS], {"y": LABELS}, cross_entropy, "CrossEntropyLoss"),
    "cross entropy of images": (
        nn.CrossEntropyLoss(weight=W3, label_smoothing=0.2), [IMAGE], {"y": PIXELS},
        lambda x, y: cross_entropy(x, y, W3, smoothing=0.2), ("CrossEntropyLoss", {"weight": W3, "label_smoothing": 0.2}),
    ),
    "cross entropy, some left out": (
        nn.CrossEntropyLoss(weight=W3), [LOGITS], {"y": FEW}, lambda x, y: cross_entropy(x, y, W3), ("CrossEntropyLoss", {"weight": W3}),
    ),
    "cross entropy, smoothed, some left out": (
        nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=2), [LOGITS], {"y": LABELS},
        lambda x, y: cross_entropy(x, y, ignore=2, smoothing=0.1), ("CrossEntropyLoss", {"label_smoothing": 0.1, "ignore_index": 2}),
    ),
    "cross entropy, sum": (
        nn.CrossEntropyLoss(weight=W3, reduction="sum"), [LOGITS], {"y": FEW},
        lambda x, y: cross_entropy(x, y, W3, reduction="sum"), ("CrossEntropyLoss", {"weight": W3, "reduction": "sum"}),
    ),
    "cross entropy of probabilities": (
        nn.CrossEntropyLoss(weight=W3, label_smoothing=0.1, dtype="f32"), [LOGITS], {"y": softmax(LOGITS[::-1])},
        lambda x, t: -((0.9 * t + 0.1 / 3) * W3 * np.log(softmax(x))).sum(-1).mean(),
        ("CrossEntropyLoss", {"weight": W3, "label_smoothing": 0.1}),
    ),
    "nll": (nn.NLLLoss(), [LOGITS], {"y": FEW}, lambda x, y: cross_entropy(x, y, log=lambda row: row), "NLLLoss"),
    "nll of images, weighted": (
        nn.NLLLoss(weight=W3), [IMAGE], {"y": PIXELS}, lambda x, y: cross_entropy(x, y, W3, log=lambda row: row), ("NLLLoss", {"weight": W3}),
    ),
    "multi margin": (nn.MultiMarginLoss(), [LOGITS], {"y": LABELS}, multi_margin, "MultiMarginLoss"),
    "multi margin, squared": (
        nn.MultiMarginLoss(p=2, margin=0.5, weight=W3), [LOGITS], {"y": LABELS},
        lambda x, y: multi_margin(x, y, 2, 0.5, W3), ("MultiMarginLoss", {"p": 2, "margin": 0.5, "weight": W3}),
    ),
    "multi label margin": (nn.MultiLabelMarginLoss(), [X], {"y": MANY}, multi_label_margin, "MultiLabelMarginLoss"),
    "multi label soft margin": (
        nn.MultiLabelSoftMarginLoss(weight=W7), [X], {"y": (T > 0).astype(float)},
        lambda x, t: ((np.log1p(np.exp(x)) - x * t) * W7).mean(), ("MultiLabelSoftMarginLoss", {"weight": W7}),
    ),
    "margin ranking": (
        nn.MarginRankingLoss(margin=0.3), [A, B], {"y": np.sign(C)},
        lambda a, b, t: np.maximum(0, 0.3 - t * (a - b)).mean(), ("MarginRankingLoss", {"margin": 0.3}),
    ),
    "cosine embedding": (
        nn.CosineEmbeddingLoss(margin=0.1), [A, B], {"y": NEAR},
        lambda a, b, t: np.where(t == 1, 1 - cosine(a, b), np.maximum(0, cosine(a, b) - 0.1)).mean(), ("CosineEmbeddingLoss", {"margin": 0.1}),
    ),
    "cosine similarity": (nn.CosineSimilarityLoss(), [A, B], {}, lambda a, b: (1 - cosine(a, b)).mean(), None),
    "triplet": (nn.TripletMarginLoss(), [A, B, C], {}, triplet, "TripletMarginLoss"),
    "triplet, swapped": (
        nn.TripletMarginLoss(margin=0.5, p=3.0, swap=True), [A, B, C], {},
        lambda a, p, n: triplet(a, p, n, 0.5, 3, swap=True), ("TripletMarginLoss", {"margin": 0.5, "p": 3.0, "swap": True}),
    ),
    "triplet of sums": (nn.TripletMarginLoss(p=1.0), [A, B, C], {}, lambda a, p, n: triplet(a, p, n, norm=1), ("TripletMarginLoss", {"p": 1.0})),
    "ctc": (
        nn.CTCLoss(length=2), [PATHS], {"y": READ, "input_lengths": TIMES, "target_lengths": SIZES}, ctc, "CTCLoss",
    ),
    "ctc, blank last": (
        nn.CTCLoss(length=2, blank=2), [PATHS], {"y": np.array([[1, 1], [0, 0], [1, 0]]), "input_lengths": TIMES, "target_lengths": SIZES},
        lambda x, y, t, s: ctc(x, y, t, s, blank=2), ("CTCLoss", {"blank": 2}),
    ),
}  # fmt: skip


def fed(targets):
    return {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in targets.items()}


@pytest.mark.sample(10)
@pytest.mark.spec("D13")
@pytest.mark.parametrize("case", CASES)
def test_values_and_slopes_are_those_of_the_formula(case):
    loss, arrays, targets, formula, _ = CASES[case]
    got, grads = computed(loss, arrays, fed(targets))
    assert got == pytest.approx(formula(*arrays, *targets.values()), rel=2e-5)
    for n, (array, grad) in enumerate(zip(arrays, grads)):
        for flat in RNG.permutation(array.size)[:9]:
            at, sides = np.unravel_index(flat, array.shape), []
            for step in (1e-6, -1e-6):
                moved = [a.copy() for a in arrays]
                moved[n][at] += step
                sides.append(formula(*moved, *targets.values()))
            assert grad[at] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-3, abs=2e-5), (n, at)


@pytest.mark.parametrize("case", [c for c in CASES if CASES[c][-1]])
def test_values_and_slopes_are_pytorch_s(case):
    torch = pytest.importorskip("torch")
    loss, arrays, targets, _, module = CASES[case]
    name, asked = module if isinstance(module, tuple) else (module, {})
    asked = {
        k: torch.tensor(np.array(v), dtype=torch.float64) if isinstance(v, np.ndarray) else v
        for k, v in asked.items()
    }
    given = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    beside = [
        torch.tensor(np.ascontiguousarray(a), dtype=torch.float64 if a.dtype.kind == "f" else torch.int64)
        for a in targets.values()
    ]
    order = [given[0], *beside, given[1]] if name == "GaussianNLLLoss" else [*given, *beside]
    want = getattr(torch.nn, name)(**asked)(*order)
    got, grads = computed(loss, arrays, fed(targets))
    assert got == pytest.approx(float(want), rel=2e-5)
    if name == "CTCLoss":
        return  # PyTorch's slope is that of what goes through a log_softmax before
    want.backward()
    for grad, x in zip(grads, given):
        np.testing.assert_allclose(grad, x.grad.numpy(), rtol=1e-3, atol=2e-5)


def test_ctc_behind_a_log_softmax_has_pytorch_s_slope():
    torch = pytest.importorskip("torch")
    x = RNG.normal(size=(12, 3, 5))
    y, times, sizes = RNG.integers(1, 5, (3, 4)), np.array([12, 9, 12]), np.array([4, 0, 3])

    class Scores(Given):
        def emit(self, ctx, x):
            return ctx.log_softmax(super().emit(ctx, x), axis=-1)

    model = nn.Model({"x": aicf.TensorSpec((1,))}, Scores([x.astype(np.float32)]))
    program = aicf.compile(model, "grad", device="cpu", loss=nn.CTCLoss(length=4, reduction="sum"))
    got = host(
        program({"x": np.zeros(1, np.float32), "y": y, "input_lengths": times, "target_lengths": sizes})
    )
    given = torch.tensor(x, requires_grad=True)
    want = torch.nn.CTCLoss(reduction="sum")(given.log_softmax(-1), *map(torch.tensor, (y, times, sizes)))
    want.backward()
    assert float(got["loss"]) == pytest.approx(float(want), rel=1e-5)
    np.testing.assert_allclose(got["grad.p0"], given.grad.numpy(), rtol=1e-3, atol=1e-5)


def test_a_sequence_that_is_too_short_for_its_labels_is_infinite_or_nothing():
    fed = {
        "y": np.array([[1, 1], [1, 2], [2, 2]]),
        "input_lengths": np.array([2, 4, 1]),
        "target_lengths": np.array([2, 2, 2]),
    }
    got, _ = computed(nn.CTCLoss(length=2), [PATHS], fed)
    assert got == math.inf
    got, (grad,) = computed(nn.CTCLoss(length=2, zero_infinity=True, reduction="sum"), [PATHS], fed)
    want = ctc(PATHS[:, 1:2], fed["y"][1:2], [4], [2]) * 2
    assert got == pytest.approx(want, rel=1e-5) and np.all(grad[:, [0, 2]] == 0) and np.any(grad[:, 1] != 0)


@pytest.mark.parametrize("x, slope", [(0.0, -1e12), (1.0, 0.0)])
def test_binary_cross_entropy_of_a_sure_probability_is_finite(x, slope):
    got, (grad,) = computed(nn.BCELoss(), [np.array([x])], {"y": np.ones(1, np.float32)})
    assert got == (100 if x == 0 else 0) and grad[0] == pytest.approx(slope)
    far, (grad,) = computed(nn.BCEWithLogitsLoss(), [np.array([-500.0])], {"y": np.ones(1, np.float32)})
    assert far == 500 and grad[0] == -1


def test_a_loss_is_called_on_values_and_not_reduced():
    class Layer(nn.Layer):
        def emit(self, ctx, x, y):
            a, b = nn.MarginRankingLoss(reduction="none"), nn.TripletMarginLoss(reduction="none")
            return {
                "huber": nn.HuberLoss(reduction="none")(x, y),
                "ranked": a((x, y), y),
                "triplet": b(x, y, x),
                "sum": nn.L1Loss(reduction="sum")(x, y),
            }

    model = nn.Model({"x": aicf.TensorSpec((4, 7)), "y": aicf.TensorSpec((4, 7))}, Layer())
    x, y = X.astype(np.float32), T.astype(np.float32)
    got = host(aicf.compile(model, device="cpu")({"x": x, "y": y}))
    assert got["huber"].shape == (4, 7) and got["triplet"].shape == (4,)
    np.testing.assert_allclose(
        got["huber"],
        each(lambda a, b: 0.5 * (a - b) ** 2 if abs(a - b) <= 1 else abs(a - b) - 0.5)(X, T),
        rtol=1e-4,
        atol=1e-6,
    )
    np.testing.assert_allclose(got["ranked"], np.maximum(0, -T * (X - T)), rtol=1e-4, atol=1e-5)
    assert float(got["sum"]) == pytest.approx(np.abs(X - T).sum(), rel=1e-5)


def test_halves_are_computed_in_f32():
    class Narrow(nn.Layer):
        def emit(self, ctx, x):
            return x.astype("f16")

    model = nn.Model({"x": aicf.TensorSpec((512,))}, Narrow())
    program = aicf.compile(model, device="cpu", loss=nn.MSELoss(reduction="sum"))
    got = host(program({"x": np.full(512, 16, np.float32), "y": np.zeros(512, np.float16)}))
    assert got["loss"].dtype == np.float32 and float(got["loss"]) == 512 * 256


REFUSED = {
    "reduction": (lambda: nn.MSELoss(reduction="max"), r"MSELoss: reduction='max'(.|\n)*'mean' or 'sum' or 'none'"),
    "batchmean": (lambda: nn.MSELoss(reduction="batchmean"), r"reduction='batchmean'"),
    "delta": (lambda: nn.HuberLoss(delta=0.0), r"HuberLoss: delta=0\.0"),
    "beta": (lambda: nn.SmoothL1Loss(beta=-1.0), r"SmoothL1Loss: beta=-1\.0"),
    "weight": (lambda: nn.CrossEntropyLoss(weight=[[1.0]]), r"CrossEntropyLoss: weight has rank 2"),
    "weight that is none": (lambda: nn.BCELoss(weight="heavy"), r"BCELoss: weight is a str"),
    "weight of NaN": (lambda: nn.BCELoss(weight=[math.nan]), r"BCELoss: weight has a number that is not finite"),
    "p": (lambda: nn.MultiMarginLoss(p=3), r"MultiMarginLoss: p=3"),
    "smoothing": (lambda: nn.CrossEntropyLoss(label_smoothing=2.0), r"CrossEntropyLoss: label_smoothing=2\.0"),
    "dtype": (lambda: nn.CrossEntropyLoss(dtype="i8"), r"CrossEntropyLoss: targets of i8"),
    "none": (lambda: computed(nn.L1Loss(reduction="none"), [X], {"y": T}), r'reduction="none" gives compile no loss to minimise'),
    "one of two": (lambda: computed(nn.GaussianNLLLoss(), [X], {"y": T}), r"GaussianNLLLoss reads 2 results(.|\n)*the mean, the variance(.|\n)*one tensor"),
    "three of two": (lambda: computed(nn.MarginRankingLoss(), [A, B, C], {}), r"MarginRankingLoss reads 2 results(.|\n)*3 results"),
    "classes": (lambda: computed(nn.CrossEntropyLoss(weight=W7), [LOGITS], {"y": LABELS}), r"weight has 7 numbers(.|\n)*3, one for each class"),
    "length": (lambda: computed(nn.CTCLoss(), [PATHS], {}), r"CTCLoss: length=0(.|\n)*nn\.CTCLoss\(length=32\)"),
    "outside": (lambda: nn.L1Loss()(X, T), r"L1Loss was called without a Value"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_so(what):
    call, text = REFUSED[what]
    with pytest.raises(VerifyError, match=text):
        call()


def test_a_label_that_is_no_class_is_told():
    for loss in (nn.CrossEntropyLoss(weight=W3), nn.NLLLoss(), nn.MultiMarginLoss()):
        with pytest.raises(aicf.errors.LabelError, match=r"label 3 at row 1"):
            computed(loss, [LOGITS], {"y": np.array([0, 3, 1, 2, 2])})


def test_losses_with_arrays_are_compared_printed_and_pickled():
    a, b = nn.BCEWithLogitsLoss(pos_weight=[1.0, 2.0]), nn.BCEWithLogitsLoss(pos_weight=np.array([1.0, 2.0]))
    assert (
        a == b == pickle.loads(pickle.dumps(a)) and hash(a) == hash(b) and "pos_weight=[1.0, 2.0]" in repr(a)
    )
    assert a != nn.BCEWithLogitsLoss(pos_weight=[1.0, 3.0])
