"""Frozen plans and capture (C9, C10, C12, C14, F3): what is captured, what not, and that nothing goes stale."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.foreign import Foreign
from aicf.device.runtime import CpuRuntime
from aicf.device.tensor import SHARED, SMALL
from aicf.errors import FeedError, NoKernelError, VerifyError
from aicf.ir import Role

from .mlp import batch_of, host, mlp, on_each_device, same, trainer

X = batch_of(6)["x"]
ON_GPU = pytest.mark.gpu


def registry_with(id: str, **flags) -> aicf.KernelRegistry:
    """The default registry with other flags on one variant."""
    registry = aicf.default_registry().copy()
    variant = registry.by_id(id)
    registry.remove(id)
    registry.add(replace(variant, **flags))
    return registry


@on_each_device
@pytest.mark.spec("C9", "C14")
def test_capturing_changes_nothing_but_the_cache(device):
    program, plain = trainer(device), trainer(device)
    before = program.state_dict()
    report = program.capture(batch_of(6))
    assert same(program.state_dict(), before)
    assert report.total >= len(program.compiled().plan.kernel_ids)
    for step in range(3):
        assert same(host(program.replay(batch_of(6, seed=step))), host(plain.run(batch_of(6, seed=step))))
    assert same(program.state_dict(), plain.state_dict())
    assert len(program._frozen) == 1


@pytest.mark.spec("C9")
def test_the_cpu_device_says_that_it_has_no_graphs():
    program = aicf.compile(mlp(), device="cpu")
    report = program.capture({"x": X})
    assert report.captured == 0 and report.pinned_bytes == program.plan.peak_bytes
    assert "one by one: the CPU device has no graphs" in str(report)


@ON_GPU
@pytest.mark.spec("F3")
def test_a_plan_is_one_graph():
    report = trainer("cuda").capture(batch_of(6))
    assert report.captured == report.total
    assert len(report.segments) == 1
    assert report.segments[0].nodes >= report.total
    assert report.pinned_bytes > 0


@ON_GPU
@pytest.mark.spec("F3", "C9", "C12")
@pytest.mark.parametrize(
    "optimizer", [nn.AdamW(1e-2), nn.SGD(0.1, momentum=0.9)], ids=lambda o: type(o).__name__
)
def test_many_replays_train_as_many_runs_do(optimizer, monkeypatch):
    """Bit for bit, though kernels of a graph begin while those before still run: weights are updated in place, draws go on."""
    monkeypatch.setenv("AICF_PDL", "graph")

    def made() -> aicf.Program:
        model = nn.Model({"x": aicf.TensorSpec(("batch", 72))}, batch=48, seed=2)
        for inputs, outputs in ((72, 136), (136, 136), (136, 10)):
            model.add(nn.Linear(inputs, outputs)).add(nn.GELU()).add(nn.Dropout(0.2))
        return trainer("cuda", model, optimizer)

    replayed, run = made(), made()
    for step in range(200):
        feed = batch_of(48, seed=step % 7, inputs=72, outputs=10)
        results = replayed.replay(feed), run.run(feed)
        if step % 40 == 39:
            assert same(*map(host, results))
    assert same(replayed.state_dict(), run.state_dict())


@ON_GPU
@pytest.mark.spec("F3", "C9")
def test_off_captures_nothing_and_computes_the_same():
    graphs, none = aicf.compile(mlp(), device="cuda"), aicf.compile(mlp(), device="cuda", capture="off")
    assert none.capture({"x": X}).captured == 0
    assert same(host(graphs.replay({"x": X})), host(none.replay({"x": X})))


@ON_GPU
@pytest.mark.spec("F3")
def test_what_is_not_capture_safe_runs_between_graphs():
    registry = registry_with("cuda.check_labels.v1", capture_safe=False)
    program, plain = trainer("cuda", registry=registry), trainer("cuda")
    report = program.capture(batch_of(6))
    assert 0 < report.captured < report.total
    assert [bool(s.nodes) for s in report.segments] == [True, False, True]
    assert "the variant is not capture-safe" in str(report)
    for step in range(3):
        assert same(host(program.replay(batch_of(6, seed=step))), host(plain.replay(batch_of(6, seed=step))))


@ON_GPU
@pytest.mark.spec("F3", "B7")
def test_strict_capture_chooses_among_capture_safe_variants():
    registry = registry_with("cuda.check_labels.v1", capture_safe=False)
    with pytest.raises(NoKernelError, match=r"check_labels.v1: is not capture-safe, which is required"):
        trainer("cuda", registry=registry, capture="strict")


@pytest.mark.spec("C12", "B7")
def test_deterministic_mode_chooses_among_deterministic_variants():
    registry = registry_with("cpu.gemm_blas.v3", deterministic=False)
    feed = {"x": X}
    free = aicf.compile(mlp(), device="cpu", registry=registry, deterministic=False)
    fixed = aicf.compile(mlp(), device="cpu", registry=registry)
    assert "cpu.gemm_blas.v3" in free.plan.kernel_ids
    assert "cpu.gemm_blas.v3" not in fixed.plan.kernel_ids
    assert "is not deterministic, which is required" in str(fixed.explain().verbose())
    np.testing.assert_allclose(
        free.run(feed)["output"].numpy(), fixed.run(feed)["output"].numpy(), rtol=1e-5, atol=1e-6
    )


@on_each_device
@pytest.mark.spec("C9")
def test_results_outlive_the_next_replay_and_a_small_one_keeps_no_great_one(device):
    model = mlp(sizes=(5, *[32] * 5, 64))
    program = aicf.compile(model, "grad", device=device, loss=nn.SoftmaxCrossEntropy())
    feeds = [batch_of(48, seed=n, outputs=64) for n in range(3)]
    replayed = [program.replay(feed) for feed in feeds]
    for feed, results in zip(feeds, replayed):
        want = program.run(feed)
        assert list(results) == list(want) and same(host(results), host(want))
    for results in (replayed[0], program.run(feeds[0])):
        great = [name for name, result in results.items() if result.spec.nbytes > SMALL]
        small = {id(r.owner): r.owner for name, r in results.items() if name not in great}
        assert "output" in great and "loss" not in great
        assert len({id(r.owner) for r in results.values()}) == len(great) + len(small)
        assert len(small) == 2  # 21 KB of gradients, and the loss
        assert all(memory.nbytes <= SHARED for memory in small.values())


@pytest.mark.spec("C9", "C14")
@pytest.mark.parametrize("copied", [("input",), ("input", "param"), ()])
def test_only_a_replay_reads_its_feeds_and_once(copied, monkeypatch):
    """Strided, so that it is staged whatever its role."""
    strided, read, write = np.repeat(X, 2, axis=1)[:, ::2], [], CpuRuntime.write

    def seen(self, target, source, on=None):
        read.append(source)
        write(self, target, source, on)

    program = aicf.compile(mlp(), device="cpu", copy_roles=copied)
    params = len(program.variables.names(Role.param)) if "param" in copied else 0
    monkeypatch.setattr(CpuRuntime, "write", seen)
    program.capture({"x": strided})
    assert not read
    for _ in range(2):
        read.clear()
        results = program.replay({"x": strided})
        assert len(read) == 1 + params
    assert same(host(results), host(program.run({"x": X})))


@pytest.mark.spec("C11")
def test_what_training_ignores_in_a_feed_is_ordered_by_no_replay(monkeypatch):
    program, ordered, before = trainer("cpu"), [], CpuRuntime.ordered

    def seen(self, fed):
        ordered.append(list(fed))
        return before(self, ordered[-1])

    monkeypatch.setattr(CpuRuntime, "ordered", seen)
    for _ in range(2):  # the second feed is one like a feed that was checked before
        program.replay({"0.weight": "no tensor", **batch_of(6)})
    assert [[type(f) for f in fed] for fed in ordered] == [[Foreign, Foreign]] * 2


# --- failures ---------------------------------------------------------------------------------------------------------


def break_one_call(program: aicf.Program, feed: dict, monkeypatch: pytest.MonkeyPatch, breaks) -> None:
    """Make the second call of the next bound plan fail, on the stream of a capture only."""
    bind = program._executor.bind

    def broken(*args, **more):
        bound = bind(*args, **more)
        step, call = bound.calls[1]

        def fails(*on):
            if on:
                breaks(program.runtime, on[0])
            call(*on)

        bound.calls[1] = (step, fails)
        return bound

    monkeypatch.setattr(program._executor, "bind", broken)


def raise_in_python(runtime, stream):
    raise RuntimeError("a bug in a launcher")


def invalidate(runtime, stream):
    runtime.check(runtime.driver.cuStreamSynchronize(stream.handle))  # not allowed while capturing


@ON_GPU
@pytest.mark.spec("F3", "C9")
@pytest.mark.parametrize("breaks, seen", [(raise_in_python, "a bug in a launcher"), (invalidate, "CAPTURE")])
def test_a_failure_inside_capture_leaves_everything_usable(breaks, seen, monkeypatch):
    program, plain = trainer("cuda"), trainer("cuda")
    with monkeypatch.context() as patch:
        break_one_call(program, batch_of(6), patch, breaks)
        report = program.capture(batch_of(6))
    assert report.captured == 0
    assert seen in str(report)
    for step in range(3):  # it replays one by one, and eager runs work
        feed = batch_of(6, seed=step)
        assert same(host((program.replay, program.run)[step % 2](feed)), host(plain.run(feed)))
    assert program.capture(batch_of(5)).captured > 0  # and the next capture works


@ON_GPU
@pytest.mark.spec("F3")
def test_strict_capture_raises_what_failed(monkeypatch):
    program = trainer("cuda", capture="strict")
    break_one_call(program, batch_of(6), monkeypatch, raise_in_python)
    with pytest.raises(
        aicf.errors.CaptureError, match=r"failed while it was captured(.|\n)*a bug in a launcher"
    ):
        program.capture(batch_of(6))
    assert np.isfinite(float(program.run(batch_of(6))["loss"]))


# --- roles ------------------------------------------------------------------------------------------------------------


@on_each_device
@pytest.mark.spec("C10")
def test_a_moved_static_input_is_frozen_anew_or_refused(device):
    rt = aicf.runtime(device)
    fixed, other = (rt.upload(x, aicf.TensorSpec(x.shape, device=device)) for x in (X, X + 1))
    program = aicf.compile(mlp(), device=device, copy_roles=())
    want = [host(program.run({"x": t})) for t in (fixed, other)]
    for _ in range(2):
        assert same(host(program.replay({"x": fixed})), want[0])
        assert same(host(program.replay({"x": other})), want[1])
    strict = aicf.compile(
        mlp(), device=device, copy_roles=(), capture="strict" if device == "cuda" else "off"
    )
    strict.replay({"x": fixed})
    with pytest.raises(FeedError, match="a static input moved: x was captured at 0x"):
        strict.replay({"x": other})


@on_each_device
@pytest.mark.spec("C9", "C10")
def test_a_tensor_that_is_freed_after_capture_corrupts_nothing(device):
    rt = aicf.runtime(device)
    program = aicf.compile(mlp(), device=device, copy_roles=())
    fed = rt.upload(X, aicf.TensorSpec(X.shape, device=device))
    want = host(program.replay({"x": fed}))
    again = replace(aicf.device.interop.adopt(fed), owner=None)  # the frozen plan alone keeps it
    del fed
    gc.collect()
    garbage = [rt.upload(X * np.nan, aicf.TensorSpec(X.shape, device=device)) for _ in range(20)]
    assert all(g.ptr != again.ptr for g in garbage)
    assert same(host(program.replay({"x": again})), want)


@on_each_device
@pytest.mark.spec("C9", "C10")
@pytest.mark.parametrize("capture", ["auto", "off"])
def test_a_static_input_that_had_to_be_staged_is_read_by_each_replay(device, capture):
    """A view with strides, and an array of the host: the caller goes on to write to both."""
    program = aicf.compile(mlp(), device=device, copy_roles=(), capture=capture)
    view = np.zeros((len(X), X.shape[1] + 4), X.dtype)[:, 2:-2]
    for x in (X, X + 1):
        view[...] = x
        assert same(host(program.replay({"x": view})), host(program.run({"x": X * 0 + x})))


@pytest.mark.spec("C9", "C10")
def test_a_static_input_with_other_strides_is_another_one():
    memory = np.random.default_rng().normal(size=12 * X.size).astype(X.dtype)
    dense = memory[: X.size].reshape(X.shape)
    apart = np.lib.stride_tricks.as_strided(memory, X.shape, (2 * X.shape[1] * X.itemsize, X.itemsize))
    program = aicf.compile(mlp(), device="cpu", copy_roles=())
    for x in (dense, apart, dense):
        assert same(host(program.replay({"x": x})), host(program.run({"x": x.copy()})))
    held = aicf.compile(mlp(), device="cpu", copy_roles=(), capture="off")
    held.replay({"x": dense})
    with pytest.raises(FeedError, match="x was captured with strides"):
        held.replay({"x": apart})


@on_each_device
@pytest.mark.spec("C10")
def test_copied_params_follow_the_feed_and_else_the_variables(device):
    program = aicf.compile(mlp(), device=device, copy_roles=("input", "param"))
    other = {"2.bias": program.get("2.bias") + 1}
    plain = host(program.replay({"x": X}))["output"]
    moved = host(program.replay({"x": X, **other}))["output"]
    np.testing.assert_allclose(moved, plain + 1, rtol=1e-5, atol=1e-6)
    assert same(host(program.replay({"x": X})), {"output": plain})


@pytest.mark.spec("C10")
@pytest.mark.parametrize(
    "mode, more, message",
    [
        ("infer", {"copy_roles": ("inputs",)}, "'inputs' is no role"),
        (
            "infer",
            {"copy_roles": ("input",), "static_roles": ("input", "param", "state")},
            "either static or copied",
        ),
        ("infer", {"copy_roles": (), "static_roles": ("param",)}, "either static or copied"),
        ("train", {"copy_roles": ("input", "param")}, r"copy_roles=\{input, param\} in train mode"),
        ("infer", {"capture": "maybe"}, "capture='maybe'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(mode, more, message):
    loss = {"loss": nn.SoftmaxCrossEntropy(), "optimizer": nn.SGD(0.1)} if mode == "train" else {}
    with pytest.raises(VerifyError, match=message):
        aicf.compile(mlp(), mode, device="cpu", **loss, **more)


def test_naming_one_set_of_roles_determines_the_other():
    program = aicf.compile(mlp(), device="cpu", static_roles=("param", "state"))
    assert program.policy.copy_roles == {Role.input}
