"""Each ATen op that has a rule: called with arguments of its own, in a part that reads its results, beside eager PyTorch."""

import operator

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx import Graph, GraphModule, Node  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from aicf.frontends.torch.partition import cut  # noqa: E402
from aicf.frontends.torch.report import GraphReport  # noqa: E402
from aicf.frontends.torch.rules import rules  # noqa: E402

from .op_samples import SAMPLES  # noqa: E402

# Rules that give the reason why the op is PyTorch's.
REFUSED = {"_conj", "_neg_view", "view.dtype"}
# PyTorch's kernels for GPUs: on a CPU they have a schema alone. Their rules share what test_gpu.py and the samples above run.
ON_GPUS = {
    f"_scaled_dot_product_{name}_attention{backward}"
    for name in ("flash", "cudnn", "efficient")
    for backward in ("", "_backward")
}
ANY_MEMORY = {"empty.memory_format", "empty_like", "empty_permuted", "new_empty", "new_empty_strided"}
CASES = [(name, n) for name, made in SAMPLES.items() for n in range(len(made))]


def overload(name):
    """The op of PyTorch's, or of another library that is named before it."""
    parts = name.split(".")
    library = parts.pop(0) if parts[0] in ("aicf", "prims", "transformers") else "aten"
    if library == "prims":
        pytest.importorskip("torch._inductor.inductor_prims")  # which registers them
    packet, kind = (*parts, "default")[:2]
    return getattr(getattr(getattr(torch.ops, library), packet), kind)


def reader(y):
    """The op that reads a result, so that a view is no idle one, with what it takes beside it."""
    aten = torch.ops.aten
    return (aten.logical_not.default,) if y.dtype is torch.bool else (aten.mul.Tensor, 2)


def graph_of(op, args, kwargs):
    """The graph of the op and of what reads its results, with their types; and the tensors that it is called with."""
    graph, mode, tensors = Graph(), FakeTensorMode(), []

    def given(arg):
        if not isinstance(arg, torch.Tensor):
            return arg
        node = graph.placeholder(f"x{len(tensors)}")
        node.meta["val"] = mode.from_tensor(arg, static_shapes=True)
        tensors.append(arg)
        return node

    def called(target, *args, **kwargs):
        node = graph.call_function(target, args, kwargs)
        fake = pytree.tree_map(lambda n: n.meta["val"] if isinstance(n, Node) else n, (args, kwargs))
        with mode:
            node.meta["val"] = target(*fake[0], **fake[1])
        return node

    args, kwargs = pytree.tree_map(given, (args, kwargs))
    node = called(op, *args, **kwargs)
    several = isinstance(node.meta["val"], (list, tuple))
    results = [called(operator.getitem, node, n) for n in range(len(node.meta["val"]))] if several else [node]
    readers = [
        called(target, item, *more)
        for item in results
        if isinstance(item.meta["val"], torch.Tensor)
        for target, *more in [reader(item.meta["val"])]
    ]
    graph.output(tuple(readers))
    return GraphModule(torch.nn.Module(), graph), tensors


def test_each_rule_has_a_sample():
    names = {name.removeprefix("aten.").removesuffix(".default") for name in rules()}
    assert names == set(SAMPLES) | REFUSED | ON_GPUS


@pytest.mark.sample(30)
@pytest.mark.parametrize("name, n", CASES, ids=[f"{name}-{n}" for name, n in CASES])
def test_what_a_rule_computes(name, n):
    if name.startswith("transformers."):
        pytest.importorskip("transformers.integrations.moe", reason="transformers has no such op")
    args, kwargs = SAMPLES[name][n]()
    op = overload(name)
    graph, tensors = graph_of(op, args, kwargs)
    made = pytree.tree_leaves(op(*pytree.tree_map(copied, args), **kwargs))
    want = [target(y, *more) for y in made if torch.is_tensor(y) for target, *more in [reader(y)]]
    report = GraphReport("a rule", "inference")
    call = cut(graph, report, all_of_it=True)
    assert not report.left and report.parts == 1, str(report)
    (part,) = report.modules
    assert op in {node.target for node in part.graph_module.graph.nodes}
    got = call(*[copied(t) for t in tensors])
    assert len(got) == len(want)
    for a, b in zip(got, want):
        if name in ANY_MEMORY:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            continue
        rounding = {"rtol": 2e-2, "atol": 1e-2} if a.dtype is torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}
        torch.testing.assert_close(a, b, equal_nan=True, **rounding)


def copied(x):
    return x.clone(memory_format=torch.preserve_format) if isinstance(x, torch.Tensor) else x
