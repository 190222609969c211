"""Ids of kernels, which have a config in brackets, and what they were before they had."""

from __future__ import annotations

import json

import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.registry.ids import current, former
from aicf.registry.select import select
from aicf.registry.tuning import tuning_of
from aicf.types import f16
from registry.synthetic import region

H200 = preset("h200")


@pytest.mark.spec("B14")
def test_every_config_is_found_by_its_former_id():
    registry = aicf.default_registry()
    configs = [v for v in registry if v.config]
    assert len({former(v.id) for v in registry}) == len(registry) and len(configs) > 100
    for v in configs:
        old = former(v.id)
        assert "[" not in old and current(old) == v.id and current(f"a {old}, b") == f"a {v.id}, b"
        assert registry.by_id(old) is v and old in registry


def test_ids_that_other_packages_may_have_are_theirs():
    for id in (
        "cuda.gemm_tiled_8x8.v1",
        "cuda.gemm_tiled_64x64.v7",
        "my.gemm_mma_32x32.v1",
        "cuda.gemm_tiled_32x32_mine.v1",
    ):
        assert current(id) == former(id) == id


@pytest.mark.spec("B9")
def test_times_by_former_ids_decide(request):
    registry = aicf.default_registry()
    r = region("gemm", (256, 512), (512, 384), None, None, dtype=f16)
    others = [c.variant for c in select(r, H200, registry).ranked[1:] if c.variant.config]
    for v in rng(request.node.nodeid).choice(others, 3, replace=False):
        times = tuning_of({(r.key, former(v.id)): 0.01}, H200, registry)
        assert select(r, H200, registry, times).kernel_id == v.id


def test_a_plan_with_former_ids_is_read():
    model = nn.Model({"x": aicf.TensorSpec((4096, 1024), "f16")}).add(nn.Linear(1024, 2048))
    plan = aicf.explain_for(model, "h200").plan
    (id,) = {id for id in plan.kernel_ids if "[" in id}
    text = plan.to_json()
    old = type(plan).from_json(text.replace(json.dumps(id), json.dumps(former(id))), aicf.default_registry())
    assert former(id) not in old.to_json() and old.to_json() == text
