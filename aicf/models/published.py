"""Weights by their published names: which tensors of a checkpoint are one of ours, and the tensors of it that are one of theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import StateError
from ..types import TensorSpec, bf16, f16, f32
from .files import HEAD, Checkpoint

TAKEN = (f32, bf16, f16)
SHOWN = 8  # lines of a list of what is wrong


@dataclass(frozen=True)
class Published:
    """The tensors that are one weight: stacked along the rows, if there are several.

    rows        of each of them, if there are several
    transposed  whether it is stored as (inputs, outputs)
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] = ()
    transposed: bool = False

    def shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Of each tensor, where the weight has this shape."""
        if self.rows:
            return {name: (rows, *shape[1:]) for name, rows in zip(self.names, self.rows)}
        return {self.names[0]: shape[::-1] if self.transposed else shape}

    def joined(self, tensors: Sequence[np.ndarray]) -> np.ndarray:
        if len(tensors) > 1:
            return np.concatenate(tensors)
        return tensors[0].T if self.transposed else tensors[0]

    def parts(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        if self.rows:
            return dict(zip(self.names, np.split(weight, np.cumsum(self.rows)[:-1])))
        return {self.names[0]: weight.T if self.transposed else weight}


@dataclass(frozen=True)
class FromCheckpoint:
    """An initializer: the weight that a checkpoint has."""

    checkpoint: Checkpoint
    published: Published

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        if gone := [name for name in self.published.names if name not in self.checkpoint]:
            raise StateError(f"{self.checkpoint.path} has no {gone[0]} any more", hint="load the model again")
        return self.published.joined([self.checkpoint[name] for name in self.published.names])


def stored(
    checkpoint: Checkpoint, layer: Any, weights: Mapping[str, TensorSpec]
) -> dict[str, FromCheckpoint]:
    """What each weight of a layer starts from. StateError if a tensor is missing, or one too many, or of another shape or type."""
    names = layer.published()
    wanted = {t: s for ours, p in names.items() for t, s in p.shapes(weights[ours].shape).items()}
    (embedding,) = names["embed.weight"].names
    tied = {HEAD: wanted[embedding]} if layer.config.tied else {}  # may be there again
    wrong = [f"missing: {n}: {_shape(s)}" for n, s in wanted.items() if n not in checkpoint]
    for name, spec in checkpoint.specs.items():
        shape = wanted.get(name, tied.get(name))
        if shape is None:
            if not re.fullmatch(layer.ignored, name):
                wrong.append(f"extra: {name}: {spec}")
        elif spec.shape != shape:
            wrong.append(f"shape: {name}: {spec}, not {_shape(shape)}")
        elif spec.dtype not in TAKEN:
            wrong.append(f"type: {name}: {spec}, not {', '.join(map(str, TAKEN))}")
    if wrong:
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        raise StateError(
            f"{checkpoint.path}: {len(wrong)} tensors are not those of {layer.config}", details=[*wrong[:SHOWN], *more],
            hint="config.json must be of the model that the weights are of; quantised ones are not taken",
        )  # fmt: skip
    if tied and HEAD in checkpoint and not _same(checkpoint[HEAD], checkpoint[embedding]):
        raise StateError(
            f"{checkpoint.path}: {HEAD} is not {embedding}, and config.json says that they are one",
            hint='"tie_word_embeddings": false in config.json keeps both',
        )
    return {ours: FromCheckpoint(checkpoint, published) for ours, published in names.items()}


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit, row by row."""
    return a.dtype == b.dtype and all(
        np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(a, b)
    )


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{'x'.join(map(str, shape))}]"
