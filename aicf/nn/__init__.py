"""Models, layers, losses, optimizers, initialisers and learning-rate schedules."""

from typing import Any

from .. import near
from ..graph.emit.objective import LossFunction
from . import init, schedules
from .adaptive import LAMB, Adagrad, Lion, RMSprop
from .attention import ALiBi, MultiHeadAttention, RoPE, TransformerBlock
from .blocks import MLP, Residual, Sequential, SwiGLU
from .class_losses import (
    CrossEntropyLoss,
    CTCLoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
)
from .criteria import (
    BCELoss,
    BCEWithLogitsLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HingeLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    LogCoshLoss,
    MSELoss,
    PoissonNLLLoss,
    ReducedLoss,
    SmoothL1Loss,
    SoftMarginLoss,
)
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
from .pair_losses import CosineEmbeddingLoss, CosineSimilarityLoss, MarginRankingLoss, TripletMarginLoss
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
    "BCELoss",
    "BCEWithLogitsLoss",
    "BiasAdd",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CosineSimilarityLoss",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HingeLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "Layer",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LinearCrossEntropy",
    "LinearScaling",
    "Lion",
    "Llama3Scaling",
    "LogCoshLoss",
    "Loss",
    "LossFunction",
    "MSELoss",
    "MarginRankingLoss",
    "MeanSquaredError",
    "Model",
    "MultiHeadAttention",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "Muon",
    "NLLLoss",
    "Optimizer",
    "ParamGroup",
    "PoissonNLLLoss",
    "RMSNorm",
    "RMSprop",
    "ReLU",
    "ReducedLoss",
    "Residual",
    "RoPE",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "SoftmaxCrossEntropy",
    "SwiGLU",
    "Tanh",
    "TransformerBlock",
    "TripletMarginLoss",
    "init",
    "schedules",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    raise near.no_attribute("aicf.nn", name, near.NN, __all__)
