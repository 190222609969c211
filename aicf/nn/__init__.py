"""Models, layers, losses, optimizers, initialisers and learning-rate schedules."""

from typing import Any

from .. import near
from ..graph.emit.objective import LossFunction
from . import init, schedules
from .adaptive import LAMB, Adagrad, Lion, RMSprop
from .attention import ALiBi, MultiHeadAttention, RoPE, TransformerBlock
from .batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .blocks import MLP, Residual, Sequential, SwiGLU
from .class_losses import (
    CrossEntropyLoss,
    CTCLoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
)
from .convolutions import Conv1d, Conv2d, Conv3d
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
from .group_norm import GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
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
from .pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from .recurrent import GRU, LSTM, RNN
from .resizing import PixelShuffle, PixelUnshuffle, Upsample
from .rope_scaling import LinearScaling, Llama3Scaling
from .shapes import Flatten, Identity
from .transposed import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d

__all__ = [
    "GELU",
    "GRU",
    "LAMB",
    "LSTM",
    "MLP",
    "RNN",
    "SGD",
    "ALiBi",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BiasAdd",
    "CTCLoss",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineEmbeddingLoss",
    "CosineSimilarityLoss",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GaussianNLLLoss",
    "GroupNorm",
    "HingeEmbeddingLoss",
    "HingeLoss",
    "HuberLoss",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
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
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
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
    "PixelShuffle",
    "PixelUnshuffle",
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
    "Upsample",
    "init",
    "schedules",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    raise near.no_attribute("aicf.nn", name, near.NN, __all__)
