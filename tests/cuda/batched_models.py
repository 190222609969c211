"""Small transformers with a batch as large as is asked for, of sizes that tensor cores take."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import aicf
from aicf import models, nn
from aicf.types import i32

BERT = Path(aicf.__file__).parents[1] / "examples" / "bert.py"
WORDS, LENGTH, SIZE, HEADS, DEPTH = 64, 8, 64, 4, 2


def _of_tokens(layer: nn.Layer, batch: int) -> nn.Model:
    return nn.Model({"tokens": aicf.TensorSpec(("batch", "seq"), i32)}, layer, batch=batch, seq=LENGTH)


def gpt2(batch: int) -> nn.Model:
    config = models.GPT2Config(words=WORDS, places=LENGTH, size=SIZE, depth=DEPTH, heads=HEADS)
    return _of_tokens(models.GPT2(config), batch)


def llama(batch: int) -> nn.Model:
    sizes = {"words": WORDS, "places": LENGTH, "size": SIZE, "hidden": 2 * SIZE, "depth": DEPTH}
    return _of_tokens(
        models.Llama(models.LlamaConfig(heads=HEADS, kv_heads=HEADS // 2, tied=True, **sizes)), batch
    )


def bert(batch: int) -> nn.Model:
    spec = importlib.util.spec_from_file_location("example_bert", BERT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build(words=WORDS, batch=batch, length=LENGTH, width=SIZE, depth=DEPTH, heads=HEADS)
