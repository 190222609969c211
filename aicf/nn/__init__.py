"""Models, layers, losses, optimizers, initialisers and learning-rate schedules."""

from typing import Any

from .. import near
from . import init, schedules
from .layers import (
    GELU,
    BiasAdd,
    Dropout,
    Layer,
    LeakyReLU,
    Linear,
    ReLU,
    Residual,
    Sequential,
    Sigmoid,
    Tanh,
)
from .losses import Loss, MeanSquaredError, SoftmaxCrossEntropy
from .model import Model
from .optimizers import SGD, Adam, AdamW, Optimizer

__all__ = [
    "GELU",
    "SGD",
    "Adam",
    "AdamW",
    "BiasAdd",
    "Dropout",
    "Layer",
    "LeakyReLU",
    "Linear",
    "Loss",
    "MeanSquaredError",
    "Model",
    "Optimizer",
    "ReLU",
    "Residual",
    "Sequential",
    "Sigmoid",
    "SoftmaxCrossEntropy",
    "Tanh",
    "init",
    "schedules",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    raise near.no_attribute("aicf.nn", name, near.NN, __all__)
