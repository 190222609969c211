"""What the ops are: one file per op or small family. Importing this package registers all of them."""

from . import (
    activations,
    argmax,
    arithmetic,
    dropout,
    gemm,
    indexing,
    losses,
    memory,
    norms,
    optimizers,
    padding,
    reductions,
    row_steps,
    softmax,
    views,
)
from .schema import OpSchema, schema_of, schemas

__all__ = [
    "OpSchema",
    "activations",
    "argmax",
    "arithmetic",
    "dropout",
    "gemm",
    "indexing",
    "losses",
    "memory",
    "norms",
    "optimizers",
    "padding",
    "reductions",
    "row_steps",
    "schema_of",
    "schemas",
    "softmax",
    "views",
]
