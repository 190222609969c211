"""Small models and batches that the tests of training share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.graph.run.program import Program

from .oracle import MLP

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
on_each_device = pytest.mark.parametrize("device", DEVICES)

LAYERS = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "gelu": nn.GELU, "gelu_erf": lambda: nn.GELU(approximate=False),
    "sigmoid": nn.Sigmoid, "tanh": nn.Tanh,
}  # fmt: skip


def mlp(
    activation: str = "relu", sizes: tuple[int, ...] = (5, 7, 3), batch: int = 6, seed: int = 0
) -> nn.Model:
    """Linear layers called 0, 2, 4, …, with activations between them."""
    model = nn.Model({"x": aicf.TensorSpec(("batch", sizes[0]))}, batch=batch, seed=seed)
    for n, (i, o) in enumerate(pairwise(sizes)):
        if n:
            model.add(LAYERS[activation]())
        model.add(nn.Linear(i, o))
    return model


def batch_of(
    rows: int, seed: int = 0, inputs: int = 5, outputs: int = 3, loss: str = "cross_entropy"
) -> dict:
    """A random feed."""
    rng = np.random.default_rng([seed, rows])
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    if loss == "mse":
        return {"x": x, "y": rng.normal(size=(rows, outputs)).astype(np.float32)}
    return {"x": x, "y": rng.integers(0, outputs, rows)}


LOSSES = {"cross_entropy": nn.SoftmaxCrossEntropy, "mse": nn.MeanSquaredError}


def trainer(
    device: str, model: nn.Model | None = None, optimizer=None, loss: str = "cross_entropy", **more
) -> Program:
    """A training program."""
    optimizer = optimizer or nn.SGD(0.1, momentum=0.9)
    return aicf.compile(
        model or mlp(), "train", device=device, loss=LOSSES[loss](), optimizer=optimizer, **more
    )


def params(program: Program) -> dict[str, np.ndarray]:
    return {name: program.get(name) for name in program.variables.names(aicf.ir.Role.param)}


def oracle(program: Program, activation: str = "relu", loss: str = "cross_entropy") -> MLP:
    """The same model in float64, with the program's parameters of now."""
    return MLP(params(program), activation, loss)


def host(results: dict) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in results.items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Bit for bit, NaN equal to itself."""
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].tobytes() == b[k].tobytes() and a[k].shape == b[k].shape for k in a
    )
