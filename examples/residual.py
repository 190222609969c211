"""A block with a skip connection: x + f(x). Where branches meet, selection decides what joins which kernel.

aicf explain examples/residual.py --device h200 -v
"""

import aicf
from aicf import nn

INPUTS = {"x": aicf.TensorSpec(("batch", 256), aicf.f32)}


def build() -> nn.Model:
    model = nn.Model(INPUTS, batch=64, seed=0)
    model.add(nn.Residual(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)))
    model.add(nn.Residual(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256)))
    return model.add(nn.Linear(256, 10))


def loss() -> nn.Loss:
    return nn.SoftmaxCrossEntropy()


def optimizer() -> nn.Optimizer:
    return nn.SGD(lr=1e-2, momentum=0.9)
