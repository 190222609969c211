"""Each ATen op with a rule, by PyTorch's own samples of it: what aicf computes is what PyTorch does."""

import importlib

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

pytest.importorskip("expecttest", reason="PyTorch's samples need it")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from aicf.frontends.torch import backend, graphs  # noqa: E402
from aicf.frontends.torch.emit import RULE_FAILED  # noqa: E402
from aicf.frontends.torch.rules import rules  # noqa: E402

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
OPS = sorted(
    {op.name: op for op in op_db if op.name in WITH_RULE - LEFT_OUT and not op.variant_test_name}.values(),
    key=lambda op: op.name,
)


@pytest.mark.sample(25)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=lambda d: str(d)[6:]
)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_samples_of_pytorchs(op, dtype, monkeypatch):
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("PyTorch has none")
    monkeypatch.setattr(partition, "WORTH", 1)
    for n, sample in enumerate(op.sample_inputs("cpu", dtype)):
        if n == 6:
            break
        torch._dynamo.reset()

        def call(x, args, kwargs):
            return op.op(x, *args, **kwargs)

        want = op.op(sample.input, *sample.args, **sample.kwargs)
        got = torch.compile(call, backend=backend, dynamic=False)(sample.input, sample.args, sample.kwargs)
        tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}
        for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(want)):
            torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
    failed = [why for graph in graphs() for _, why in graph.left if why.startswith(RULE_FAILED)]
    assert not failed
