"""The networks that are trained in the suites."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import aicf
from aicf import nn
from aicf.graph.run.program import Program

from .numpy_trainer import BETAS, DECAY, EPS


@dataclass(frozen=True)
class Mlp:
    """Linear layers with ReLU between them, softmax cross entropy over the last width, SGD or AdamW."""

    name: str
    widths: tuple[int, ...]
    batch: int
    optimizer: str = "sgd"
    rate: float = 1.0  # of SGD: large enough for f16 weights to move at all
    dtype: str = "f32"

    @property
    def tolerance(self) -> float:
        """Of the losses of a few steps, against f64."""
        return 1e-4 if self.dtype == "f32" else 3e-2

    def model(self) -> nn.Model:
        spec = aicf.TensorSpec(("batch", self.widths[0]), aicf.DType[self.dtype])
        model = nn.Model({"x": spec}, batch=self.batch)
        for n, (inputs, outputs) in enumerate(pairwise(self.widths)):
            if n:
                model.add(nn.ReLU())
            model.add(nn.Linear(inputs, outputs))
        return model

    def program(self, device: str, **options: Any) -> Program:
        optimizer = (
            nn.SGD(self.rate)
            if self.optimizer == "sgd"
            else nn.AdamW(self.rate, betas=BETAS, eps=EPS, weight_decay=DECAY)
        )
        return aicf.compile(
            self.model(),
            "train",
            device=device,
            loss=nn.SoftmaxCrossEntropy(),
            optimizer=optimizer,
            **options,
        )

    def params(self, program: Program) -> list[np.ndarray]:
        """weight, bias, weight, bias, … of the program, in its dtype."""
        layers = range(0, 2 * len(self.widths) - 2, 2)
        return [program.get(f"{n}.{name}") for n in layers for name in ("weight", "bias")]

    def batch_of(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(self.batch, self.widths[0])).astype(aicf.DType[self.dtype].numpy)
        return x, rng.integers(0, self.widths[-1], self.batch)


# As `aicf demo` trains.
DIGITS = Mlp("digits MLP 64-512-256-10, batch 64, AdamW", (64, 512, 256, 10), 64, "adamw", 1e-3)
WIDE = Mlp("MLP of 4 layers, batch 128, width 512, SGD", (512,) * 5, 128)
SMALL = Mlp("MLP 8-16-16-4, batch 4, SGD", (8, 16, 16, 4), 4)
