"""Models that make images larger, beside PyTorch: exported, and trained with nothing left to PyTorch."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

import aicf  # noqa: E402

MODES = {
    "nearest": {"scale_factor": 2}, "bilinear": {"size": (9, 7), "mode": "bilinear"},
    "bicubic": {"scale_factor": 1.5, "mode": "bicubic", "align_corners": True},
}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", MODES)
def test_an_exported_model_makes_what_pytorch_does(mode):
    module, x = nn.Sequential(nn.Upsample(**MODES[mode]), nn.Conv2d(2, 3, 1)).eval(), torch.randn(2, 2, 4, 5)
    got = aicf.from_torch(module, (x,), device="cpu")({"input": x})["output"].numpy()
    np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1, pool="models of PyTorch")
@pytest.mark.parametrize("mode", MODES)
def test_a_model_trains_without_pytorch_s_kernels(mode):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Upsample(**MODES[mode]))
    compiled = torch.compile(module, backend="aicf", options={"fallback": "error"})
    x = torch.randn(2, 2, 4, 5)
    found = []
    for run in (module, compiled):
        module.zero_grad()
        run(x).square().mean().backward()
        found.append([p.grad.clone() for p in module.parameters()])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
