"""Ray Train starts the ranks. Where Ray is installed: CI does without its 600 MB."""

from __future__ import annotations

import json

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")


def train(config):
    import numpy as np

    import aicf
    from aicf import nn

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 20)).astype(np.float32), rng.integers(0, 5, 64)
    model = nn.Model({"x": aicf.TensorSpec(("batch", 20))}, batch=16).add(nn.Linear(20, 5))
    parallel = aicf.distributed.DataParallel(timeout=60)
    program = aicf.compile(
        model,
        "train",
        loss=nn.SoftmaxCrossEntropy(),
        optimizer=nn.SGD(config["lr"]),
        device="cpu",
        parallel=parallel,
    )
    history = program.fit(aicf.training.Batches({"x": x, "y": y}, 16), epochs=2)
    with open(f"{config['folder']}/{parallel.rank}.json", "w") as file:
        json.dump([parallel.ranks, history.losses], file)


def test_workers_are_ranks(tmp_path):
    from aicf.distributed.ray import trainer

    trainer(train, num_workers=2, config={"lr": 0.1, "folder": str(tmp_path)}).fit()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second and first[0] == 2 and len(first[1]) == 8
