"""A model through aicf's backend beside the same model in eager PyTorch."""

import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from aicf.frontends.torch import backend, graphs


def compiled(model, **options):
    return torch.compile(model, backend=backend, **({"options": options} if options else {}))


def close(got, want, tolerance=2e-5):
    """Beside the greatest element."""
    assert got.shape == want.shape and got.dtype == want.dtype and got.device == want.device
    if got.is_floating_point():
        scale = max(float(want.detach().abs().max()) if want.numel() else 0.0, 1e-6)
        torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=tolerance * scale, equal_nan=True)
    else:
        assert torch.equal(got, want)


def first(out):
    if isinstance(out, torch.Tensor):
        return out
    return (
        out[0]
        if isinstance(out, (tuple, list))
        else next(v for v in out.values() if torch.is_tensor(v) and v.ndim)
    )


def train(call, model, args, steps, lr=0.1):
    """Losses of steps of SGD on a weighted sum of squares, and the last gradients."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=lr), []
    for _ in range(steps):
        optimizer.zero_grad()
        out = first(call(*args))
        weights = torch.linspace(0.5, 1.5, out.numel(), device=out.device).reshape(out.shape)
        loss = (weights * out.float() ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def same_as_eager(model, *args, steps=2, lr=0.1, tolerance=2e-4):
    """Outputs without gradients, losses, gradients and buffers of some steps; the reports."""
    other = copy.deepcopy(model)
    call = compiled(model)
    with torch.no_grad():
        torch.manual_seed(1)
        got = first(call(*args))
        torch.manual_seed(1)
        close(got, first(other(*args)), tolerance)
    torch.manual_seed(1)
    losses, grads = train(call, model, args, steps, lr)
    torch.manual_seed(1)
    wanted, others = train(other, other, args, steps, lr)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=tolerance, atol=1e-7)
    most = max(float(g.abs().max()) for g in others.values())
    for name, grad in grads.items():
        want = others.get(name, torch.zeros_like(grad))
        torch.testing.assert_close(
            grad, want, rtol=0, atol=tolerance * max(most, 1e-6), msg=lambda m, n=name: f"{n}: {m}"
        )
    for (name, a), b in zip(model.named_buffers(), other.buffers()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    return graphs()


def left(found):
    return {op for graph in found for op, _ in graph.left}


class Blocks(nn.Module):
    """Two blocks with a residual; the head is `head`."""

    def __init__(self, width=12, checkpointed=False):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )
            for _ in range(2)
        )
        self.head, self.checkpointed = nn.Linear(width, 5), checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return self.head(x)


def gradients(call, model, x):
    model.zero_grad()
    (call(x).float() ** 2).mean().backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def same_model_gradients(model, x, tolerance=1e-4, call=None):
    """Of a compiled model and the same in eager PyTorch: also which have none."""
    other = copy.deepcopy(model)
    want = gradients(other, other, x)
    got = gradients(compiled(model) if call is None else call, model, x)
    most = max(float(g.abs().max()) for g in want.values() if g is not None)
    for name, grad in want.items():
        if grad is None:
            assert got[name] is None, f"{name} is frozen, and has a gradient"
        else:
            torch.testing.assert_close(
                got[name].float(),
                grad.float(),
                rtol=0,
                atol=tolerance * most,
                msg=lambda m, n=name: f"{n}: {m}",
            )
    return got
