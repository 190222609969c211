"""A two-hidden-layer MLP; `build() -> Model`, `loss()` and `optimizer()` are what `aicf explain` and `aicf tune` look for.

aicf explain examples/mlp.py --device h200 --mode train
python examples/mlp.py
"""

import numpy as np

import aicf
from aicf import nn

# The inputs' types. "batch" is a named dimension: a feed may have any size there.
INPUTS = {"x": aicf.TensorSpec(("batch", 64), aicf.f32)}


def build() -> nn.Model:
    model = nn.Model(INPUTS, batch=64, seed=0)
    model.add(nn.Linear(64, 256)).add(nn.ReLU())
    model.add(nn.Linear(256, 128)).add(nn.GELU())
    return model.add(nn.Linear(128, 10))


def loss() -> nn.Loss:
    return nn.SoftmaxCrossEntropy()


def optimizer() -> nn.Optimizer:
    return nn.AdamW(lr=1e-3)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 64)).astype(np.float32), rng.integers(0, 10, 64)
    program = aicf.compile(build(), "train", loss=loss(), optimizer=optimizer())
    for _ in range(100):
        last = program({"x": x, "y": y})["loss"]
    print(program.explain())
    print(f"loss after 100 steps on one batch: {float(last):.4f}")
