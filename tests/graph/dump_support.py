"""What is dumped in tests, and how its files are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import aicf
from aicf import nn

HOSTILE = "/<b>\x1b[31m\u202e"
X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2])


class Classifier(nn.Layer):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(8, 5), nn.Linear(5, 3)

    def emit(self, ctx, x):
        h = self.first(x)
        ctx.sigmoid(h)  # nobody reads it
        return self.second(ctx.relu(h))


def model() -> nn.Model:
    return nn.Model({"x": aicf.TensorSpec(("batch", 8))}, Classifier(), batch=6)


def training(**how) -> aicf.Program:
    return aicf.compile(
        model(), "train", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(lr=0.1), device="cpu", **how
    )


def read(folder: Path, name: str) -> str:
    return (folder / name).read_text()


def tiny(folder: Path) -> Path:
    """A file with a model of one op."""
    file = folder / "tiny.py"
    file.write_text(
        "import aicf\nfrom aicf import nn\nmodel = nn.Model({'x': aicf.TensorSpec((64,))}).add(nn.ReLU())\n"
    )
    return file
