"""Optional arguments that are 0, 0.0, False or empty are values, not absent ones: drawn calls of PyTorch, beside eager PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws.seeds import rng as rng_of  # noqa: E402
from draws.seeds import run_seed  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from aicf.frontends.torch import backend  # noqa: E402

CALLS = 4  # of each run


def _rows(rng, *shape):
    return torch.tensor(rng.normal(size=shape).astype(np.float32))


def _norm(x, **how):
    mean, var = torch.linspace(-1, 1, x.shape[1]), torch.linspace(0.5, 2, x.shape[1])
    y = F.batch_norm(x, mean, var, training=True, **how)
    return y, mean, var


def _labels(x):
    return torch.arange(x.shape[0]) % x.shape[1]


# PyTorch's own causal attention with scale=0 is NaN on the host: it multiplies -inf by 0
# the function of x (4, 6), and what each optional argument may be: what is absent, what is falsy, and something else
CALLED = {
    "attention": (
        lambda x, **how: F.scaled_dot_product_attention(x[None, None] * 3, x[None, None], x[None, None] + 1, **how),
        {"scale": (0.0, None, 0.25), "is_causal": (False,), "dropout_p": (0.0,)},
    ),
    "sum": (lambda x, **how: torch.sum(x, **how), {"dim": ((), 0, None), "keepdim": (False, True)}),
    "mean": (lambda x, **how: torch.mean(x, **how), {"dim": ((), 0, None), "keepdim": (False, True)}),
    "amax": (lambda x, **how: torch.amax(x, **how), {"dim": ((), 0), "keepdim": (False, True)}),
    "any": (lambda x, **how: torch.any(x > 1.5, **how), {"dim": ((), 0), "keepdim": (False, True)}),
    "all": (lambda x, **how: torch.all(x > -1.5, **how), {"dim": ((), 0), "keepdim": (False, True)}),
    "var": (lambda x, **how: torch.var(x, dim=1, **how), {"correction": (0, 1, 2), "keepdim": (False, True)}),
    "var of all": (lambda x, **how: torch.var(x, **how), {"correction": (0, 1), "dim": ((), None, 0)}),
    "std": (lambda x, **how: torch.std(x, dim=0, **how), {"correction": (0, 1)}),
    "prod": (lambda x, **how: torch.prod(x, **how), {"dim": (0, 1)}),
    "argmax": (lambda x, **how: torch.argmax(x, **how), {"dim": (0, None), "keepdim": (False, True)}),
    "vector_norm": (
        lambda x, **how: torch.linalg.vector_norm(x, **how), {"ord": (0, 0.0, 1, 2), "dim": ((), 0, None), "keepdim": (False, True)},
    ),
    "logsumexp": (lambda x, **how: torch.logsumexp(x, **how), {"dim": (0, (0,))}),
    "add": (lambda x, **how: torch.add(x, x + 1, **how), {"alpha": (0, 0.0, 2)}),
    "sub": (lambda x, **how: torch.sub(x, x + 1, **how), {"alpha": (0, 0.0, 2)}),
    "addmm": (lambda x, **how: torch.addmm(x[:, :4], x, x.T, **how), {"beta": (0, 0.0, 1, 2), "alpha": (0, 0.0, 1, 2)}),
    "addmm of a row": (lambda x, **how: torch.addmm(x[0, :4], x, x.T, **how), {"beta": (0, 1), "alpha": (0.0, 1)}),
    "clamp": (lambda x, **how: torch.clamp(x, **how), {"min": (0, 0.0, -1), "max": (0.0, 0, 1)}),
    "leaky_relu": (lambda x, **how: F.leaky_relu(x, **how), {"negative_slope": (0, 0.0, 0.3)}),
    "elu": (lambda x, **how: F.elu(x, **how), {"alpha": (0.0, 0, 2.0)}),
    "celu": (lambda x, **how: F.celu(x, **how), {"alpha": (0.5,)}),
    "hardtanh": (lambda x, **how: F.hardtanh(x, **how), {"min_val": (0, 0.0, -1), "max_val": (1.0, 2)}),
    "threshold": (lambda x, **how: F.threshold(x, **how), {"threshold": (0, 0.0, 1), "value": (0, 0.0, 3)}),
    "softplus": (lambda x, **how: F.softplus(x, **how), {"threshold": (0, 0.0, 20), "beta": (1, 2)}),
    "hardshrink": (lambda x, **how: F.hardshrink(x, **how), {"lambd": (0, 0.0, 0.5)}),
    "softshrink": (lambda x, **how: F.softshrink(x, **how), {"lambd": (0, 0.0, 0.5)}),
    "nan_to_num": (lambda x, **how: torch.nan_to_num(torch.log(x), **how), {"nan": (0, 0.0, 2.0), "neginf": (0, -1.0), "posinf": (0.0, 9.0)}),
    "pad": (lambda x, **how: F.pad(x, **how), {"pad": ((0, 0), (0, 1), (1, 0, 0, 2)), "value": (0, 0.0, 1.5)}),
    "flip": (lambda x, **how: torch.flip(x, **how), {"dims": ((), (0,))}),
    "roll": (lambda x, **how: torch.roll(x, **how), {"shifts": (0, 1), "dims": (0, ())}),
    "cumsum": (lambda x, **how: torch.cumsum(x, **how), {"dim": (0, 1)}),
    "sort": (lambda x, **how: torch.sort(x, **how)[0], {"dim": (0, 1), "descending": (False, True)}),
    "topk": (lambda x, **how: torch.topk(x, **how)[0], {"k": (0, 2), "dim": (0, 1), "largest": (False, True)}),
    "tril": (lambda x, **how: torch.tril(x, **how), {"diagonal": (0, 1)}),
    "where": (lambda x, **how: torch.where(x > 0, x, how.get("other", 1.0)), {"other": (0.0, 0, 2.0)}),
    "masked_fill": (lambda x, **how: x.masked_fill(x > 0, **how), {"value": (0, 0.0, False, 2.0)}),
    "scatter": (lambda x, **how: x.scatter(1, _labels(x)[:, None], **how), {"value": (0, 0.0, 2.0)}),
    "pow": (lambda x, **how: torch.pow(x, **how), {"exponent": (0, 0.0, 2)}),
    "addcmul": (lambda x, **how: torch.addcmul(x, x + 1, x + 2, **how), {"value": (0, 0.0, 3)}),
    "addcdiv": (lambda x, **how: torch.addcdiv(x, x + 1, x.abs() + 2, **how), {"value": (0, 0.0, 3)}),
    "lerp": (lambda x, **how: torch.lerp(x, x * 3, **how), {"weight": (0, 0.0, 0.5)}),
    "arange": (lambda x, **how: x[:, 0] + torch.arange(how.get("start", 1), how.get("start", 1) + 4), {"start": (0, 2)}),
    "dropout": (lambda x, **how: F.dropout(x, **how), {"p": (0, 0.0), "training": (False, True)}),
    "layer_norm": (lambda x, **how: F.layer_norm(x, (6,), **how), {"eps": (0, 0.0, 0.5)}),
    "rms_norm": (lambda x, **how: F.rms_norm(x, (6,), **how), {"eps": (0, 0.0, 0.5, None)}),
    "group_norm": (lambda x, **how: F.group_norm(x[None], 2, **how), {"eps": (0, 0.0, 0.5)}),
    "batch_norm": (_norm, {"momentum": (0, 0.0, 0.5), "eps": (0, 0.0, 0.5)}),
    "cross_entropy": (
        lambda x, **how: F.cross_entropy(x, _labels(x), **how), {"ignore_index": (0, 1), "label_smoothing": (0, 0.0, 0.1)},
    ),
    "nll_loss": (
        lambda x, **how: F.nll_loss(x, _labels(x), **how), {"ignore_index": (0, 1), "reduction": ("none", "sum")},
    ),
    "huber": (lambda x, **how: F.huber_loss(x, x * 2, **how), {"delta": (0.5,), "reduction": ("none", "sum")}),
    "smooth_l1": (lambda x, **how: F.smooth_l1_loss(x, x * 2, **how), {"beta": (0, 0.0, 0.5)}),
    "embedding": (
        lambda x, **how: F.embedding(torch.tensor([0, 1, 0]), x, **how), {"padding_idx": (0, 1)},
    ),
    "max_pool": (
        lambda x, **how: F.max_pool2d(x[None], 2, **how), {"stride": (1, 2), "padding": (0, 1), "ceil_mode": (False, True)},
    ),
    "avg_pool": (
        lambda x, **how: F.avg_pool2d(x[None], 2, **how), {"padding": (0, 1), "count_include_pad": (False, True), "divisor_override": (3, None)},
    ),
    "slice": (lambda x, **how: x[how.get("start") : how.get("stop")] + 1, {"start": (0, 1), "stop": (0, 2, None)}),
    "select": (lambda x, **how: x.select(**how) + 1, {"dim": (0, 1), "index": (0, 2)}),
    "as_strided": (lambda x, **how: x.as_strided((2, 2), (1, 2), **how) + 1, {"storage_offset": (0, 3)}),
    "expand of none": (lambda x, **how: (x[0, 0].view(()) * 2).expand(how.get("size", (2,))), {"size": ((), (3,))}),
    "permute": (lambda x, **how: x.permute(how.get("dims", (1, 0))) * 2, {"dims": ((0, 1),)}),
    "diagonal": (lambda x, **how: torch.diagonal(x, **how) + 1, {"offset": (0, 1)}),
    "repeat_interleave": (lambda x, **how: torch.repeat_interleave(x, 2, **how), {"dim": (0, 1, None)}),
    "histc": (lambda x, **how: torch.histc(x, 4, **how), {"min": (0, -1), "max": (0, 2)}),
}  # fmt: skip


def draw(rng, name):
    """Keyword arguments: each is absent, or drawn from what it may be."""
    drawn = {key: values[rng.integers(len(values))] for key, values in CALLED[name][1].items()}
    return {key: value for key, value in drawn.items() if rng.random() < 0.8}


def _flat(made):
    return list(made) if isinstance(made, (tuple, list)) else [made]


def _run(function, x, how):
    """(results and the gradient of x, or the exception)."""
    x = x.clone().requires_grad_()
    try:
        made = _flat(function(x, **how))
        into = [y for y in made if y.requires_grad]
        if into:
            sum(y.sum() for y in into).backward()
    except Exception as error:
        return error
    return [y.detach() for y in made] + ([x.grad] if into and x.grad is not None else [])


def check(name, how, x):
    """Whether aicf takes the call; what it computes is what eager PyTorch computes."""
    torch._dynamo.reset()
    want = _run(CALLED[name][0], x, how)
    got = _run(torch.compile(CALLED[name][0], backend=backend, options={"fallback": "error"}), x, how)
    if isinstance(want, Exception):
        assert isinstance(got, Exception), f"{name} {how}: eager PyTorch raises {want!r}"
        return False
    if isinstance(got, Exception):
        assert "fallback" in str(got) or "aicf" in str(got), f"{name} {how}: {got!r}"
        return False
    assert len(got) == len(want)
    for ours, theirs in zip(got, want):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda m: f"{name} {how}: {m}"
        )
    return True


def test_drawn_calls_with_falsy_arguments():
    rng = rng_of("test_falsy_arguments")
    names = ["attention", *rng.choice([n for n in CALLED if n != "attention"], CALLS - 1, replace=False)]
    taken = []
    for number, name in enumerate(names):
        how = {"scale": 0.0} if number == 0 else draw(rng, name)
        print(f"AICF_TEST_SEED={run_seed()}: call {number}, {name} {how}")
        taken.append(check(name, how, _rows(rng, 4, 6)))
    assert taken[0] and sum(taken) >= CALLS // 3
