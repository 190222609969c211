"""Each ATen op with a rule, by PyTorch's own samples of it: what aicf computes is what PyTorch does."""

import importlib
import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

pytest.importorskip("expecttest", reason="PyTorch's samples need it")

from draws.seeds import rng  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.testing._internal.opinfo import core as opinfo  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from aicf.frontends.torch import backend, graphs  # noqa: E402
from aicf.frontends.torch.emit import RULE_FAILED  # noqa: E402
from aicf.frontends.torch.rules import rules  # noqa: E402
from examples import EVERYTHING  # noqa: E402

partition = importlib.import_module("aicf.frontends.torch.partition")

WITH_RULE = {name.split(".")[1] for name in rules()}
LEFT_OUT = {
    "empty",
    "new_empty",
    "empty_like",
    "empty_permuted",
    "clone",
    "sort",
    "argsort",
    "topk",
}  # random memory; ties in any order
FUNCTIONS = {
    f"nn.functional.{name}"
    for name in [
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "max_pool2d",
        "avg_pool2d",
        "adaptive_avg_pool2d",
        "group_norm",
        "layer_norm",
        "rms_norm",
        "batch_norm",
        "embedding",
        "linear",
        "gelu",
        "silu",
        "elu",
        "leaky_relu",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "mish",
        "softplus",
        "logsigmoid",
        "cross_entropy",
        "nll_loss",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "kl_div",
        "pad",
        "scaled_dot_product_attention",
    ]
}
NAMED = (WITH_RULE - LEFT_OUT) | FUNCTIONS
WITH_VARIANTS = {"max", "min"}  # whose overloads PyTorch tests as variants


def title(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPS = sorted(
    {
        title(op): op
        for op in op_db
        if op.name in NAMED and (not op.variant_test_name or op.name in WITH_VARIANTS)
    }.values(),
    key=title,
)
HOSTILE = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-40,
    -1e-45,
    3e38,
    -3e38,
    88.8,
    -104.0,
    float("inf"),
    float("-inf"),
    float("nan"),
]


def take_all(monkeypatch):
    """Whatever has a rule and a kernel, be it worth it or not."""
    monkeypatch.setattr(partition, "WORTH", 1)
    monkeypatch.setattr(partition, "SLOWER", {})


def drawn(samples, first, words):
    """Half of the first samples; all of those with AICF_TEST_ALL=1."""
    some = list(itertools.islice(samples, first))
    order = rng("samples", *words).permutation(len(some))
    return some if EVERYTHING else [some[i] for i in order[: first // 2]]


def same(got, want, **tolerance):
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want)):
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)


def halves_apart(want):
    """How far bf16 may be: PyTorch rounds some sums term by term, whose error goes by the largest, not by the result."""
    found = [
        t.abs().nan_to_num(0, 0, 0).max().item()
        for t in pytree.tree_leaves(want)
        if torch.is_tensor(t) and t.numel() and t.is_floating_point()
    ]
    return {"rtol": 2e-2, "atol": 1e-2 * max(1.0, *found, 0.0)}


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=lambda d: str(d)[6:]
)
@pytest.mark.parametrize("op", OPS, ids=title)
def test_samples_of_pytorchs(op, dtype, monkeypatch):
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("PyTorch has none")
    take_all(monkeypatch)
    for sample in drawn(op.sample_inputs("cpu", dtype), 6, (title(op), str(dtype))):
        torch._dynamo.reset()

        def call(x, args, kwargs):
            return op.op(x, *args, **kwargs)

        want = op.op(sample.input, *sample.args, **sample.kwargs)
        got = torch.compile(call, backend=backend, dynamic=False)(sample.input, sample.args, sample.kwargs)
        same(got, want, **(halves_apart(want) if dtype is torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}))
    failed = [why for graph in graphs() for _, why in graph.left if why.startswith(RULE_FAILED)]
    assert not failed


@pytest.mark.sample(5)
@pytest.mark.parametrize("op", [op for op in OPS if op.supports_autograd], ids=title)
def test_gradients_of_pytorchs_samples(op, monkeypatch):
    take_all(monkeypatch)
    for sample in drawn(
        op.sample_inputs("cpu", torch.float32, requires_grad=True), 4, (title(op), "gradients")
    ):
        leaves = [
            x
            for x in pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
            if torch.is_tensor(x) and x.requires_grad
        ]

        def call(x, args, kwargs):
            return op.op(x, *args, **kwargs)

        def gradients(f, sample=sample, leaves=leaves):
            made = pytree.tree_leaves(f(sample.input, sample.args, sample.kwargs))
            read = [y for y in made if torch.is_tensor(y) and y.requires_grad and y.is_floating_point()]
            weights = [torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape) for y in read]
            if not read or not any(y.numel() for y in read):
                return []
            return torch.autograd.grad(read, leaves, weights, allow_unused=True)

        torch._dynamo.reset()
        want = gradients(call)
        got = gradients(torch.compile(call, backend=backend, dynamic=False))
        for a, b in zip(got, want):
            same(torch.zeros(()) if a is None else a, torch.zeros_like(a if a is not None else torch.zeros(())) if b is None else b,
                 rtol=2e-4, atol=2e-4)  # fmt: skip
    failed = [why for graph in graphs() for _, why in graph.left if why.startswith(RULE_FAILED)]
    assert not failed


# PyTorch's vectors of remainders are NaN where the quotient is beyond all numbers, its single elements right.
OWN_WAYS = {"fill", "fmod", "remainder"}
ELEMENTWISE = [
    op
    for op in OPS
    if isinstance(op, (opinfo.UnaryUfuncInfo, opinfo.BinaryUfuncInfo)) and op.name not in OWN_WAYS
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("op", ELEMENTWISE, ids=title)
def test_hostile_values(op, monkeypatch):
    """Infinities, NaN, signed zeros, numbers beyond normal ones, each beside each."""
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("PyTorch has none of floats")
    take_all(monkeypatch)
    x = torch.tensor(HOSTILE)
    args = (
        (x,)
        if isinstance(op, opinfo.UnaryUfuncInfo)
        else (x[:, None].expand(14, 14).clone(), x.expand(14, 14).clone())
    )
    want = op.op(*args)
    got = torch.compile(lambda *args: op.op(*args), backend=backend, dynamic=False)(*args)
    same(got, want, rtol=2e-5, atol=1e-37)


def test_extremes_of_equal_and_missing_numbers(request, monkeypatch):
    """The index is that of the first of equal elements, or of the first NaN, as in eager PyTorch."""
    take_all(monkeypatch)
    draw = rng(request.node.nodeid)
    axis, keepdim = int(draw.integers(3)), bool(draw.integers(2))
    x = torch.from_numpy(
        draw.choice(
            [0.0, -0.0, 1.0, -2.0, float("inf"), float("-inf"), float("nan")],
            (3, 4, 5),
            p=[0.2] * 4 + [0.08, 0.08, 0.04],
        )
    )
    x = x.float().requires_grad_()

    def f(x):
        high, at_high = x.max(axis, keepdim)
        low, at_low = x.min(axis, keepdim)
        return high * 2, at_high, low, at_low

    call = torch.compile(f, backend=backend, dynamic=False)
    got, want = call(x), f(x)
    same(got, want, rtol=0, atol=0)
    gradients = [torch.autograd.grad(y[0].nansum() + 3 * y[2].nansum(), x)[0] for y in (got, want)]
    same(*gradients, rtol=0, atol=0)
    assert not [op for g in graphs() for op, _ in g.left if op.startswith(("aten.max", "aten.min"))]
