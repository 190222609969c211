"""Processes with other hash seeds and another order of registration make the same schedules, plans and keys (A4, A7, B13)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aicf

FACTS = """
import json, random, sys
import aicf
from aicf import nn
from aicf.graph.compile import compile_graph
from aicf.graph.emit.passes import lower, optimize
from aicf.graph.emit.trace import Recipe, trace
from aicf.graph.fuse.schedule import schedule
from aicf.registry.select import Selector
from graph.dags import Dag, Step, random_order, whole_region
from nn.mlp import mlp

registry = aicf.default_registry()
if sys.argv[1] == "shuffled":
    registry = aicf.KernelRegistry(list(registry)[::-1])
facts = {}

layers = mlp(sizes=(5, 7, 7, 3))
graph = optimize(trace(Recipe(layers, "train", nn.SoftmaxCrossEntropy(), nn.Adam(clip_norm=1.0)), layers.sizes, "cpu"))
facts["order of ops"] = [op.oid for op in schedule(lower(graph), graph)]

steps = (Step("relu", (0,)), Step("tanh", (1,)), Step("add", (3, 4)), Step("bias_add", (5, 2)), Step("relu", (6,)))
dag = Dag((3, 4), ((4,),), steps, (6, 7)).graph()
facts["keys of a region"] = [whole_region(dag, random_order(dag, random.Random(n).choice)).key for n in range(4)]

small = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=4).add(nn.Linear(5, 7)).add(nn.GELU()).add(nn.Linear(7, 3))
recipe = Recipe(small, "train", nn.SoftmaxCrossEntropy(), nn.AdamW(clip_norm=1.0))
dropping = nn.Model({"x": aicf.TensorSpec(("batch", 8))}, batch=4)
dropping.add(nn.Linear(8, 16)).add(nn.GELU()).add(nn.Dropout(0.1)).add(nn.Linear(16, 3))
for device in ("cpu", "h200", "t4"):
    selector = Selector(registry, aicf.device.spec.preset(device))
    facts[f"plan for {device}"] = compile_graph(recipe, small.sizes, selector).plan.key
    told = aicf.explain_for(dropping, device, "train", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.Adam(1e-3), registry=registry)
    facts[f"explanation for {device}"] = str(told)
    facts[f"regions for {device}"] = [
        [r.spec.key, r.kernel_id, r.anchor, r.last, str(r.ended), list(r.in_vids), list(r.out_vids)] for r in told.regions
    ]
print(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def facts() -> list[dict[str, Any]]:
    """Of two processes, which run at once."""
    root = Path(aicf.__file__).parents[1]
    path = os.pathsep.join([str(root), str(root / "tests")])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FACTS, order], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        ) for seed, order in (("0", "plain"), ("4711", "shuffled"))
    ]  # fmt: skip
    ended = [(*process.communicate(timeout=300), process.returncode) for process in started]
    assert [code for *_, code in ended] == [0, 0], [errors for _, errors, _ in ended]
    return [json.loads(out) for out, *_ in ended]


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("A4", "A7", "B13")
def test_schedules_plans_explanations_and_keys_are_the_same_in_every_process(facts):
    one, other = facts
    for what in one:
        assert one[what] == other[what], what
    assert len(set(one["keys of a region"])) == 1, "however its ops were ordered"
    assert len({one[f"plan for {device}"] for device in ("cpu", "h200", "t4")}) == 3
    assert "adam_step" in one["explanation for h200"] and len(one["order of ops"]) > 20
