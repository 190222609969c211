"""What a run launches is what its plan chose: told by the kernels themselves, not by the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.dispatch import loader
from aicf.registry.registry import KernelRegistry
from aicf.registry.variant import HostCall, KernelVariant

from .chains import rows_of

FEED = {"x": rows_of(4, 5), "y": np.arange(4) % 3}


def trainer(device: str = "cpu", **more) -> aicf.Program:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=4)
    model.add(nn.Linear(5, 7)).add(nn.GELU()).add(nn.Linear(7, 3))
    optimizer = nn.AdamW(lr=nn.schedules.Cosine(0.1, total=10), clip_norm=1.0)
    return aicf.compile(
        model, "train", device=device, loss=nn.SoftmaxCrossEntropy(), optimizer=optimizer, **more
    )


def watched(launched: list[str]) -> KernelRegistry:
    """The default registry, but each kernel of the CPU says its id when it is called."""

    def watch(variant: KernelVariant) -> KernelVariant:
        def build(region, device):
            built = variant.build(region, device)

            def bind(operands, results):
                start = built.bind(operands, results)

                def call():
                    start()
                    launched.append(variant.id)

                return call

            return HostCall.binding(bind) if isinstance(built, HostCall) else built

        return replace(variant, build=build)

    return KernelRegistry(map(watch, aicf.default_registry()))


HOW = pytest.mark.parametrize("how", ["run", "replay"])


@pytest.mark.spec("A11", "B13", "B14")
@HOW
def test_the_kernels_that_run_are_those_that_were_chosen(how):
    launched: list[str] = []
    program = trainer(registry=watched(launched))
    chosen = [r.kernel_id for r in program.compiled().regions if r.kernel_id]
    assert len(set(chosen)) > 3
    for _ in range(3):
        launched.clear()
        getattr(program, how)(FEED)
        assert launched == chosen == list(program.plan.kernel_ids)
        assert program.executed == launched
    program.capture(FEED)
    assert (program.executed, launched) == (chosen, chosen), "capturing launches nothing"


def skip_one(bind):
    """Leaves the second kernel out."""

    def sabotaged(self, kernel_id, *args):
        call = bind(self, kernel_id, *args)
        self.bound = getattr(self, "bound", 0) + 1
        return loader._nothing if self.bound == 2 else call

    return sabotaged


def skip_all(bind):
    return lambda self, *args: loader._nothing


def another(bind):
    """Runs the reference instead of what was chosen for a region of one op."""

    def sabotaged(self, kernel_id, region, *args):
        return bind(self, kernel_id if len(region.ops) > 1 else "cpu.reference.v1", region, *args)

    return sabotaged


@pytest.mark.spec("A11", "B13", "B14")
@HOW
@pytest.mark.parametrize("sabotage", [skip_one, skip_all, another])
def test_a_kernel_that_is_left_out_or_exchanged_shows(how, sabotage, monkeypatch):
    """So that the test above can fail."""
    launched: list[str] = []
    program = trainer(registry=watched(launched))
    monkeypatch.setattr(loader.KernelLoader, "bind", sabotage(loader.KernelLoader.bind))
    getattr(program, how)(FEED)
    assert launched != list(program.plan.kernel_ids)
    assert program.executed == launched


@pytest.mark.spec("B14")
def test_what_has_no_elements_launches_nothing():
    launched: list[str] = []
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=4).add(nn.Linear(5, 7)).add(nn.GELU())
    program = aicf.compile(model, device="cpu", registry=watched(launched))
    program.run({"x": rows_of(0, 5)})
    assert program.executed == launched == []


@pytest.mark.gpu
@pytest.mark.spec("A11", "B13", "B14", "F3")
def test_on_a_gpu_the_driver_names_the_kernels_that_were_chosen(monkeypatch):
    import cuda.core
    from cuda.bindings import driver

    from aicf.cuda_kernels.compiler.engine import kernel_name

    program = trainer("cuda")
    steps = [s for s in program.plan.steps if s.kernel_id]
    built = [program.registry.by_id(s.kernel_id).build(s.region, program.runtime.spec) for s in steps]
    expected = [kernel_name(launch) for launches in built for launch in launches]
    segments = program.capture(FEED).segments
    assert sorted(n for s in segments if s.nodes for n in s.launch.__self__.kernels()) == sorted(expected)
    program.replay(FEED)
    assert program.executed == list(program.plan.kernel_ids)

    started, launch = [], cuda.core.launch

    def seen(stream, config, kernel, *args):
        launch(stream, config, kernel, *args)
        started.append(driver.cuKernelGetName(kernel.handle)[1].decode())

    monkeypatch.setattr(cuda.core, "launch", seen)
    program.run(FEED)
    assert started == expected
    assert program.executed == list(program.plan.kernel_ids)
