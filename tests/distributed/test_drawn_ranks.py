"""Drawn models, optimizers and ways to share them, on two or three ranks: the parameters of one process that has all rows."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.distributed import DataParallel, World, ZeRO1
from aicf.distributed.agreement import transfers
from aicf.graph.compile import compile_graph
from aicf.graph.emit.trace import Recipe
from aicf.nn.schedules import Cosine
from aicf.registry.select import Selector

from .threads import rank_threads  # noqa: F401  (a fixture)

ROWS, WIDTHS = 6, (3, 5, 8)  # divisible by two and three ranks; few shapes, so that loops are compiled once


class Scaled(nn.Layer):
    """Reads a parameter twice, and one of them by a view."""

    def emit(self, ctx, x):
        p = ctx.param("p", (x.shape[-1],), nn.init.ones)
        return x * p + p.reshape(1, -1)


def drawn_model(rng, seed):
    width, classes = int(rng.choice(WIDTHS)), int(rng.choice((2, 4)))
    model = nn.Model({"x": aicf.TensorSpec(("batch", width))}, batch=ROWS, seed=seed)
    for _ in range(rng.integers(0, 3)):
        other = int(rng.choice(WIDTHS))
        model.add(nn.Linear(width, other, bias=bool(rng.integers(2)))).add(
            [nn.Tanh(), nn.ReLU()][rng.integers(2)]
        )
        width = other
        if rng.integers(3) == 0:
            model.add([nn.LayerNorm(width), Scaled()][rng.integers(2)])
    return model.add(nn.Linear(width, classes)), classes


def drawn_optimizer(rng):
    clip = [None, None, 0.05][rng.integers(3)]
    decay = float(rng.choice((0.0, 0.1)))
    rate = [0.05, Cosine(0.05, 10, 2)][rng.integers(2)]
    return [
        lambda: nn.SGD(rate, momentum=0.0, clip_norm=clip),
        lambda: nn.SGD(rate, momentum=0.9, weight_decay=decay, nesterov=True, clip_norm=clip),
        lambda: nn.Adam(rate, amsgrad=bool(rng.integers(2)), clip_norm=clip),
        lambda: nn.AdamW(rate, weight_decay=decay, clip_norm=clip, groups=[nn.ParamGroup(use="bias", weight_decay=0.0, lr_scale=2.0)]),
        lambda: nn.Muon(rate, adam_lr=0.01, dtype=aicf.f32, clip_norm=clip),
    ][rng.integers(5)]()  # fmt: skip


def steps_of(program, feeds, each=None):
    for feed in feeds:
        program(feed if each is None else {n: a[each] for n, a in feed.items()})
    return program


@pytest.mark.spec("C10", "C12")
@pytest.mark.parametrize("seed", range(2))
def test_drawn_ranks_have_the_parameters_of_one(rank_threads, seed):  # noqa: F811
    rng = np.random.default_rng(seed)
    ranks, accumulate = int(rng.integers(2, 4)), int(rng.integers(1, 3))
    kind = [DataParallel, ZeRO1][(seed + int(rng.integers(2))) % 2]
    model_seed, draws = int(rng.integers(100)), int(rng.integers(2**31))
    each = ROWS // ranks

    def compiled(parallel, runs):
        own = np.random.default_rng(draws)
        model, classes = drawn_model(own, model_seed)
        how = {
            "loss": nn.SoftmaxCrossEntropy(),
            "optimizer": drawn_optimizer(own),
            "accumulate": runs,
            "device": "cpu",
        }
        return aicf.compile(model, "train", parallel=parallel, **how), classes

    alone, classes = compiled(None, accumulate)
    width = alone.recipe.model.inputs["x"].shape[1]
    feeds = [
        {"x": rng.normal(size=(ROWS, width)).astype(np.float32), "y": rng.integers(0, classes, ROWS)} for _ in range(3 * accumulate)
    ]  # fmt: skip
    expected = steps_of(alone, feeds).state_dict()

    def work(world):
        parallel = kind(
            world=world, timeout=60, bucket_mb=float(np.random.default_rng(draws).choice((25, 1e-5)))
        )
        program, _ = compiled(parallel, accumulate)
        steps_of(program, feeds, slice(each * world.rank, each * world.rank + each))
        return parallel.whole_state(program.state_dict())

    found = rank_threads(ranks, work)
    for rank, state in enumerate(found):
        assert not isinstance(state, Exception), (seed, rank, state)
        assert state.keys() == expected.keys(), seed
        for name, array in state.items():
            assert array.tobytes() == found[0][name].tobytes(), (seed, rank, name)
            np.testing.assert_allclose(
                array, expected[name], rtol=2e-4, atol=2e-5, err_msg=f"seed {seed}: {name}"
            )


@pytest.mark.sample(3)
@pytest.mark.spec("C12")
@pytest.mark.parametrize("seed", range(8))
def test_drawn_plans_of_all_ranks_have_the_same_transfers(seed):
    """On GPUs that need not be there, too: what each rank steps is its own affair."""
    rng = np.random.default_rng(seed)
    ranks, draws = int(rng.integers(2, 6)), int(rng.integers(2**31))
    device = [aicf.runtime("cpu").spec, preset("h200")][rng.integers(2)]
    kind, dtype = [DataParallel, ZeRO1, ZeRO1][rng.integers(3)], [None, "bf16"][rng.integers(2)]
    policy, bucket, accumulate = (
        ("f32", "bf16", "f16")[rng.integers(3)],
        float(rng.choice((25, 1e-4, 1e-5))),
        int(rng.integers(1, 3)),
    )
    found = []
    for rank in range(ranks):
        own = np.random.default_rng(draws)
        parallel = kind(dtype=dtype, bucket_mb=bucket, world=World(rank, ranks))
        model, _ = drawn_model(own, 0)
        recipe = Recipe(
            model,
            "train",
            nn.SoftmaxCrossEntropy(),
            drawn_optimizer(own),
            accumulate,
            "exact",
            policy,
            parallel,
        )
        found.append(transfers(compile_graph(recipe, model.sizes, Selector(default_registry(), device)).plan))
    assert found[0] and all(other == found[0] for other in found), (seed, found)
