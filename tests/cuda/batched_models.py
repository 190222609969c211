"""Transformers with a batch as large as is asked for, of sizes that tensor cores take."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import aicf
from aicf import models, nn
from aicf.types import i32

BERT = Path(aicf.__file__).parents[1] / "examples" / "bert.py"
WORDS = 64


@dataclass(frozen=True)
class Sizes:
    length: int = 8
    size: int = 64
    heads: int = 4
    depth: int = 2


SMALL, FOR_TENSOR_CORES = Sizes(), Sizes(32, 512, 8, 1)
Make = Callable[..., nn.Model]


def _of_tokens(layer: nn.Layer, batch: int, sizes: Sizes) -> nn.Model:
    tokens = {"tokens": aicf.TensorSpec(("batch", "seq"), i32)}
    return nn.Model(tokens, layer, batch=batch, seq=sizes.length)


def gpt2(batch: int, sizes: Sizes = SMALL) -> nn.Model:
    s = sizes
    config = models.GPT2Config(words=WORDS, places=s.length, size=s.size, depth=s.depth, heads=s.heads)
    return _of_tokens(models.GPT2(config), batch, sizes)


def llama(batch: int, sizes: Sizes = SMALL) -> nn.Model:
    s = sizes
    config = models.LlamaConfig(
        words=WORDS, places=s.length, size=s.size, hidden=2 * s.size, depth=s.depth, heads=s.heads, kv_heads=s.heads // 2, tied=True
    )  # fmt: skip
    return _of_tokens(models.Llama(config), batch, sizes)


def bert(batch: int, sizes: Sizes = SMALL) -> nn.Model:
    spec = importlib.util.spec_from_file_location("example_bert", BERT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    s = sizes
    return module.build(words=WORDS, batch=batch, length=s.length, width=s.size, depth=s.depth, heads=s.heads)


def feed(make: Make, draw: np.random.Generator, count: int, sizes: Sizes = SMALL) -> dict[str, np.ndarray]:
    """Sequences; those of BERT have drawn lengths, by their masks."""
    shape = count, sizes.length
    found: dict[str, np.ndarray] = {"tokens": draw.integers(0, WORDS, shape).astype(np.int32)}
    if make is bert:
        found["kinds"] = draw.integers(0, 2, shape).astype(np.int32)
        found["mask"] = np.arange(sizes.length) < draw.integers(1, sizes.length + 1, (count, 1))
    return found
