"""Masks of keys alone reach attention as such, through what PyTorch makes of them for its kernels on a GPU; fake tensors stand for one."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx import Graph, GraphModule  # noqa: E402

from aicf.device.spec import preset  # noqa: E402
from aicf.frontends.torch.emit import meta_of  # noqa: E402
from aicf.frontends.torch.part import PartModel, _registry  # noqa: E402
from aicf.graph.compile import compile_graph  # noqa: E402
from aicf.graph.emit.trace import Recipe  # noqa: E402
from aicf.registry.select import Selector  # noqa: E402

aten = torch.ops.aten
B, H, T, D = 4, 12, 96, 64
SCORES = [B, H, T, T]


class Calls:
    """A graph of calls on fake tensors of a GPU, each with what it makes."""

    def __init__(self):
        self.graph, self.mode = Graph(), FakeTensorMode()

    def given(self, *shape, dtype=torch.bfloat16):
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype, device="cuda:0")
        return node

    def __call__(self, op, *args, **kwargs):
        node = self.graph.call_function(op, args, kwargs)
        given = torch.fx.node.map_aggregate(
            (args, kwargs), lambda a: meta_of(a) if isinstance(a, torch.fx.Node) else a
        )
        with self.mode:
            node.meta["val"] = op(*given[0], **given[1])
        return node

    def part(self, whole, n):
        import operator

        node = self.graph.call_function(operator.getitem, (whole, n))
        node.meta["val"] = meta_of(whole)[n]
        return node

    def regions(self, *results):
        """Of a GPU that is not here: attention's kernel, and the shapes of its operands; those of all others."""
        self.graph.output(results)
        model = PartModel(GraphModule(torch.nn.Module(), self.graph), meta_of)
        selector = Selector(_registry(), preset("h200"), None, frozenset(), False)
        plan = compile_graph(Recipe(model, "infer"), {}, selector).plan
        steps = [(s.kernel_id, [t.shape for t in s.region.operands]) for s in plan.steps if s.kernel_id]
        ((kernel, operands),) = [step for step in steps if ".attention" in step[0]]
        return (
            kernel,
            operands,
            [shape for kernel, shapes in steps if ".attention" not in kernel for shape in shapes],
        )


def biases(calls):
    """As PyTorch makes them of a bool: `expand`ed for its memory-efficient kernel, as it is for cuDNN's."""
    seen = calls.given(B, 1, 1, T, dtype=torch.bool)
    hidden = calls(aten.full.default, [], float("-inf"), dtype=torch.bfloat16, device=torch.device("cuda:0"))
    shown = calls(aten.full.default, [], 0.0, dtype=torch.bfloat16, device=torch.device("cuda:0"))
    return calls(aten.where.self, seen, shown, hidden)


FORWARD = {
    "efficient": aten._scaled_dot_product_efficient_attention.default,
    "cudnn": aten._scaled_dot_product_cudnn_attention.default,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("name", FORWARD)
def test_a_mask_of_keys_is_one_forward(name, expanded):
    calls = Calls()
    q, k, v = (calls.given(B, H, T, D) for _ in range(3))
    bias = biases(calls)
    if expanded:
        bias = calls(aten.expand.default, bias, SCORES)
    out = calls.part(calls(FORWARD[name], q, k, v, bias, False), 0)
    kernel, operands, others = calls.regions(out)
    assert kernel == "cuda.attention_wgmma.v1" and operands[3] == (B, 1, 1, T)
    assert all(shape[-2:] != (T, T) for shape in others)


@pytest.mark.parametrize("kept", ["bias", "its expansion"])
def test_a_mask_of_keys_is_one_backward(kept):
    """What is kept for the backward pass may have been expanded, without memory of its own."""
    calls = Calls()
    dout, q, k, v, out = (calls.given(B, H, T, D) for _ in range(5))
    lse = calls.given(B, H, T, dtype=torch.float32)
    number = calls.given(dtype=torch.int64)
    bias = calls.given(B, 1, 1, T)
    if kept == "its expansion":
        with calls.mode:
            bias.meta["val"] = meta_of(bias).expand(SCORES)
    else:
        bias = calls(aten.expand.default, bias, SCORES)
    grads = calls(
        aten._scaled_dot_product_efficient_attention_backward.default, dout, q, k, v, bias, out, lse, number, number, 0.0,
        [True, True, True, False],
    )  # fmt: skip
    kernel, operands, _ = calls.regions(*(calls.part(grads, n) for n in range(3)))
    assert kernel == "cuda.attention_grad_wgmma.v1" and operands[6] == (B, 1, 1, T)


def test_a_mask_of_all_scores_stays_one():
    calls = Calls()
    q, k, v = (calls.given(B, H, T, D) for _ in range(3))
    bias = calls(aten.expand.default, calls.given(B, 1, T, T), SCORES)
    kernel, operands, _ = calls.regions(calls.part(calls(FORWARD["cudnn"], q, k, v, bias, False), 0))
    assert kernel == "cuda.attention_mma.v1" and operands[3] == (B, 1, T, T)
