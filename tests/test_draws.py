"""What draws cases, and what runs them: one seed for all processes, failures found and shrunk, crashes and hangs survived."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from draws import devices, graphs, kinds, ops, training
from draws.gradients import check as check_gradient
from draws.gradients import draw as draw_gradient
from draws.layouts import LAYOUTS, laid, poisoned, strayed
from draws.seeds import VARIABLE, rng, run_seed, seeded

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import preset
from aicf.ops.schema import schema_of
from aicf.types import f32

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import fuzz


def test_processes_draw_the_same():
    text = "import sys; sys.path.append('tests'); from draws.seeds import rng; print(rng('a', 1).integers(2**31))"
    env = {**os.environ, VARIABLE: run_seed()}
    made = subprocess.run(
        [sys.executable, "-c", text], cwd=Path(__file__).parents[1], env=env, capture_output=True, text=True
    )
    assert int(made.stdout) == rng("a", 1).integers(2**31) != rng("a", 2).integers(2**31)


def test_a_layout_has_the_values_and_shows_what_strays():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    for layout in LAYOUTS:
        found = laid(values, layout)
        assert np.array_equal(found.array, values[:1].repeat(3, 0) if layout == "expanded" else values)
        assert found.desc("cpu").stride == tuple(s // 4 for s in found.array.strides)
    result = poisoned((3, 4), f32, "padded")
    result.array[...] = 1
    assert not strayed(result)
    result.memory[result.start + 4] = 1
    assert strayed(result)


def test_a_kernel_that_is_wrong_is_found_and_shrunk(monkeypatch):
    """A reference that is off by one stands for a kernel that is."""
    monkeypatch.setattr(schema_of("square"), "reference_fn", lambda x: x * x + 1)
    found = [c for n in range(4) if (c := ops.draw(seeded("square", n), "cpu", "square")) and ops.check(c)]
    assert found
    case = found[0]
    while other := next(filter(ops.check, ops.smaller(case)), None):
        case = other
    assert (
        case.shapes in ((()), ((),), ((1,),))
        and case.layouts == ("dense",)
        and "def run(" in ops.script(case)
    )


def test_a_gradient_rule_that_is_wrong_is_found(monkeypatch):
    monkeypatch.setattr(schema_of("tanh"), "gradient_fn", lambda emit, dy, x: dy)
    cases = [c for n in range(6) if (c := draw_gradient(seeded("tanh", n), op="tanh"))]
    assert any(map(check_gradient, cases))


class Pretended:
    """A runtime whose device memory is the host's; its kernel is NumPy's square."""

    kind, spec, stream = "cuda", preset("h200"), None

    def __init__(self):
        self.memories = []

    def allocate(self, nbytes):
        self.memories.append(np.zeros(nbytes, np.uint8))
        return SimpleNamespace(ptr=self.memories[-1].ctypes.data)

    def copy(self, target, source, nbytes):
        ctypes.memmove(target, source, nbytes)

    def current(self):
        return contextlib.nullcontext()

    def sync(self):
        pass

    def bind(self, start, stream, ins, outs, workspace):
        region = start

        def run():
            x, y = (
                np.lib.stride_tricks.as_strided(
                    np.ctypeslib.as_array((ctypes.c_float * 10**4).from_address(p)),
                    t.shape,
                    [4 * s for s in t.stride],
                )
                for p, t in zip((*ins, *outs), (*region.operands, *region.results))
            )
            y[...] = x * x

        return run


def test_memory_of_a_gpu_is_copied_there_and_back(monkeypatch):
    """Without a GPU: starts, strides and guards reach the kernel, and results come back."""
    gpu = Pretended()
    monkeypatch.setattr(devices, "runtime", lambda name: gpu)
    monkeypatch.setattr(devices, "cuda_missing", lambda: None)
    monkeypatch.setattr(engine, "prepare", lambda launch, region, id: region)
    monkeypatch.setattr(engine, "bind", gpu.bind)
    monkeypatch.setattr(devices.default_registry(), "variants", lambda kind: [SQUARE])
    devices.device.cache_clear()
    base = ops.OpCase("square", (f32,), ((5, 7),), (), ("dense",), seed=3)
    try:
        for layout in LAYOUTS:
            for results in ("dense", "offset", "padded", "stepped"):
                assert ops.check(replace(base, layouts=(layout,), results=results), "cuda") is None
        assert "differ" in (ops.check(replace(base, op="abs"), "cuda") or "")
    finally:
        devices.device.cache_clear()
    assert gpu.memories


SQUARE = SimpleNamespace(
    id="cuda.square.v1", device="cuda", supported=lambda region, device: None, build=lambda region, device: [region],
    query_workspace=lambda region, device: 0,
)  # fmt: skip


def test_a_program_s_gradient_that_is_wrong_is_found(monkeypatch):
    cases = [c for n in range(40) if (c := training.draw(seeded("training", n))) and len(c.program.steps) < 3]
    assert training.check(cases[0]) is None
    monkeypatch.setattr(
        schema_of("square"), "gradient_fn", lambda emit, dy, x: emit.mul(dy, x)
    )  # without the factor 2
    assert any("gradient of" in (training.check(c) or "") for c in cases)


def test_programs_that_are_trained_have_gradients():
    """The loss of each draw is differentiated; nothing is compiled for the host."""
    cases = [c for n in range(30) if (c := training.draw(rng("trained", n))) is not None]
    for case in cases:
        aicf.compile(training.Trained(case.program), "grad", device="cpu", loss=training.MeanOfSquares())
    assert cases


def test_every_kind_draws_and_has_a_script():
    for name, kind in kinds().items():
        case = next(c for n in range(50) if (c := kind.draw(seeded(name, n), "cpu")) is not None)
        assert str(case)
        compile(kind.script(case, "cpu"), name, "exec")
        assert all(type(other) is type(case) for other, _ in zip(kind.smaller(case), range(3)))


def test_a_program_of_a_graph_runs_and_prints_what_numpy_computes(tmp_path):
    (tmp_path / "case.py").write_text(graphs.script(graphs.drawn(3, 4), "cpu"))
    made = subprocess.run([sys.executable, "case.py"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0 and "expected" in made.stdout, made.stderr


def test_a_process_that_dies_or_hangs_is_one_failure(tmp_path):
    worker = fuzz.Worker("cpu", str(tmp_path / "log"), timeout=120)
    worker.process = SimpleNamespace(join=lambda *_: None, kill=lambda: None, exitcode=-11)
    worker.pipe = SimpleNamespace(
        send=lambda _: None,
        poll=lambda _: True,
        recv=lambda: (_ for _ in ()).throw(EOFError),
        close=lambda: None,
    )
    with pytest.raises(fuzz.Died, match="crash: the process ended with status -11"):
        worker("check", "ops", None)
    worker.process = SimpleNamespace(join=lambda *_: None, kill=lambda: None, exitcode=None)
    worker.pipe = SimpleNamespace(send=lambda _: None, poll=lambda _: False, close=lambda: None)
    with pytest.raises(fuzz.Died, match="hang: no answer in 120 s"):
        worker("check", "ops", None)


@pytest.mark.sample(1, pool="processes")
@pytest.mark.parametrize("device", [[], ["--device", "cuda", "--dry-run"]], ids=["cpu", "dry"])
def test_a_run_counts_cases_and_ends_in_time(tmp_path, device):
    started = time.monotonic()
    command = [
        sys.executable,
        "tools/fuzz.py",
        "--minutes",
        "0.02",
        "--seed",
        "1",
        "--only",
        "ops",
        "--op",
        "copy",
        "--out",
        str(tmp_path),
    ]
    made = subprocess.run([*command, *device], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    first, *_, head, counts = made.stdout.strip().split("\n")
    assert first.startswith("seed 1: ") and head.split() == [
        "kind",
        "cases",
        "failures",
        "refused",
        "seconds",
    ]
    assert counts.split()[0] == "ops" and int(counts.split()[1]) > 0 and time.monotonic() - started < 300
