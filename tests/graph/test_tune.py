"""Tuning a model (A7, B13): choices by measurement, families that are measured whole, budgets that are kept."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from registry.synthetic import kernel, region, registry_of

import aicf
from aicf import nn
from aicf.cpu_kernels import reference
from aicf.device.runtime import CpuRuntime
from aicf.errors import TuningError
from aicf.graph.compile import Recipe, _asking
from aicf.graph.tune import measure, tune
from aicf.graph.tune.measure import Bench
from aicf.graph.tune.session import families
from aicf.ops.schema import schema_of
from aicf.registry.cost import Cost
from aicf.registry.measured import Measured, Timing
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selector
from aicf.registry.tuning import Tuning

from .tuning_support import CPU, RELU, error, spoiled, tuned, wait

# --- choosing by measurement --------------------------------------------------------------------------------------------


@pytest.mark.spec("A7", "B13")
def test_a_kernel_that_is_slower_than_predicted_is_chosen_no_more():
    registry = registry_of(kernel("cpu.honest.v1", us=5.0), spoiled("cpu.boaster.v1", wait(2e-3), us=1.0))
    report = tuned(registry, RELU)
    assert report.before.plan[0].kernel_id == "cpu.boaster.v1"
    assert report.after.plan[0].kernel_id == "cpu.honest.v1"
    assert report.tuning[RELU.key, "cpu.boaster.v1"] > 2000 > report.tuning[RELU.key, "cpu.honest.v1"]
    (flip,) = report.flips
    assert (flip.before, flip.after) == ("cpu.boaster.v1", "cpu.honest.v1")
    assert report.gain > 2
    assert "relu: cpu.boaster.v1" in str(report) and "times as fast" in str(report)
    assert report.to_json()["changed"][0]["after"] == "cpu.honest.v1"


@pytest.mark.spec("A7")
def test_a_fused_region_that_is_slow_is_split_by_measured_times_on_both_sides():
    alone = kernel("cpu.alone.v1", us=10.0)
    fused = spoiled("cpu.fused.v1", wait(3e-3), us=1.0, signatures=["relu + neg"])
    model = nn.Model({"x": aicf.TensorSpec((8, 8))}).add(nn.ReLU()).add(Negate())
    before = aicf.compile(model, device="cpu", registry=registry_of(alone, fused))
    after = aicf.compile(model, device="cpu", registry=registry_of(alone, fused), tune=5.0)
    assert before.explain().plan.kernel_ids == ("cpu.fused.v1",)
    assert after.explain().plan.kernel_ids == ("cpu.alone.v1", "cpu.alone.v1")
    assert {len(m.region.ops) for m in after.tuning.regions.values()} == {1, 2}
    x = np.random.default_rng().normal(size=(8, 8)).astype(np.float32)
    np.testing.assert_array_equal(after({"x": x})["output"].numpy(), -np.maximum(x, 0))


class Negate(nn.Layer):
    def emit(self, ctx, x):
        return ctx.neg(x)


# --- families and budgets -----------------------------------------------------------------------------------------------


def test_a_family_is_a_region_with_its_parts():
    model = nn.Model({"x": aicf.TensorSpec((8, 8))}).add(nn.ReLU()).add(Negate()).add(nn.Sigmoid())
    registry = registry_of(
        kernel("cpu.alone.v1", us=10.0), kernel("cpu.fused.v1", us=1.0, signatures=["relu + neg"]),
    )  # fmt: skip
    recipe = Recipe(model, "infer")
    ask = _asking(recipe, CPU.spec, registry, frozenset(), (False, False), 1)
    found = families(ask(None).asked)
    names = sorted(sorted(s.region.signature for s in family) for family in found)
    assert names in ([["neg", "relu", "relu + neg"], ["sigmoid"]], [["relu", "relu + neg"], ["sigmoid"]])


class Timed(Bench):
    """A region takes a second, and has the times that were predicted."""

    def __init__(self, registry, fail=lambda region: None):
        self.time, self.measured, self.fail = 0.0, [], fail
        super().__init__(CPU, registry, clock=lambda: self.time)

    def region(self, region, kernels, deadline):
        self.fail(region)
        self.time += 1.0
        self.measured.append(region.signature)
        return Measured(region, {id: Timing(1.0) for id in kernels})


@pytest.mark.spec("A7")
@pytest.mark.parametrize("seconds, done", [(0.5, 0), (1.5, 1), (2.5, 2), (3.5, 3), (99, 3)])
def test_the_time_is_kept_and_what_is_left_is_told(seconds, done):
    registry = registry_of(kernel("cpu.any.v1", us=lambda r: 1.0 * r.results[0].numel))
    regions = [region("relu", (n,)) for n in (30, 10, 20)]
    bench = Timed(registry)
    report = tuned(registry, *regions, seconds=seconds, bench=bench)
    measured = [m.region.results[0].numel for m in report.tuning.regions.values()]
    finished = min(done + (seconds < 99 and done < 3), 3)  # what is begun within the time is finished
    assert sorted(measured) == [10, 20, 30][:finished], "the cheap ones first"
    assert len(report.left) == 3 - finished == len(report.to_json()["left"])
    assert bench.time <= seconds + 1
    if report.left:
        assert f"{3 - finished} region" in str(report) and "want of time" in str(report)


@pytest.mark.spec("A7")
def test_a_family_that_could_not_be_measured_whole_is_left_out_whole():
    alone = kernel("cpu.alone.v1", us=10.0)
    fused = kernel("cpu.fused.v1", us=1.0, signatures=["relu + neg"])
    registry = registry_of(alone, fused)
    model = nn.Model({"x": aicf.TensorSpec((8, 8))}).add(nn.ReLU()).add(Negate())
    ask = _asking(Recipe(model, "infer"), CPU.spec, registry, frozenset(), (False, False), 1)
    count = len(ask(None).asked)
    assert count >= 2
    report = tune(ask, CPU, registry, count - 1.5, bench=Timed(registry))
    assert not report.tuning and len(report.left) == count
    report = tune(ask, CPU, registry, count + 1, bench=Timed(registry))
    assert len(report.tuning.regions) == count and not report.left


@pytest.mark.parametrize("left, samples", [(-1.0, 3), (60.0, 50)])
def test_samples_are_taken_until_the_share_of_the_time_is_spent(left, samples):
    bench = Bench(CPU, registry_of(spoiled("cpu.slow.v1", wait(5e-4))))
    timing = bench.region(RELU, ["cpu.slow.v1"], bench.clock() + left).timings["cpu.slow.v1"]
    assert timing.runs == samples and timing.us > 500


def test_what_is_known_is_not_measured_again():
    registry = registry_of(kernel("cpu.a.v1"), kernel("cpu.b.v1"))
    first = tuned(registry, RELU)
    bench = Timed(registry)
    second = tuned(registry, RELU, region("neg", (5,)), known=first.tuning, bench=bench)
    assert bench.measured == ["neg"]
    assert second.tuning[RELU.key, "cpu.a.v1"] == first.tuning[RELU.key, "cpu.a.v1"]
    registry.add(kernel("cpu.new.v1"))
    bench = Timed(registry)
    tuned(registry, RELU, known=first.tuning, bench=bench)
    assert bench.measured == ["relu"], "a new kernel makes a region unknown"


def test_what_stops_a_session_does_not_lose_what_was_measured():
    registry = registry_of(kernel("cpu.a.v1", us=lambda r: 1e-3 * r.results[0].numel))

    def interrupted(r):
        if r.kind.name == "neg":
            raise KeyboardInterrupt

    report = tuned(registry, RELU, region("neg", (10**6,)), bench=Timed(registry, interrupted))
    assert [m.region for m in report.tuning.regions.values()] == [RELU]
    assert [r.signature for r in report.left] == ["neg"]
    assert "KeyboardInterrupt" in str(report)
    with pytest.raises(KeyboardInterrupt):
        report.usable()


def test_a_kernel_that_breaks_the_device_ends_the_session(monkeypatch):
    registry = registry_of(kernel("cpu.right.v1", us=9.0), spoiled("cpu.wrong.v1", error))

    def lost(self):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")

    monkeypatch.setattr(CpuRuntime, "sync", lost)
    report = tuned(registry, RELU)
    assert isinstance(report.stopped, TuningError)
    assert "cpu.wrong.v1 broke the device" in str(report) and not report.tuning


@pytest.mark.parametrize("seconds", [0, -1, "10", None])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(TuningError, match="no time to tune in"):
        tuned(registry_of(kernel("cpu.a.v1")), RELU, seconds=seconds)


def test_times_without_regions_can_t_be_added_to():
    with pytest.raises(TuningError, match="can't be added to"):
        tuned(registry_of(kernel("cpu.a.v1")), RELU, known={(RELU.key, "cpu.a.v1"): 3.0})


def test_a_time_far_above_the_prediction_is_taken_once_more():
    registry = registry_of(kernel("cpu.a.v1", us=2.0), kernel("cpu.b.v1", us=2.0))

    class Disturbed(Timed):
        def region(self, region, kernels, deadline):
            found = super().region(region, kernels, deadline)
            us = {id: 900.0 if id == "cpu.a.v1" and len(self.measured) == 1 else 3.0 for id in kernels}
            return replace(found, timings={id: Timing(us[id]) for id in kernels})

    bench = Disturbed(registry)
    report = tuned(registry, RELU, seconds=99, bench=bench)
    assert bench.measured == ["relu", "relu"]
    assert dict(report.tuning) == {(RELU.key, "cpu.a.v1"): 3.0, (RELU.key, "cpu.b.v1"): 3.0}


def test_times_far_above_the_predictions_are_told_in_words_and_plain_numbers():
    report = tuned(registry_of(spoiled("cpu.slow.v1", wait(0.01), us=3.0)), RELU)
    said = " ".join(str(report).split())
    times = float(re.search(r"measured, ([\d,]+) times that", said)[1].replace(",", ""))
    assert 3000 < times < 30_000
    assert "doubtful 1 of these is more than 8 times the prediction: most likely the machine was busy" in said
    quick = tuned(registry_of(spoiled("cpu.slow.v1", wait(0.01), us=10_000.0)), RELU)
    assert "doubtful" not in str(quick) and "e+" not in str(report)


def test_a_region_that_can_t_be_set_up_is_skipped_and_the_others_are_measured(monkeypatch):
    registry = registry_of(kernel("cpu.a.v1"))
    allocate = CpuRuntime.allocate

    def small(self, nbytes):
        if nbytes > 10**6:
            raise MemoryError("out of memory")
        return allocate(self, nbytes)

    monkeypatch.setattr(CpuRuntime, "allocate", small)
    report = tuned(registry, RELU, region("neg", (10**6,)))
    assert [m.region for m in report.tuning.regions.values()] == [RELU]
    assert [(r.signature, why) for r, why in report.skipped] == [("neg", "MemoryError('out of memory')")]


@pytest.mark.parametrize("capture_safe", [True, False])
@pytest.mark.parametrize("us, launches", [(3.0, 20), (50.0, 4), (10**5, 1)])
def test_a_sample_on_cuda_is_device_time_per_launch_behind_work_that_keeps_the_device_busy(
    us, launches, capture_safe, monkeypatch
):
    """On a driver that is made up: a queue of work, and events that are passed when their turn comes."""
    log, clock = [], [0.0]
    stamps = {}

    def launch(*on):
        log.append("kernel")
        clock[0] += us

    def record(event, stream):
        log.append(event)
        stamps[event] = clock[0]
        return (0,)

    driver = SimpleNamespace(
        cuEventRecord=record, cuEventSynchronize=lambda event: (0,),
        cuEventElapsedTime=lambda a, b: (0, (stamps[b] - stamps[a]) * 1e-3),
    )  # fmt: skip
    fake = SimpleNamespace(driver=driver, check=lambda result: result[1:], stream=SimpleNamespace(handle=7))
    graphs = []

    def capture(runtime, calls):
        graphs.append(len(calls))
        return SimpleNamespace(launch=lambda: [call("stream") for call in calls])

    monkeypatch.setattr(measure, "capture", capture)
    sample, runs = measure._device_sample(fake, launch, capture_safe, "before", "behind")
    assert runs == launches and graphs == [launches] * capture_safe
    log.clear()
    assert sample() == pytest.approx(us)
    assert log == ["kernel"] * launches + ["before"] + ["kernel"] * launches + ["behind"]


# --- programs -----------------------------------------------------------------------------------------------------------


def mlp() -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=6, seed=3)
    return model.add(nn.Linear(5, 4)).add(nn.ReLU()).add(nn.Linear(4, 3))


TRAIN = {"loss": nn.SoftmaxCrossEntropy(), "optimizer": nn.AdamW(1e-2)}


@pytest.mark.spec("A7", "B13")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_tuned_program_trains_as_the_untuned_one_and_its_tuning_gives_the_same_plan_again(device, tmp_path):
    rng = np.random.default_rng()
    feed = {"x": rng.normal(size=(6, 5)).astype(np.float32), "y": rng.integers(0, 3, 6)}
    program = aicf.compile(mlp(), "train", device=device, **TRAIN, tune=120.0)
    plain = aicf.compile(mlp(), "train", device=device, **TRAIN)
    for _ in range(3):
        np.testing.assert_allclose(program(feed)["loss"].numpy(), plain(feed)["loss"].numpy(), rtol=1e-4)
    tuning = program.tuning
    assert isinstance(tuning, Tuning)
    for step in program.explain().plan.steps:
        if step.kernel_id:
            assert (step.region.key, step.kernel_id) in tuning, step.region.signature
    assert not any(m.refused for m in tuning.regions.values())
    assert "measured" in str(program.explain()) and "predicted" in str(program.explain())
    path = tmp_path / "tuning.json"
    tuning.save(path)
    again = aicf.compile(mlp(), "train", device=device, **TRAIN, tuning=path)
    assert again.explain().plan.key == program.explain().plan.key
    assert again.tuning == tuning
    path.write_text(path.read_text()[:-40])
    with pytest.raises(TuningError, match=r"tuning\.json"):
        aicf.compile(mlp(), "train", device=device, **TRAIN, tuning=str(path))


class Erratic(Bench):
    """Times are anything between the predicted one and a hundred times that, as on a machine with much else to do."""

    def __init__(self, registry, seed):
        self.draw, self.asked = random.Random(seed), 0
        super().__init__(CPU, registry)

    def region(self, region, kernels, deadline):
        self.asked += 1
        predicted = {c.variant.id: c.us for c in Selector(self.registry, CPU.spec).ask(region).ranked}
        return Measured(region, {id: Timing(predicted[id] * 100 ** self.draw.random()) for id in kernels})


@pytest.mark.sample(1)
@pytest.mark.spec("A7", "B13")
@pytest.mark.parametrize("seed", range(5))
def test_every_kernel_of_the_plan_was_measured_however_choices_fall(seed):
    """Each time that comes in may raise regions that nobody had asked about."""
    registry = aicf.default_registry()
    recipe = Recipe(mlp(), "train", TRAIN["loss"], TRAIN["optimizer"])
    ask = _asking(recipe, CPU.spec, registry, frozenset(), (False, False), 1)
    bench = Erratic(registry, seed)
    report = tune(ask, CPU, registry, 1000.0, bench=bench)
    assert all((s.region.key, s.kernel_id) in report.tuning for s in report.after.plan)
    assert report.us_after and not report.left
    assert bench.asked < 5 * len(report.before.asked)


def test_what_measuring_does_not_bring_is_left():
    """A bench that times another kernel than it is asked for."""

    class Elsewhere(Timed):
        def region(self, region, kernels, deadline):
            return Measured(region, {"cpu.other.v1": Timing(1.0)})

    registry = registry_of(kernel("cpu.any.v1"))
    report = tuned(registry, RELU, seconds=99, bench=Elsewhere(registry))
    assert report.left == (RELU,)


@pytest.mark.spec("B13")
def test_the_same_tuning_gives_the_same_plan_whatever_the_order_of_registration():
    variants = list(aicf.default_registry())
    tuning = aicf.compile(mlp(), device="cpu", tune=60.0).tuning
    plans = {
        aicf.compile(mlp(), device="cpu", registry=KernelRegistry(order), tuning=tuning).explain().plan.key
        for order in (variants, variants[::-1])
    }
    assert len(plans) == 1


def test_views_and_empty_tensors_are_not_measured():
    registry = KernelRegistry([reference.Reference])
    report = tuned(registry, region("relu", (0, 3)), region("reshape", (4, 6), shape=(24,)))
    assert not report.tuning and not report.left and not report.skipped


def test_an_op_without_a_reference_is_skipped_and_told(monkeypatch):
    monkeypatch.setattr(schema_of("neg"), "reference_fn", None)
    report = tuned(registry_of(kernel("cpu.a.v1")), region("neg", (3,)))
    assert [(r.signature, why) for r, why in report.skipped] == [("neg", "op neg has no reference")]


def test_predictions_stand_beside_measured_times_in_a_cost():
    assert Cost({"launch": 2.0}).measured(7.0).predicted == 2.0
