"""A drawn training run as digests of its losses and its final state: two processes that print other digests have other bits."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

import numpy as np

import aicf
from aicf import models, nn

from .seeds import seeded


def digests(seed: str, device: str, replayed: bool) -> Iterator[str]:
    """Of each step of a small GPT-2 with drawn sizes, by `replay` or by `run`; of the trained state at last."""
    draw = seeded("digests", seed)
    heads = int(draw.integers(1, 4))
    words, size, length = (
        int(draw.integers(40, 300)),
        8 * heads * int(draw.integers(1, 4)),
        int(draw.integers(3, 30)),
    )
    config = models.GPT2Config(words=words, places=length, size=size, depth=1, heads=heads)
    tokens = {"tokens": aicf.TensorSpec(("batch", length), aicf.i32)}
    model = nn.Model(tokens, models.GPT2(config), batch=2, seed=int(draw.integers(100)))
    program = aicf.compile(
        model, "train", device=device, loss=nn.SoftmaxCrossEntropy(), optimizer=nn.AdamW(1e-2)
    )
    for _ in range(4):
        batch = int(draw.integers(1, 3))
        tokens, labels = (draw.integers(0, words, (batch, length)) for _ in range(2))
        feed = {"tokens": tokens.astype(np.int32), "y": labels}
        results = (program.replay if replayed else program.run)(feed)
        yield _digest(results)
    yield _digest(program.state_dict())


def _digest(tensors) -> str:
    found = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        array = tensors[name]
        found.update(
            name.encode() + np.asarray(array if isinstance(array, np.ndarray) else array.numpy()).tobytes()
        )
    return found.hexdigest()


if __name__ == "__main__":
    print("\n".join(digests(sys.argv[1], sys.argv[2], sys.argv[3] == "replay")))
