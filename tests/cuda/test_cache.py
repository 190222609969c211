"""Compiled kernels on disk: damaged entries, several writers, processes without numba; helper processes."""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import subprocess
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cache_support import ADD, TARGET, finish, key_of, launch_of, start
from helper_calls import build, build_nothing, wrote
from kernel_cases import FIRST, VARIANTS, region

import aicf
from aicf import progress
from aicf.code_cache import disk
from aicf.cuda_kernels.compiler import cache, engine, workers
from aicf.cuda_kernels.compiler.compile import CompiledKernel
from aicf.device.spec import preset
from aicf.dispatch import KernelLoader
from aicf.errors import KernelCompileError
from aicf.registry.variant import Launch

H200 = preset("h200")
FAKE = CompiledKernel("aicf_fake", TARGET, b"\x7fELF" + bytes(range(256)), "Used 8 registers\n", registers=8)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, on, empty and of this test alone; memory is empty too."""
    monkeypatch.setenv("AICF_CACHE", "on")
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(engine, "_COMPILED", {})
    return tmp_path / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is compiled; the names of the kernels that would have been."""
    names: list[str] = []

    def pretend(launch: Launch, region: Any, target: str, kernel_id: str = "") -> CompiledKernel:
        names.append(launch.body.__name__)
        return dataclasses.replace(FAKE, name=engine.kernel_name(launch), target=target)

    monkeypatch.setattr(engine, "compile_kernel", pretend)
    return names


# --- entries ------------------------------------------------------------------------------------------------------------


def kernel_in(path: Path) -> CompiledKernel:
    code, facts = disk.decode(path.read_bytes(), path.name)
    return CompiledKernel(cubin=code, **facts)


def test_an_entry_holds_all_of_a_kernel(folder):
    cache.store("key", FAKE)
    (path,) = folder.iterdir()
    assert kernel_in(path) == cache.load("key") == FAKE


def add_launch() -> Launch:
    (launch,) = VARIANTS["cuda.elementwise_flat.v1"].build(ADD, H200)
    return launch


def test_a_kernel_is_compiled_once_for_all_processes(folder, compiled, monkeypatch):
    first = engine.compile_launch(add_launch(), ADD, TARGET)
    monkeypatch.setattr(engine, "_COMPILED", {})  # as in a new process
    assert engine.compile_launch(add_launch(), ADD, TARGET) == first
    assert engine.compile_launch(add_launch(), ADD, "sm_80") != first
    assert compiled == ["elementwise_flat1_add"] * 2
    assert [path.suffix for path in folder.iterdir()] == [".kernel"] * 2


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:10], lambda data: data[:25], lambda data: data[:-1], lambda data: data + b"\0",
    lambda data: bytes(len(data)), lambda data: b"not an entry at all",
    *(lambda data, at=at: flipped(data, at) for at in (0, 9, 20, 31, 40, -300, -1)),
])  # fmt: skip
def test_a_damaged_entry_is_noticed_and_made_again(folder, compiled, damage, monkeypatch, caplog):
    kernel = engine.compile_launch(add_launch(), ADD, TARGET)
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):
        monkeypatch.setattr(engine, "_COMPILED", {})
        assert engine.compile_launch(add_launch(), ADD, TARGET) == kernel
    assert len(compiled) == 2  # the second time it was whole again
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "is damaged" in caplog.text
    assert kernel_in(path) == kernel and list(folder.iterdir()) == [path]


def test_an_entry_of_another_version_is_made_again(folder, compiled, monkeypatch, caplog):
    engine.compile_launch(add_launch(), ADD, TARGET)
    (path,) = folder.iterdir()
    monkeypatch.setattr(disk, "MAGIC", b"aicf kernel 3\n")
    assert cache.load(path.stem) is None and not path.exists() and not caplog.records


def test_a_folder_that_cannot_be_used_costs_one_warning(tmp_path, compiled, monkeypatch, caplog):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("AICF_CACHE", "on")
    monkeypatch.setenv("AICF_CACHE_DIR", str(file / "cache"))
    monkeypatch.setattr(engine, "_COMPILED", {})
    for target in ("sm_80", "sm_90a"):
        assert engine.compile_launch(add_launch(), ADD, target).target == target
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "AICF_CACHE_DIR" in record.getMessage()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path, compiled, monkeypatch, caplog):
    tmp_path.chmod(0o500)
    monkeypatch.setenv("AICF_CACHE", "on")
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(engine, "_COMPILED", {})
    engine.compile_launch(add_launch(), ADD, TARGET)
    assert len(caplog.records) == 1


def test_bodies_that_depend_on_more_than_data_and_code_have_no_key(folder, compiled):
    thing = object()

    def body(x, y, n):
        y[0] = thing

    assert key_of(launch_of(body)) is None
    engine.compile_launch(launch_of(body), ADD, TARGET)
    engine.compile_launch(launch_of(body), ADD, TARGET)
    assert compiled == ["body"] and not folder.exists()  # kept in memory, by the body itself


def test_off(folder, compiled, monkeypatch):
    monkeypatch.setenv("AICF_CACHE", "off")
    engine.compile_launch(add_launch(), ADD, TARGET)
    assert not folder.exists() and compiled


def test_what_was_not_used_for_longest_goes_first(folder):
    names = [f"{i:032}" for i in range(5)]
    for i, name in enumerate(names):
        cache.store(name, FAKE)
        os.utime(folder / f"{name}.kernel", (i, i))
    assert cache.load(names[0]) == FAKE  # used now
    size = (folder / f"{names[0]}.kernel").stat().st_size
    disk.trim(folder, 3 * size)
    assert {path.stem for path in folder.iterdir()} == {names[0], names[3], names[4]}
    assert disk.size(folder) == ({disk.KERNEL: 3}, 3 * size)
    assert disk.clear(folder) == 3 and disk.size(folder) == ({}, 0)


def test_threads_that_write_and_read_one_entry(folder):
    def work(i: int) -> bool:
        cache.store("key", FAKE)
        return cache.load("key") == FAKE

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
    assert [path.name for path in folder.iterdir()] == ["key.kernel"]


# --- processes ----------------------------------------------------------------------------------------------------------

COMPILE = """
import json, sys
from kernel_cases import FIRST, VARIANTS
from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import preset

work = []
for case in FIRST[:2]:
    for launch in VARIANTS[case.variant].build(case.region, preset("h200")):
        work.append((launch, case.region))
{barrier}
made = [engine.compile_launch(launch, region, "sm_90a") for launch, region in work]
brought = sorted({{name.split(".")[0] for name in sys.modules}} & {{"numba", "llvmlite", "cuda", "numba_cuda"}})
print(json.dumps([brought, [[k.name, k.registers, k.cubin.hex()] for k in made]]))
"""


BARRIER = """
import os, time
from pathlib import Path
meeting = Path(os.environ["AICF_CACHE_DIR"])
(meeting / str(os.getpid())).touch()
while len(list(meeting.iterdir())) < 2:
    time.sleep(0.001)
"""


@pytest.mark.sample(1, pool="processes")
def test_processes_compile_into_one_cache_and_later_ones_import_no_numba(folder):
    """Two that begin at once with nothing, then one that finds everything."""
    both = [start(COMPILE.format(barrier=BARRIER)) for _ in range(2)]
    (brought, first), (_, second) = map(finish, both)
    assert first == second and "numba" in brought
    entries = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(entries) == len(first) and all(name.endswith(".kernel") for name in entries)
    brought, third = finish(start(COMPILE.format(barrier="")))
    assert brought == [] and third == first
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == entries


TRAIN = """
import json, sys, time
import numpy as np
import aicf

model = aicf.nn.Model({"x": aicf.TensorSpec(("batch", 6))}, batch=8)
model.add(aicf.nn.Linear(6, 5)).add(aicf.nn.ReLU()).add(aicf.nn.Linear(5, 3))
loss, optimizer = aicf.nn.SoftmaxCrossEntropy(), aicf.nn.AdamW(0.01)
program = aicf.compile(model, mode="train", device="cuda", loss=loss, optimizer=optimizer)
feed = {"x": np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32), "y": np.arange(8, dtype=np.int64) % 3}
losses = [float(program(feed)["loss"].numpy()) for _ in range(5)]
print(json.dumps([losses, "numba" in sys.modules or "llvmlite" in sys.modules]))
"""


@pytest.mark.gpu
def test_a_second_process_trains_without_numba(folder):
    first, second = (finish(start(TRAIN)) for _ in range(2))
    assert first[1] and not second[1]
    assert first[0] == second[0]


# --- helper processes ---------------------------------------------------------------------------------------------------

KERNELS = [(c.variant, c.region, VARIANTS[c.variant].build(c.region, H200)) for c in FIRST[:4]]


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.sample(1, pool="processes")
def test_helpers_do_what_this_process_does_not(folder, compiled, monkeypatch):
    pretend = engine.compile_kernel

    def wait_for_the_helper(*args: Any) -> CompiledKernel:
        wait_for(lambda: folder.exists() and len(list(folder.glob("*.kernel"))) == len(KERNELS) - 1)
        return pretend(*args)

    monkeypatch.setattr(engine, "compile_kernel", wait_for_the_helper)
    monkeypatch.setattr(workers, "helpers_for", lambda calls: 1)
    told = []

    class Seen(progress.Kernels):
        def compiling(self, what: str) -> None:
            told.append((self.done, self.total, what))

    monkeypatch.setattr(progress, "Kernels", Seen)
    engine.precompile(KERNELS, TARGET, build)
    assert {(total, kernel_id) for _, total, kernel_id in told} <= {(len(KERNELS), id) for id, *_ in KERNELS}
    assert max(done for done, *_ in told) == len(KERNELS) and min(done for done, *_ in told) == 0
    assert len(compiled) == 1 and len(engine._COMPILED) == len(KERNELS)
    made = [engine.compile_launch(launch, r, TARGET) for _, r, (launch,) in KERNELS]
    assert sum(kernel.cubin != FAKE.cubin for kernel in made) == len(KERNELS) - 1 and len(compiled) == 1
    assert {kernel.name for kernel in made} == {engine.kernel_name(launch) for _, _, (launch,) in KERNELS}
    engine.precompile(KERNELS, TARGET, build_nothing)  # nothing is missing, so nobody is asked


def test_what_helpers_can_not_build_is_left_for_later(folder, compiled, monkeypatch):
    monkeypatch.setattr(workers, "helpers_for", lambda calls: 1)
    engine.precompile(KERNELS, TARGET, build_nothing)
    for kernel_id, r, (launch,) in KERNELS:
        assert engine.compile_launch(launch, r, TARGET, kernel_id).cubin == FAKE.cubin
    assert len(compiled) == len(KERNELS)


def test_a_helper_that_dies_or_can_not_start_does_no_harm(monkeypatch):
    done: list[int] = []
    calls = [functools.partial(os._exit, 3)] * 4
    started = subprocess.Popen

    def here(i: int) -> None:
        if not done and helpers:
            wait_for(lambda: helpers[0].poll() is not None)
        done.append(i)

    helpers: list[subprocess.Popen] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: helpers.append(started(*a, **k)) or helpers[-1])
    assert workers.share(calls, here, 1) == []
    assert len(done) == 3  # one went down with the helper; whoever needs it makes it

    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    done.clear(), helpers.clear()
    assert workers.share(calls, here, 1) == [] and len(done) == 4


def test_a_plans_kernels_are_compiled_before_they_are_bound(monkeypatch):
    """Those that run; and a helper that is handed the loader's function makes the same ones."""
    asked: list[Any] = []
    monkeypatch.setattr(engine, "precompile", lambda *args: asked.append(args))
    loader = KernelLoader(aicf.default_registry(), types.SimpleNamespace(kind="cuda", spec=H200))
    empty = ("cuda.elementwise_flat.v1", region("relu", (0, 3)))
    for _ in range(2):
        loader.prepare([*((kernel_id, r) for kernel_id, r, _ in KERNELS), empty])
    (kernels, target, build), (nothing, *_) = asked
    assert (kernels, target, nothing) == (KERNELS, TARGET, [])
    build = pickle.loads(pickle.dumps(build))
    for kernel_id, r, launches in KERNELS:
        assert [key_of(made, r=r) for made in build(kernel_id, r)] == [key_of(made, r=r) for made in launches]


def test_an_error_here_ends_the_helpers():
    def fail(i: int) -> None:
        raise KernelCompileError("no")

    with pytest.raises(KernelCompileError):
        workers.share([functools.partial(time.sleep, 60)] * 2, fail, 1)


# --- in the background ------------------------------------------------------------------------------------------------


def test_kernels_are_compiled_while_this_process_goes_on(folder, compiled, monkeypatch):
    monkeypatch.setattr(workers, "background_for", lambda calls: min(2, calls))
    waits = [engine.begin(KERNELS, TARGET, build) for _ in range(2)]  # the second asks for nothing anew
    assert len(engine._UNDERWAY) == len(KERNELS)
    for wait in waits:
        wait()
    made = [engine.compile_launch(launch, r, TARGET) for _, r, (launch,) in KERNELS]
    assert compiled == [] and all(kernel.cubin != FAKE.cubin for kernel in made)
    assert engine._UNDERWAY == {} and len(list(folder.glob("*.kernel"))) == len(KERNELS)
    engine.begin(KERNELS, TARGET, build_nothing)()


def test_what_the_background_can_not_build_or_has_no_cores_for_is_left_for_later(
    folder, compiled, monkeypatch
):
    for helpers in (1, 0):
        monkeypatch.setattr(workers, "background_for", lambda calls, n=helpers: n)
        engine.begin(KERNELS, TARGET, build_nothing)()
    for kernel_id, r, (launch,) in KERNELS:
        assert engine.compile_launch(launch, r, TARGET, kernel_id).cubin == FAKE.cubin
    assert len(compiled) == len(KERNELS) and engine._UNDERWAY == {}


@pytest.mark.sample(1, pool="processes")
def test_calls_of_most_weight_are_done_first_and_idle_helpers_end(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "IDLE", 0.2)
    background, path = workers.Background(), str(tmp_path / "order")
    calls = [(weight, functools.partial(wrote, path, str(weight))) for weight in (2, 9, 4, 9, 1)]
    assert [future.result() for future in background.submit(calls, 1)] == [["2"], ["9"], ["4"], ["9"], ["1"]]
    assert Path(path).read_text() == "99421"
    wait_for(lambda: background._helpers == 0)
    assert [f.result() for f in background.submit(calls[:1], 3)] == [["2"]]  # another one is started


@pytest.mark.sample(1, pool="processes")
def test_a_helper_in_the_background_that_dies_or_can_not_start_does_no_harm(tmp_path, monkeypatch):
    background = workers.Background()
    fatal = [(1, functools.partial(os._exit, 3))] * 2
    assert [future.result() for future in background.submit(fatal, 1)] == [[], []]
    wait_for(lambda: background._helpers == 0)
    path = str(tmp_path / "later")
    assert background.submit([(1, functools.partial(wrote, path, "x"))], 1)[0].result() == ["x"]
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert [future.result() for future in workers.Background().submit(fatal, 2)] == [[], []]


def test_few_kernels_or_few_cores_get_no_helpers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16), raising=False)
    assert [workers.helpers_for(n) for n in (0, 5, 6, 100)] == [0, 0, 2, 7]
    assert [workers.background_for(n) for n in (0, 1, 100)] == [0, 1, 15]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2), raising=False)
    assert workers.helpers_for(100) == workers.background_for(100) == 0
