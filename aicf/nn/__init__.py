"""Models, layers, losses, optimizers, initialisers and learning-rate schedules."""

from typing import Any

from .. import near
from ..graph.emit.objective import LossFunction
from . import init, schedules
from .adaptive import LAMB, Adagrad, Lion, RMSprop
from .attention import ALiBi, MultiHeadAttention, RoPE, TransformerBlock
from .blocks import MLP, Residual, Sequential, SwiGLU
from .groups import ParamGroup
from .layer import Layer
from .layers import (
    GELU,
    BiasAdd,
    Dropout,
    Embedding,
    LayerNorm,
    LeakyReLU,
    Linear,
    ReLU,
    RMSNorm,
    Sigmoid,
    SiLU,
    Tanh,
)
from .losses import LinearCrossEntropy, Loss, MeanSquaredError, SoftmaxCrossEntropy
from .model import Model
from .muon import Muon
from .optimizers import SGD, Adam, AdamW, Optimizer
from .rope_scaling import LinearScaling, Llama3Scaling

__all__ = [
    "GELU",
    "LAMB",
    "MLP",
    "SGD",
    "ALiBi",
    "Adagrad",
    "Adam",
    "AdamW",
    "BiasAdd",
    "Dropout",
    "Embedding",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LinearCrossEntropy",
    "LinearScaling",
    "Lion",
    "Llama3Scaling",
    "Loss",
    "LossFunction",
    "MeanSquaredError",
    "Model",
    "MultiHeadAttention",
    "Muon",
    "Optimizer",
    "ParamGroup",
    "RMSNorm",
    "RMSprop",
    "ReLU",
    "Residual",
    "RoPE",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SoftmaxCrossEntropy",
    "SwiGLU",
    "Tanh",
    "TransformerBlock",
    "init",
    "schedules",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    raise near.no_attribute("aicf.nn", name, near.NN, __all__)
