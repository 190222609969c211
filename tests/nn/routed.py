"""A small model with several results, in aicf and in NumPy, that the tests of results and of their losses share."""

from __future__ import annotations

from typing import Any

import numpy as np

import aicf
from aicf import nn


class Routed(nn.Layer):
    """Logits, what they are made of, and how uneven a gate is."""

    def __init__(self) -> None:
        self.body, self.head, self.gate = nn.Linear(8, 6), nn.Linear(6, 3), nn.Linear(6, 2)

    def emit(self, ctx: Any, x: Any) -> Any:
        hidden = ctx.tanh(self.body(x))
        gate = ctx.softmax(self.gate(hidden))
        return {"logits": self.head(hidden), "hidden": hidden, "router": (gate * gate).mean()}


class Emits(nn.Layer):
    """One layer, and what a function makes of it."""

    def __init__(self, function: Any) -> None:
        self.inner, self.function = nn.Linear(8, 3), function

    def emit(self, ctx: Any, x: Any) -> Any:
        return self.function(ctx, x, self.inner(x))


X = {"x": aicf.TensorSpec(("batch", 8))}
Y = aicf.TensorSpec(("batch",), aicf.i64)


def model(layer: Any = None) -> nn.Model:
    return nn.Model(X, layer or Routed(), batch=4, seed=7)


def feed(rng: np.random.Generator, rows: int = 5) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((rows, 8), np.float32), "y": rng.integers(0, 3, rows)}


def in_numpy(w: dict[str, np.ndarray], x: np.ndarray) -> dict[str, np.ndarray]:
    def linear(name, x):
        return x @ w[f"{name}.weight"].astype(np.float64).T + w[f"{name}.bias"]

    hidden = np.tanh(linear("body", x.astype(np.float64)))
    gate = np.exp(linear("gate", hidden))
    gate /= gate.sum(-1, keepdims=True)
    return {"logits": linear("head", hidden), "hidden": hidden, "router": (gate**2).mean()}


def nll(logits: np.ndarray, y: np.ndarray) -> float:
    shifted = logits - logits.max(-1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(y)), y]))


def routed_loss(ctx, out, y):
    right = (out["logits"].argmax(-1) == y).astype(aicf.f32).mean()
    return ctx.cross_entropy(out["logits"], y).mean() + 0.5 * out["router"], {"accuracy": right}
