"""A small decoder of existing ops, and the same in NumPy in double precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import aicf
from aicf import nn
from aicf.types import DType, TensorSpec, f32, i32

WORDS, SIZE, HEADS, PLACES = 11, 8, 2, 40


class Causal(nn.Layer):
    """Attention to the places up to one's own, by products and a softmax."""

    def __init__(self) -> None:
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))

    def emit(self, ctx: Any, x: Any) -> Any:
        batch, seq, _ = x.shape
        q, k, v = (
            y.reshape(batch, seq, HEADS, SIZE // HEADS).transpose(0, 2, 1, 3)
            for y in (self.q(x), self.k(x), self.v(x))
        )
        place = ctx.iota(shape=(seq,), axis=0, dtype=i32)
        scores = ctx.select(place <= place[:, None], q @ k.mT / (SIZE // HEADS) ** 0.5, -1e9)
        return self.out((ctx.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(batch, seq, SIZE))


class Decoder(nn.Layer):
    """mix  with Causal, whose softmax is along the sequence"""

    def __init__(self, dtype: DType = f32, mix: bool = True) -> None:
        self.mixes = mix
        self.embed, self.place = nn.Embedding(WORDS, SIZE, dtype), nn.Embedding(PLACES, SIZE, dtype)
        self.norm, self.mix, self.norm2, self.mlp = (
            nn.LayerNorm(SIZE),
            Causal(),
            nn.RMSNorm(SIZE),
            nn.MLP(SIZE),
        )
        self.head = nn.Linear(SIZE, WORDS, bias=False, weight=self.embed)

    def emit(self, ctx: Any, tokens: Any) -> Any:
        x = self.embed(tokens) + self.place(ctx.iota(shape=tokens.shape[-1:], axis=0, dtype=i32))
        x = self.norm(x)
        x = x + (self.mix(x) if self.mixes else x)
        return self.head(x + self.mlp(self.norm2(x)))


def decoder(batch: int = 4, seq: int = 16, dtype: DType = f32, mix: bool = True) -> nn.Model:
    return nn.Model(
        {"tokens": TensorSpec(("batch", "seq"), i32)}, Decoder(dtype, mix), batch=batch, seq=seq, seed=2
    )


def logits(w: Mapping[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    batch, seq = tokens.shape
    x = w["embed.weight"][tokens] + w["place.weight"][:seq]
    h = x - x.mean(-1, keepdims=True)
    x = h = h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-5) * w["norm.weight"] + w["norm.bias"]
    q, k, v = (linear(h, f"mix.{n}").reshape(batch, seq, HEADS, -1).swapaxes(1, 2) for n in "qkv")
    e = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(SIZE // HEADS)) * np.tri(seq)
    mixed = (e / e.sum(-1, keepdims=True)) @ v
    x = x + linear(mixed.swapaxes(1, 2).reshape(batch, seq, SIZE), "mix.out")
    h = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w["norm2.weight"]
    h = linear(h, "mlp.up")
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return (x + linear(h, "mlp.down")) @ w["embed.weight"].T


def loss_of(w: Mapping[str, np.ndarray], tokens: np.ndarray, y: np.ndarray) -> float:
    z = logits(w, tokens)
    shifted = z - z.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-np.take_along_axis(log_p, y[..., None], -1).mean())


def fed(rng: np.random.Generator, batch: int, seq: int) -> dict[str, np.ndarray]:
    return {
        "tokens": rng.integers(0, WORDS, (batch, seq)).astype(np.int32),
        "y": rng.integers(0, WORDS, (batch, seq)),
    }


def doubles(program: Any) -> dict[str, np.ndarray]:
    return {n: program.get(n).astype(np.float64) for n in program.variables.names(aicf.ir.Role.param)}
