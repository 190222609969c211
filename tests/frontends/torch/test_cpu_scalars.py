"""Tensors without dimensions on the CPU among tensors of a GPU, which fake tensors stand for: parts take them as eager PyTorch does."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws import torch_border  # noqa: E402
from draws.seeds import rng  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.func import functionalize  # noqa: E402
from torch.fx import Interpreter  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from aicf.device.spec import PRESETS  # noqa: E402
from aicf.dispatch import default_registry  # noqa: E402
from aicf.frontends.torch.decompositions import decompositions  # noqa: E402
from aicf.frontends.torch.emit import NodeTrial, meta_of, name_of  # noqa: E402
from aicf.frontends.torch.part import BoundPart, PartModel, target  # noqa: E402
from aicf.frontends.torch.partition import _fuse, _ops, _Partitioner  # noqa: E402
from aicf.frontends.torch.scalars import filled_on, fold_constants, is_cpu_scalar  # noqa: E402
from aicf.registry.select import Selector  # noqa: E402

aten, GPU, CPU = torch.ops.aten, torch.device("cuda:0"), torch.device("cpu")
LINES = (
    "{x} + {c}", "{c} - {x}", "{x} * {c}", "{x} / {c}", "torch.maximum({x}, {c})", "torch.where({x} > 0.25, {x}, {c})",
    "{x}.masked_fill({x} > 0.25, {c})", "with_row({x}, {c})", "with_all({x}, {c}) - {x}", "torch.where({x} > 0.25, {x}, 1.25)",
)  # fmt: skip


def with_row(x, c):
    y = x.clone()
    y[0] = c
    return y


def with_all(x, c):
    return x.clone().fill_(c)


def drawn_function(draw):
    """A function of a tensor and two CPU scalars, and its text; it has constants of its own."""
    constants = [
        f"torch.tensor({draw.uniform(1, 3)})",
        f"torch.tensor({int(draw.integers(1, 4))})",
        f"{draw.uniform(1, 3)}",
    ]
    scalars, lines, x = ["c0", "c1", *draw.permutation(constants[:2])], [], "x"
    for n, line in enumerate(draw.permutation(LINES)[:4]):
        lines.append(f"v{n} = {line.format(x=x, c=scalars[n])}")
        x = f"v{n}"
    text = "\n    ".join(["def f(x, c0, c1):", *lines, f"return {x}"])
    scope = {"torch": torch, "with_row": with_row, "with_all": with_all}
    exec(text, scope)
    return scope["f"], text


class OnGpu(Interpreter):
    """Runs a graph on fake tensors: what was traced on the CPU is on a GPU, but for CPU scalars."""

    def run_node(self, n):
        if "device" in n.kwargs:
            n.update_kwarg("device", GPU if n.meta["val"].dim() else CPU)
        n.meta["val"] = super().run_node(n)
        return n.meta["val"]


def traced_on_gpu(f, args):
    """The graph of a function whose arguments with dimensions are on a GPU."""
    graph = make_fx(functionalize(f), decomposition_table=decompositions())(*args)
    with FakeTensorMode(allow_non_fake_inputs=True):
        OnGpu(graph).run(*(torch.empty_like(a, device=GPU if a.dim() else CPU) for a in args))
    graph.graph.eliminate_dead_code()
    return graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_part_reads_drawn_cpu_scalars(dtype, request):
    """Each op is taken on Hopper, in one part whose inputs are the arguments alone; its numbers, computed on the CPU, are eager PyTorch's."""
    draw = rng(request.node.nodeid)
    f, text = drawn_function(draw)
    types = draw.permutation([torch.float32, torch.float64, torch.int64])
    args = [torch.from_numpy(draw.standard_normal((5, 4))).to(dtype),
            *(torch.tensor(draw.uniform(1, 3)).to(t) for t in types[:2])]  # fmt: skip
    want, exact = f(*args), f(*(a.double() if a.is_floating_point() else a for a in args))
    graph = traced_on_gpu(f, args)
    takes = NodeTrial(Selector(default_registry(), PRESETS["h200"]))
    ops = [n for n in _ops(graph) if n.meta["val"].device == GPU]
    assert not (why := {name_of(n): said for n in ops if (said := takes(n)) is not None}), f"{text}\n{why}"
    (nodes,) = fold_constants(graph, _Partitioner(graph, dict.fromkeys(ops)).partitions())
    _fuse(graph, [nodes])
    left = [name_of(n) for n in _ops(graph)]
    assert not left, f"{text}\nstays outside of the part: {left}"
    (inner,) = (getattr(graph, n.target) for n in graph.graph.nodes if n.op == "call_module")
    read = [n.name for n in inner.graph.nodes if n.op == "placeholder"]
    assert len(read) == sum(name in text.partition("\n")[2] for name in ("x", "c0", "c1")), f"{text}\n{read}"
    # the part as it is on a GPU, compiled for the CPU and run on the arguments there
    part = BoundPart(PartModel(inner, meta_of), target(CPU), CPU)
    part.bind()
    by_name = dict(zip(("x_1", "c0_1", "c1_1"), args))
    (got,) = part([by_name[name].to(dtype) for name, (dtype, _) in zip(read, part._types)])
    said = torch_border.differs(got, want, exact, 4 * torch.finfo(dtype).eps, strides=False)
    assert said is None, f"{text}\n{args}\n{said}"


def test_an_op_takes_no_other_tensors_of_another_device():
    """A CPU tensor with a dimension, and what leaves the GPU, are PyTorch's."""
    takes = NodeTrial(Selector(default_registry(), PRESETS["h200"]))
    with FakeTensorMode():
        on_gpu, row, scalar = torch.empty(3, 4, device=GPU), torch.empty(4), torch.empty(())
        for op, args, why in (
            (aten.copy.default, (on_gpu, row), True), (aten.copy.default, (on_gpu, scalar), False),
            (aten.copy.default, (scalar, on_gpu.new_empty(())), True), (aten.add.Tensor, (on_gpu, scalar), False),
            (aten.add.Tensor, (on_gpu, scalar.double()), False), (aten.lt.Scalar, (on_gpu, 2.5), False),
        ):  # fmt: skip
            graph = make_fx(lambda *a, op=op: op(*a))(*args)
            (node,) = _ops(graph)
            assert takes(node) == ("tensors on several devices" if why else None), (op, args)
        for x in (on_gpu.double(), on_gpu.long()):
            graph = make_fx(torch.ops.aten.lt.Tensor)(x, scalar.double())
            assert takes(_ops(graph)[0]) == "a CPU scalar of f64 beside integers or f64"


def test_a_constant_that_only_another_part_reads_leaves_its_own(request):
    """Of two parts, one on the CPU, which has the constant, and one on a GPU, which gets the number."""
    value = float(rng(request.node.nodeid).uniform(1, 3))

    def f(x, c):
        return x * torch.full((), value), c + 1

    graph = traced_on_gpu(f, [torch.randn(3, 4), torch.tensor(2.0)])
    ops = _ops(graph)
    parts = [[n for n in ops if n.meta["val"].device == device] for device in (CPU, GPU)]
    on_cpu, on_gpu = fold_constants(graph, parts)
    assert [name_of(n) for n in on_cpu] == ["aten.add.Tensor"]
    assert sorted(map(name_of, on_gpu)) == ["aten.full.default", "aten.mul.Tensor"]
    _fuse(graph, [on_cpu, on_gpu])
    assert not _ops(graph)


def test_a_scalar_is_filled_on_the_device_of_its_part(request):
    draw = rng(request.node.nodeid)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool):
        scalar = torch.tensor(draw.uniform(-9, 9)).to(dtype)
        filled = filled_on(torch.device("meta"), scalar)
        assert filled.device.type == "meta" and not filled.dim()
        assert filled.dtype is (torch.float32 if dtype is torch.float64 else dtype)
        assert torch.equal(filled_on(CPU, scalar), scalar) and is_cpu_scalar(scalar)
        row = scalar.reshape(1)
        assert filled_on(torch.device("meta"), row) is row
