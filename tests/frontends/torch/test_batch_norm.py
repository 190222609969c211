"""Batch norms of halves as drawn models have them: outputs, gradients and running statistics, against eager PyTorch and PyTorch in f64."""

import contextlib
import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws import torch_border  # noqa: E402
from draws.seeds import rng  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from aicf.device.spec import PRESETS  # noqa: E402
from aicf.dispatch import default_registry  # noqa: E402
from aicf.frontends.torch import graphs  # noqa: E402
from aicf.frontends.torch.decompositions import BATCH_NORMS, decompositions  # noqa: E402
from aicf.frontends.torch.emit import NodeTrial, name_of  # noqa: E402
from aicf.registry.select import Selector  # noqa: E402

from .helpers import compiled, left  # noqa: E402

HALVES = [torch.bfloat16, torch.float16]
KINDS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
aten = torch.ops.aten


class Normalised(nn.Module):
    """A batch norm between ops that fuse with it."""

    def __init__(self, norm, dtype, autocast):
        super().__init__()
        self.norm, self.dtype, self.autocast = norm, dtype, autocast

    def forward(self, x):
        ahead = x * 0.75
        with torch.autocast("cpu", self.dtype) if self.autocast else contextlib.nullcontext():
            y = self.norm(ahead)
        return nn.functional.silu(y)


def drawn_model(draw, how):
    """A model in one of three modes, and a batch whose mean is far from 0 beside its deviation."""
    axes, channels = int(draw.integers(1, 4)), int(draw.integers(2, 6))
    dtype = HALVES[int(draw.integers(2))]
    tracked = how == "inference" or bool(draw.random() < 0.7)
    norm = KINDS[axes - 1](
        channels, momentum=float(draw.choice([0.0, 0.1, 0.4, 1.0])), affine=bool(draw.random() < 0.8),
        track_running_stats=tracked,
    )  # fmt: skip
    center = float(draw.uniform(40, 80) * draw.choice([-1, 1]))
    values = {"running_mean": draw.uniform(0.7, 0.8, channels) * center, "running_var": draw.uniform(0.5, 2, channels),
              "weight": draw.uniform(0.5, 2, channels), "bias": draw.uniform(-1, 1, channels)}  # fmt: skip
    for name, tensor in (*norm.named_parameters(), *norm.named_buffers()):
        if name in values:
            tensor.data.copy_(torch.from_numpy(values[name]))
    parameters = str(draw.choice(["halves", "f32", "autocast"]))
    model = Normalised(norm, dtype, parameters == "autocast")
    if parameters == "halves":
        norm.to(dtype)
    if how == "frozen":  # what a backbone is: no gradient of its parameters
        norm.requires_grad_(False)
    model.train(how == "training" or not tracked)
    shape = [int(draw.integers(2, 5)), channels, *(int(n) for n in draw.integers(2, 5, axes))]
    x = torch.from_numpy(draw.standard_normal(shape) + center).to(dtype)
    if draw.random() < 0.5 and x.dim() in LAYOUTS:
        x = x.to(memory_format=LAYOUTS[x.dim()])
    return model, x, f"{norm}, {how}, {parameters}, {dtype} {shape}, strides {x.stride()}"


def seen(call, model, x, step):
    """Output, gradients and buffers by name."""
    x = (x * (1 - step / 8)).requires_grad_()
    y = call(x)
    weights = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape)
    model.zero_grad()
    (y.double() * weights).sum().backward()
    of = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {
        "output": y.detach(),
        "gradient": x.grad,
        **of,
        **{n: b.clone() for n, b in model.named_buffers()},
    }


@pytest.mark.parametrize("how", ["training", "inference", "frozen"])
def test_batch_norms_of_halves(how, request):
    model, x, said = drawn_model(rng(request.node.nodeid), how)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    exact.autocast = False
    call = compiled(model)
    for step in range(2):
        got, want = seen(call, model, x, step), seen(eager, eager, x, step)
        truth = seen(exact, exact, x.double(), step)
        assert list(got) == list(want)
        for name, tensor in got.items():
            wrong = torch_border.differs(
                tensor, want[name], truth[name], 4 * torch.finfo(tensor.dtype).eps
                if tensor.is_floating_point() else 0.0,
            )  # fmt: skip
            assert wrong is None, f"{said}, step {step}: {name}: {wrong}"
    found = graphs()
    assert not left(found), f"{said}: {found}"
    assert sum(g.parts for g in found) == 2


def test_a_mean_of_all_batches_is_eagers(request):
    """`momentum=None`: PyTorch reads the number of batches on the host, and TorchDynamo breaks the graph there."""
    model, x, said = drawn_model(rng(request.node.nodeid), "training")
    model.norm = KINDS[x.dim() - 3](x.shape[1], momentum=None).to(
        x.dtype if model.norm.affine and model.norm.weight.dtype in HALVES else torch.float32
    )
    eager = copy.deepcopy(model)
    call = compiled(model)
    for _ in range(3):
        call(x), eager(x)
    for (name, got), want in zip(model.named_buffers(), eager.buffers()):
        torch.testing.assert_close(
            got, want, rtol=8 * torch.finfo(x.dtype).eps, atol=0, msg=f"{said}: {name}"
        )
    assert any(g.broken for g in graphs())


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_hopper_takes_every_result(dtype, request):
    """Fake tensors stand for those of a GPU, where PyTorch has the statistics of inference, too, in f32."""
    draw, takes = rng(request.node.nodeid), NodeTrial(Selector(default_registry(), PRESETS["h200"]))
    channels = int(draw.integers(2, 9))
    parameters = [torch.float32, dtype][int(draw.integers(2))]
    with FakeTensorMode():
        x = torch.empty(3, channels, 4, 5, dtype=dtype, device="cuda")
        x = x.to(memory_format=torch.channels_last) if draw.random() < 0.5 else x
        weight, mean, var = (torch.empty(channels, dtype=parameters, device="cuda") for _ in range(3))
        weight = weight if draw.random() < 0.7 else None
        bias = weight
        calls = [
            (op, (x, weight, bias, *(() if ".no_stats" in str(op) else (mean, var)), *([] if "no_training" in str(op) else [True]), 0.1, 1e-5))
            for op in BATCH_NORMS
        ]  # fmt: skip
        saved = torch.empty(channels, device="cuda")
        for training in (True, False):
            read = (
                x,
                x,
                weight,
                mean,
                var,
                saved,
                saved,
                training,
                1e-5,
                [True, weight is not None, weight is not None],
            )
            calls.append((aten.native_batch_norm_backward.default, read))
        for op, args in calls:
            made = make_fx(lambda *a, op=op: op(*a), decomposition_table=decompositions())(*args)
            nodes = [n for n in made.graph.nodes if n.op == "call_function" and "getitem" not in name_of(n)]
            why = {name_of(n): said for n in nodes if (said := takes(n)) is not None}
            assert nodes and not why, f"{dtype}, parameters {parameters}: {why}"
