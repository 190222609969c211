"""A two-hidden-layer MLP, and the MODEL.py convention: `build() -> Model`.

aicf explain examples/mlp.py --device h200
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


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 64)).astype(np.float32), rng.integers(0, 10, 64)
    program = aicf.compile(build(), "train", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.AdamW(lr=1e-3))
    for _ in range(100):
        loss = program({"x": x, "y": y})["loss"]
    print(program.explain())
    print(f"loss after 100 steps on one batch: {float(loss):.4f}")
