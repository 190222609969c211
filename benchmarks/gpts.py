"""The GPTs that are trained in the suites: the model of examples/gpt.py, in its sizes. Importing this imports neither side's library."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from aicf import nn
    from aicf.graph.run.program import Program

RATE, BETAS, EPS, DECAY, CLIP = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0  # decay is for matrices
INIT = 0.02  # deviation of embeddings


@dataclass(frozen=True)
class Gpt:
    """Embeddings of `words` tokens and of `length` places, `depth` blocks of `heads` heads, a head that is tied; AdamW."""

    name: str
    words: int
    size: int
    depth: int
    heads: int
    batch: int
    length: int
    policy: str = "bf16"

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.batch * self.length

    @property
    def flops(self) -> float:
        """Of a step: 6 for each weight and token, and causal attention."""
        weights = sum(math.prod(s) for n, s in self.shapes().items() if len(s) == 2 and n != "place.weight")
        return self.tokens * (6.0 * weights + 6.0 * self.depth * self.size * self.length)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters, by aicf's names."""
        size, made = (
            self.size,
            {"embed.weight": (self.words, self.size), "place.weight": (self.length, self.size)},
        )
        for block in (f"blocks.{n}" for n in range(self.depth)):
            for name, rows, columns in (("attn.qkv", 3 * size, size), ("attn.out", size, size), ("mlp.up", 4 * size, size), ("mlp.down", size, 4 * size)):  # fmt: skip
                made |= {f"{block}.{name}.weight": (rows, columns), f"{block}.{name}.bias": (rows,)}
            for name in ("norm1", "norm2"):
                made |= {f"{block}.{name}.weight": (size,), f"{block}.{name}.bias": (size,)}
        return {**made, "norm.weight": (size,), "norm.bias": (size,)}

    def batch_of(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Random tokens, the lower ones more often, so that there is something to learn; labels are the tokens after them."""
        drawn = (self.words * rng.random((self.batch, self.length + 1)) ** 4).astype(np.int64)
        return drawn[:, :-1].astype(np.int32), np.ascontiguousarray(drawn[:, 1:])

    # --- aicf's side --------------------------------------------------------------------------------------------------

    def model(self) -> nn.Model:
        import aicf

        net = example().GPT(self.words, self.size, self.depth, self.heads, self.length)
        spec = aicf.TensorSpec(("batch", "length"), aicf.i32)
        return aicf.nn.Model({"x": spec}, net, batch=self.batch, length=self.length)

    def training(self) -> dict[str, Any]:
        """Arguments of `aicf.compile` and `explain_for` besides the model."""
        from aicf import nn

        exempt = nn.ParamGroup(where=lambda p: p.rank < 2, weight_decay=0.0)
        optimizer = nn.AdamW(RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, clip_norm=CLIP, groups=[exempt])
        return {"loss": nn.LinearCrossEntropy(), "optimizer": optimizer, "policy": self.policy}

    def program(self, device: str) -> Program:
        import aicf

        return aicf.compile(self.model(), "train", device=device, **self.training())

    def params(self, program: Program) -> Mapping[str, np.ndarray]:
        return {name: program.get(name) for name in self.shapes()}


@cache
def example() -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / "gpt.py"
    spec = importlib.util.spec_from_file_location("aicf_example_gpt", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GPT2 = Gpt("GPT-2 124M, 16x1024, bf16, AdamW", 50257, 768, 12, 12, 16, 1024)
PADDED = replace(GPT2, name="GPT-2 124M, vocabulary 50304, 16x1024, bf16, AdamW", words=50304)
EXAMPLE = Gpt("GPT of 4 layers of 128, 16x128, f32, AdamW", 256, 128, 4, 4, 16, 128, "f32")
SMALL = Gpt("GPT of 2 layers of 32, 2x16, f32, AdamW", 61, 32, 2, 2, 2, 16, "f32")
SMALL_HALF = replace(SMALL, name="GPT of 2 layers of 32, 2x16, bf16, AdamW", policy="bf16")
GPTS = {"gpt2": GPT2, "gpt2-padded": PADDED, "example": EXAMPLE, "small": SMALL, "small-bf16": SMALL_HALF}
