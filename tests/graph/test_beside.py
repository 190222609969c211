"""Ops side by side: any number of them is one step of the walk, one region and one launch."""

from __future__ import annotations

import numpy as np
import pytest
from nn.mlp import on_each_device
from pace import least_ratio

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.graph.emit.passes import lower
from aicf.graph.fuse.compose import OpSchedule
from aicf.registry.select import Selector
from aicf.registry.variant import In, Out

from .chains import graph_of
from .forming import form_regions, formed, lowered

SHAPES = [(1 + n % 11,) if n % 3 else (2 + n % 5, 1 + n // 40) for n in range(300)]


RATES = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "decay": 0.0, "c1": 0.1, "c2": 0.01}


class Steps(nn.Layer):
    """Adam's first step of many parameters, maybe with their gradients scaled before."""

    def __init__(self, scaled: bool):
        self.scaled = scaled

    def emit(self, ctx, x):
        rates = [ctx.constant(rate) for rate in RATES.values()]
        names = [[ctx.state(f"{k}{n}", shape, init) for k, init in zip("pgmv", (nn.init.normal(), nn.init.normal(), 0.0, 0.0))]
                 for n, shape in enumerate(SHAPES)]  # fmt: skip
        grads = [g for _, g, _, _ in names]
        if self.scaled:
            factor = ctx.reduce_mean(x)
            grads = [ctx.scale_gradient(g, factor) for g in grads]
        for (p, _, m, v), g in zip(names, grads):
            for old, new in zip((p, m, v), ctx.adam_step(p, g, m, v, *rates)):
                ctx.update(old, new)
        return ctx.copy(x)


def program_of(device, scaled):
    model = nn.Model({"x": aicf.TensorSpec((3, 1))}).add(Steps(scaled), name="steps")
    return aicf.compile(model, "infer", device=device)


@pytest.mark.sample(1)
@on_each_device
@pytest.mark.spec("A13", "C6")
@pytest.mark.parametrize("scaled", [False, True])
def test_300_parameters_of_many_sizes_are_stepped_by_one_launch(device, scaled):
    """Twice, by a run and by a replay, against float64."""
    program = program_of(device, scaled)
    (step,) = [s for s in program.plan.steps if "adam_step" in s.region.signature]
    assert step.region.signature == "scale_gradient ×300 + " * scaled + "adam_step ×300"
    names = {name.rpartition(".")[2]: name for name in program.variables.names()}
    p, g, m, v = ([program.get(names[f"{k}{n}"]).astype(float) for n in range(300)] for k in "pgmv")
    for start in (program.run, program):
        start({"x": np.full((3, 1), 0.25, np.float32)})
        for n in range(300):
            scale = 0.25 * g[n] if scaled else g[n]
            m[n], v[n] = 0.9 * m[n] + 0.1 * scale, 0.99 * v[n] + 0.01 * scale**2
            p[n] -= 0.1 * (m[n] / 0.1) / (np.sqrt(v[n] / 0.01) + 1e-8)
            for k, want in zip("pmv", (p, m, v)):
                np.testing.assert_allclose(
                    program.get(names[f"{k}{n}"]), want[n], rtol=2e-4, atol=2e-5, err_msg=f"{k}{n}"
                )


@pytest.mark.spec("A13")
@pytest.mark.parametrize("scaled", [False, True])
def test_on_cuda_it_is_one_launch_whose_table_names_each_tensor(scaled):
    model = nn.Model({"x": aicf.TensorSpec((3, 1))}).add(Steps(scaled))
    explained = aicf.explain_for(model, "h200", "infer")
    (region,) = [r for r in explained.regions if "adam_step" in r.spec.signature]
    assert region.kernel_id == "cuda.multi_map_table.v1" and len(region.steps) == 1 + scaled
    (launch,) = region.selection.chosen.variant.build(region.spec, preset("h200"))
    (table, _) = launch.args
    named = {e for e in table.entries if isinstance(e, (In, Out))}
    assert named == {*map(In, range(len(region.spec.operands))), *map(Out, range(900))}
    assert "×300" in str(explained)


@pytest.mark.spec("A6", "A13")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_selection_is_linear_in_their_number(device):
    spec, registry = preset(device), aicf.default_registry()

    def steps(count):
        def emit(ctx, x):
            rate = ctx.constant(0.1)
            for n in range(count):
                p, v = (ctx.state(f"{name}{n}", (n + 2,), 1.0) for name in "pv")
                g = ctx.state(f"g{n}", (n + 2,), 1.0)
                for old, new in zip((p, v), ctx.sgd_step(p, g, v, rate, rate, rate)):
                    ctx.update(old, new)
            return ctx.copy(x)

        return lowered(emit, spec.kind)

    def select(ops, graph):
        first, _ = form_regions(ops, graph, Selector(registry, spec))
        assert len(first.spec.ops) == len(ops) - 1

    few, lots = steps(150), steps(600)
    assert least_ratio(lambda: select(*lots), lambda: select(*few), 6.5) < 6.5  # four times as many


@pytest.mark.spec("A13")
@pytest.mark.parametrize("kind", ["convert", "scale", "relu"])
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_other_maps_side_by_side_are_one_launch_too(device, kind):
    def emit(ctx, x):
        made = []
        for n in range(40):
            more = {"convert": {"dtype": aicf.f16}, "scale": {"factor": 3.0}}.get(kind, {})
            made.append(ctx.op(kind, ctx.state(f"s{n}", (n + 2,), 1.0), **more))
        for n, value in enumerate(made):
            ctx.update(ctx.state(f"t{n}", value.shape, 0.0, value.dtype), value)
        return ctx.copy(x)

    regions = [r for r in formed(emit, device=device) if kind in r.spec.signature]
    assert [len(r.spec.ops) for r in regions] == [40]


@pytest.mark.spec("A9", "A13")
def test_those_that_touch_what_others_write_stand_apart():
    """b is read by the third, and then written by the fourth."""

    def emit(ctx, x):
        rate = ctx.constant(0.1)
        state = {
            k: ctx.state(k, (4 + ord(k[1]) - 48,), 1.0)
            for k in ("p0", "g0", "v0", "p1", "g1", "v1", "p2", "v2", "w2")
        }
        b, h = ctx.state("b", (6,), 1.0), ctx.state("h", (6,), 1.0)
        done = [(f"p{n}", f"v{n}", ctx.sgd_step(state[f"p{n}"], b if n == 2 else state[f"g{n}"], state[f"v{n}"], *[rate] * 3))
                for n in range(3)]  # fmt: skip
        for p, v, (new, moved) in done:
            ctx.update(state[p], new)
            ctx.update(state[v], moved)
        for old, new in zip((b, state["w2"]), ctx.sgd_step(b, h, state["w2"], *[rate] * 3)):
            ctx.update(old, new)
        return ctx.copy(x)

    graph = graph_of(emit, "cpu")
    ops = [op for op in lower(graph) if op.kind.name == "sgd_step"]
    assert OpSchedule.of(ops, graph).beside == [3, 3, 3, 4]
