"""aicf.nn's layers against PyTorch's of the same names and arguments: a small ResNet, its loss, its weights and its running statistics over several steps,
by one state dict."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import aicf
from aicf import nn

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
F, tnn = torch.nn.functional, torch.nn

ROOT = Path(aicf.__file__).parents[1]
DEPTHS = (2, 1)


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Bottleneck(tnn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = tnn.Conv2d(inputs, width, 1, bias=False), tnn.BatchNorm2d(width)
        self.conv2, self.bn2 = tnn.Conv2d(width, width, 3, stride, 1, bias=False), tnn.BatchNorm2d(width)
        self.conv3, self.bn3 = tnn.Conv2d(width, 4 * width, 1, bias=False), tnn.BatchNorm2d(4 * width)
        skip = tnn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
        narrow = stride > 1 or inputs != 4 * width
        self.downsample = tnn.Sequential(skip, tnn.BatchNorm2d(4 * width)) if narrow else tnn.Identity()

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(tnn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.conv1, self.bn1 = tnn.Conv2d(3, width, 7, 2, 3, bias=False), tnn.BatchNorm2d(width)
        inputs = width
        for stage, depth in enumerate(DEPTHS):
            blocks = []
            for n in range(depth):
                blocks.append(Bottleneck(inputs, width * 2**stage, 2 if stage and not n else 1))
                inputs = 4 * width * 2**stage
            setattr(self, f"layer{stage + 1}", tnn.Sequential(*blocks))
        self.fc = tnn.Linear(inputs, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(len(DEPTHS)):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def arrays(module):
    state = {n: v.detach().numpy().copy() for n, v in module.state_dict().items()}
    return {n: v for n, v in state.items() if not n.endswith("num_batches_tracked")}


@pytest.mark.sample(1, pool="models of PyTorch")
def test_a_resnet_trains_as_pytorch_s_does():
    torch.manual_seed(0)
    theirs, ours = ResNet(4, 10).double(), example("resnet").build(6, 40, 4, DEPTHS, 10)
    loss, optimizer = nn.SoftmaxCrossEntropy(), nn.SGD(0.02, momentum=0.9)
    train = aicf.compile(ours, "train", device="cpu", loss=loss, optimizer=optimizer)
    infer = aicf.compile(ours, device="cpu")
    start = arrays(theirs)
    assert start.keys() == infer.state_dict().keys()
    infer.load_state_dict({name: array.astype(np.float32) for name, array in start.items()})
    steps, rng = torch.optim.SGD(theirs.parameters(), 0.02, momentum=0.9), np.random.default_rng(0)
    for _ in range(2):
        x, y = rng.standard_normal((6, 3, 40, 40), np.float32), rng.integers(0, 10, 6)
        got = float(train({"x": x, "y": y})["loss"])
        theirs.train()
        steps.zero_grad()
        wanted = F.cross_entropy(theirs(torch.tensor(x).double()), torch.tensor(y))
        wanted.backward()
        steps.step()
        assert abs(got - wanted.item()) < 1e-4 * wanted.item()
        state = infer.state_dict()
        for name, array in arrays(theirs).items():
            # Their doubles are the reference. A sum on the other side of ReLU's kink changes gradients at once, PyTorch's floats by 1 %.
            off, moved = np.linalg.norm(state[name] - array), np.linalg.norm(array - start[name])
            assert off <= 0.02 * moved + 1e-5 * np.linalg.norm(array), name
        with torch.no_grad():
            out = theirs.eval()(torch.tensor(x).double()).numpy()
        np.testing.assert_allclose(infer({"x": x})["output"].numpy(), out, rtol=1e-3, atol=1e-3)
