"""Training as people write it: optimizers, compiled or not, accumulation, autocast, checkpoints, layouts. Gradients are eager PyTorch's."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws.seeds import rng  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import Blocks, close, compiled, gradients, left, same_model_gradients  # noqa: E402


def test_checkpoints_recompute():
    model = Blocks(checkpointed=True)
    same_model_gradients(model, torch.randn(3, 7, 12))


def test_checkpoints_with_dropout_draw_the_same_mask_again():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.5), nn.Linear(12, 12))

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False)

    model = Dropped()
    other, x = copy.deepcopy(model), torch.randn(4, 12)
    found = []
    for call, net in ((compiled(model), model), (other, other)):
        torch.manual_seed(3)
        found.append(gradients(call, net, x))
    for name, want in found[1].items():
        close(found[0][name], want, 1e-4)


OPTIMIZERS = {
    "sgd, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam, one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    def losses(call, model, x):
        optimizer, found = OPTIMIZERS[name](model.parameters()), []
        for _ in range(8):
            optimizer.zero_grad(set_to_none=True)
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return torch.stack(found)

    model, x = Blocks(), torch.randn(6, 12)
    other = copy.deepcopy(model)
    want = losses(other, other, x)
    torch.testing.assert_close(losses(compiled(model), model, x), want, rtol=1e-3, atol=1e-6)
    assert want[-1] < 0.9 * want[0]


def test_gradients_accumulate():
    model = Blocks()
    other, xs = copy.deepcopy(model), [torch.randn(n, 12) for n in (3, 5, 3)]
    call = compiled(model)
    for x in xs:
        call(x).square().mean().backward()
        other(x).square().mean().backward()
    for p, q in zip(model.parameters(), other.parameters()):
        close(p.grad, q.grad, 1e-4)


def test_training_under_autocast():
    model = Blocks()
    other, x = copy.deepcopy(model), torch.randn(6, 12)
    found = []
    for call, net in ((compiled(model), model), (other, other)):
        with torch.amp.autocast("cpu", torch.bfloat16):
            out = call(x)
            loss = out.float().square().mean()
        assert out.dtype is torch.bfloat16
        loss.backward()
        found.append([p.grad for p in net.parameters()])
    for got, want in zip(*found):
        assert got.dtype is torch.float32
        close(got, want, 4e-2)
    close(compiled(model)(x), other(x), 1e-4)  # without it again


def test_a_loss_inside():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Blocks()

        def forward(self, x, y):
            return F.cross_entropy(self.body(x), y, label_smoothing=0.1, ignore_index=2)

    model = Whole()
    other, x, y = copy.deepcopy(model), torch.randn(6, 12), torch.tensor([0, 1, 2, 3, 4, 2])
    for call in ((got := compiled(model)), other):
        call(x, y).backward()
    assert got is not None
    for p, q in zip(model.parameters(), other.parameters()):
        close(p.grad, q.grad, 1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_step_compiled(name):
    model, x = Blocks(), torch.randn(6, 12)
    other = copy.deepcopy(model)
    for net, optimizer in (
        (model, OPTIMIZERS[name](model.parameters())),
        (other, OPTIMIZERS[name](other.parameters())),
    ):
        step = torch.compile(optimizer.step, backend="aicf") if net is model else optimizer.step
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            step()
    for p, q in zip(model.parameters(), other.parameters()):
        close(p.detach(), q.detach(), 1e-4)


def test_a_custom_function_has_its_own_gradient():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0) * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * (ctx.saved_tensors[0] > 0) * 3  # three, not two

    def f(x):
        return Doubled.apply(x * 2).exp() + 1

    found = []
    for call in (compiled(f), f):
        x = torch.linspace(-1, 1, 6, requires_grad=True)
        call(x).sum().backward()
        found.append(x.grad)
    close(*found)


def test_a_backward_pass_twice():
    model, x = Blocks(), torch.randn(3, 12)
    other = copy.deepcopy(model)
    for call in (compiled(model), other):
        loss = call(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for p, q in zip(model.parameters(), other.parameters()):
        close(p.grad, q.grad, 1e-4)


def test_channels_last_stay():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    model = model.to(memory_format=torch.channels_last)
    other, x = copy.deepcopy(model), torch.randn(2, 3, 9, 9).contiguous(memory_format=torch.channels_last)
    got, want = compiled(model)(x), other(x)
    close(got.detach(), want.detach(), 1e-4)
    assert got.stride() == want.stride()
    got.square().sum().backward(), want.square().sum().backward()
    most = max(float(q.grad.abs().max()) for q in other.parameters())
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-4 * most)


def test_training_on_inputs_that_lie_as_they_like():
    model = Blocks()
    other, call = copy.deepcopy(model), compiled(model)
    for x in (
        torch.randn(12, 5).t(),
        torch.randn(5, 24)[:, ::2],
        torch.randn(12).expand(5, 12),
        torch.randn(5, 13)[:, 1:],
    ):
        for f, net in ((call, model), (other, other)):
            net.zero_grad()
            f(x).square().mean().backward()
        for p, q in zip(model.parameters(), other.parameters()):
            close(p.grad, q.grad, 1e-4)


def test_steps_of_a_compiled_optimizer(request):
    """One part for all parameters, whose numbers are eager PyTorch's."""
    draw = rng(request.node.nodeid)
    shapes = [tuple(int(n) for n in draw.integers(1, 6, draw.integers(1, 3))) for _ in range(2)]
    kind = (torch.optim.Adam, torch.optim.AdamW)[int(draw.integers(2))]
    how = {
        "lr": float(draw.uniform(1e-3, 1e-1)),
        "weight_decay": float(draw.choice([0.0, 0.1])),
        "foreach": False,
    }
    values = [torch.from_numpy(draw.standard_normal(s)).float() for s in shapes]
    mine, eager = ([nn.Parameter(v.clone()) for v in values] for _ in range(2))
    optimizers = [kind(parameters, **how) for parameters in (mine, eager)]
    steps = [torch.compile(optimizers[0].step, backend="aicf"), optimizers[1].step]
    for _ in range(3):
        grads = [torch.from_numpy(draw.standard_normal(s)).float() for s in shapes]
        for parameters, step in zip((mine, eager), steps):
            for p, grad in zip(parameters, grads):
                p.grad = grad.clone()
            step()
    for got, want in zip(mine, eager):
        close(got.detach(), want.detach(), 1e-5)
    assert graphs() and not left(graphs()), graphs()
