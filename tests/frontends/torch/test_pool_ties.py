"""Gradients of maximum pools of many equal elements are eager PyTorch's: compiled, and as aicf's own layers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws.seeds import rng  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aicf  # noqa: E402
from aicf import nn  # noqa: E402
from aicf.frontends.torch import backend  # noqa: E402
from aicf.graph.emit.autodiff import gradients  # noqa: E402


class Slope(nn.Layer):
    """The gradient of a weighted sum of a pool's results."""

    def __init__(self, pool, weights):
        self.pool, self.weights = pool, weights

    def emit(self, ctx, x):
        y = self.pool(x)
        w = ctx.table("weights", self.weights.shape, lambda shape, rng: self.weights, x.dtype)
        return gradients(ctx, ctx.reduce_sum(y * w), [x])[0]


def _drawn(draw, axes, adaptive):
    """(the shape of x, arguments)."""
    sizes = draw.integers(3, 6, axes).tolist()
    if adaptive:
        return (1, 2, *sizes), (tuple(int(draw.integers(1, 4)) for _ in sizes),)
    window = draw.integers(1, 4, axes).tolist()
    return (1, 2, *sizes), (
        tuple(window),
        tuple(draw.integers(1, 4, axes).tolist()),
        tuple(int(draw.integers(0, k // 2 + 1)) for k in window),
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("adaptive", [False, True])
def test_ties_of_pools(adaptive):
    draw = rng("PyTorch's pools", adaptive)
    for axes in draw.permutation([1, 2, 3])[:2].tolist():
        dtype = [torch.float32, torch.bfloat16][draw.integers(2)]
        shape, how = _drawn(draw, axes, adaptive)
        name = f"{'adaptive_' * adaptive}max_pool{axes}d"
        function, layer = getattr(F, name), getattr(nn, f"{'Adaptive' * adaptive}MaxPool{axes}d")
        x = torch.tensor(draw.integers(-1, 2, shape)).to(dtype).requires_grad_()
        y = function(x, *how)
        weights = torch.tensor(draw.integers(1, 5, tuple(y.shape))).to(dtype)
        (want,) = torch.autograd.grad((y * weights).sum(), x)
        case = f"{name} {dtype} {shape} {how}"
        call = torch.compile(lambda x, w, f=function, how=how: (f(x * 1, *how) * w).sum(), backend=backend)
        (got,) = torch.autograd.grad(call(x, weights), x)
        assert torch.equal(got, want), case
        spec = aicf.TensorSpec(shape, {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype])
        own = aicf.compile(nn.Model({"x": spec}, Slope(layer(*how), weights.float().numpy())), device="cpu")
        found = own({"x": x.detach()})["output"].numpy().astype(np.float32)
        np.testing.assert_array_equal(found, want.float().numpy(), err_msg=case)
