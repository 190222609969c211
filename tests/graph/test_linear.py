"""Compiling a graph of 10,000 ops takes as long per op as one of 1,000: every stage but the kernels' own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
from pace import TRIES
from registry.synthetic import kernel, registry_of

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.graph.emit.passes import lower, optimize, verify
from aicf.graph.emit.trace import Recipe, trace
from aicf.graph.fuse import form_regions
from aicf.graph.fuse.schedule import schedule
from aicf.graph.run.plan import make_plan
from aicf.registry.select import Selector


def stages(layers: int) -> tuple[int, dict[str, float]]:
    """(ops, seconds of this thread for each stage), for a chain of layers in training."""
    taken: dict[str, float] = {}

    def timed(name: str, stage: Callable):
        start = time.thread_time()
        made = stage()
        taken[name] = time.thread_time() - start
        return made

    def build():
        model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=2)
        for _ in range(layers):
            model.add(nn.Linear(4, 4)).add(nn.ReLU())
        return model

    selector = Selector(registry_of(kernel("cpu.one.v1")), preset("cpu"))
    gc.disable()
    try:
        recipe = Recipe(timed("add", build), "train", nn.MeanSquaredError(), nn.Adam(clip_norm=1.0))
        graph = timed("trace", lambda: trace(recipe, recipe.model.sizes, "cpu"))
        graph = timed("optimize", lambda: optimize(graph))
        timed("verify", lambda: verify(graph))
        ops = timed("lower", lambda: lower(graph))
        ops = timed("schedule", lambda: schedule(ops, graph))
        regions = form_regions(ops, graph, selector)
        timed("plan", lambda: make_plan(graph, ops, regions, selector.device, "train", selector.registry))
    finally:
        gc.enable()
    return len(ops), taken


@pytest.mark.sample(1, pool="long graphs")
@pytest.mark.spec("A6", "C4")
def test_every_stage_takes_as_long_per_op_in_a_graph_of_ten_thousand():
    best: dict[int, dict[str, float]] = {60: {}, 600: {}}
    for _ in range(TRIES):
        for layers, known in best.items():
            ops, taken = stages(layers)
            known.update({name: min(known.get(name, 1), seconds / ops) for name, seconds in taken.items()})
        few, many = best.values()
        slow = {name: (few[name], many[name]) for name in few if many[name] >= 3 * few[name]}
        if not slow:
            break
    assert not slow, "seconds per op of a small graph, and of a large one"
