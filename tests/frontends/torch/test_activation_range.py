"""Activations that are spelt out, over the whole range of their type, infinities and NaN among them: as eager PyTorch computes them."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws.seeds import rng  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aicf  # noqa: E402
from aicf.frontends.torch import backend  # noqa: E402
from aicf.frontends.torch.recognise import activations  # noqa: E402

ROOT, WIDE = math.sqrt(2 / math.pi), 0.044715
GELUS = {
    "x/2 (1 + erf)": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "half of x (1 + erf)": lambda x: 0.5 * (x * (1 + torch.erf(x * 0.7071067811865475))),
    "erfc": lambda x: 0.5 * x * torch.erfc(-x / math.sqrt(2)),
}
TANH = {
    "pow": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + WIDE * torch.pow(x, 3)))),
    "products": lambda x: 0.5 * x * (1 + torch.tanh(x * ROOT * (1 + WIDE * x * x))),
    "sigmoid": lambda x: x * torch.sigmoid(2 * ROOT * (x + WIDE * x**3)),
}
SILU = {
    "sigmoid": lambda x: x * torch.sigmoid(x),
    "quotient": lambda x: x / (1 + torch.exp(-x)),
    "tanh": lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x)),
}
SPELT = {"gelu": GELUS, "gelu, tanh form": TANH, "silu": SILU}


def all_numbers(draw, dtype):
    """Each number of a half, or drawn words of f32 with its ends."""
    if dtype is not torch.float32:
        words = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
        return words.view(dtype)
    words = torch.tensor(draw.integers(-(2**31), 2**31, 2**14).astype(np.int32)).view(dtype)
    most = torch.finfo(dtype).max
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, most, -most, most / 2, -most / 2, 0.0, 1.0] * 9)
    return torch.cat([words, torch.linspace(-20, 20, 4001), ends])


def check(got, want, exact, x, case):
    """Infinities and NaN are where the spelt form has them, but for numbers where that overflows on the way; numbers are right."""
    number = torch.isfinite(x)
    same = (got == want) | (got.isnan() & want.isnan())
    assert bool(same[~number].all()), (
        f"{case}: at {x[~number & ~same][:4].tolist()} {got[~number & ~same][:4].tolist()}"
    )
    kept = number & torch.isfinite(want)
    rtol = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}[x.dtype]
    torch.testing.assert_close(
        got[kept].double(), exact[kept], rtol=rtol, atol=rtol, msg=lambda m: f"{case}: {m}"
    )
    assert not bool(got[number & ~want.isnan()].isnan().any()), f"{case}: NaN where the spelt form has none"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SPELT)
def test_the_whole_range(name):
    draw = rng("activations", name)
    spelling = str(draw.choice(sorted(SPELT[name])))
    f = SPELT[name][spelling]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = all_numbers(draw, dtype)
        for more in (lambda x: f(x), lambda x: f(x) + 1):  # left to PyTorch, and taken
            torch._dynamo.reset()
            want, got = more(x), torch.compile(more, backend=backend)(x)
            check(got, want, more(x.double()), x, f"{name}, {spelling} {dtype}")


def test_a_kernel_that_is_nan_at_an_infinity_is_not_taken(monkeypatch):
    """As oneDNN's gelu on some processors."""

    def gelu(x, **how):
        y = F.gelu(x, **how)
        return torch.where(x == torch.inf, torch.nan, y) if x.dtype is not torch.float64 else y

    options = activations.KNOWN["gelu"][1]
    monkeypatch.setitem(activations.KNOWN, "gelu", (gelu, options))
    x = torch.tensor([torch.inf, 1.0, -1.0] * 8)
    f = GELUS["x/2 (1 + erf)"]
    got = torch.compile(f, backend=backend)(x)
    assert not any(graph.recognised for graph in aicf.torch.graphs())
    torch.testing.assert_close(got, f(x), rtol=1e-5, atol=1e-6)
