"""Compiled kernels on disk: what a key depends on, damaged entries, several writers, processes without numba."""

from __future__ import annotations

import dataclasses
import dis
import functools
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_cases import FIRST, VARIANTS, region

import aicf
from aicf.cuda_kernels import cache, dsl, engine, keys, workers
from aicf.cuda_kernels.compile import CompiledKernel
from aicf.device.spec import preset
from aicf.dispatch import KernelLoader
from aicf.errors import KernelCompileError
from aicf.registry.variant import In, Launch, Num, Out
from aicf.types import f32, i32

H200 = preset("h200")
TARGET = "sm_90a"
ADD = region("add", (8,), (8,))
FAKE = CompiledKernel("aicf_fake", TARGET, b"\x7fELF" + bytes(range(256)), "Used 8 registers\n", registers=8)
PATHS = [str(Path(aicf.__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]


def start(code: str, **env: str) -> subprocess.Popen:
    """Python in a process of its own that finds aicf and this folder."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), **env}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def finish(process: subprocess.Popen) -> Any:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


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


EIGHT = Num(8)


def launch_of(body: Callable[..., None], block: tuple[int, ...] = (32,), number: Num = EIGHT) -> Launch:
    return Launch(body, (1,), block, (In(0), Out(0), number))


def key_of(launch: Launch, target: str = TARGET, r: Any = ADD) -> str | None:
    return keys.kernel_key(launch, engine.signature_of(launch, r), target)


# --- keys: bodies -------------------------------------------------------------------------------------------------------

HELPERS = """
def third(x):
    return x / 3
"""
NOTEBOOK = """
import functools
import numpy as np
from numba import cuda as numba_cuda
from aicf.cuda_kernels.dsl import cuda, deferred, device, float32, intrinsic, types
import notebook_helpers

FACTOR = 2
TABLE = np.array([1.0, 2.0])

@device
def twice(x):
    return x + x

@numba_cuda.jit(device=True)
def jitted(x):
    return x - 1

def emit(b, x):
    return b.fneg(x)

@deferred
def negate(times):
    @intrinsic
    def neg(typing, x):
        def codegen(ctx, b, sig, args):
            return emit(b, args[0])
        return x(x), codegen
    return neg

@functools.cache
def make(offset, negative):
    def kernel(x, y, n, limit=100):
        i = cuda.grid(1)
        if i < n and i < limit:
            v = twice(x[i]) * float32(FACTOR) + float32(offset)  # a comment
            y[i] = negative(v) + jitted(v) + notebook_helpers.third(v) + TABLE[0]
    return kernel

body = make(1.5, negate(2))
"""


def notebook(old: str = "", new: str = "", file: str = "<cell 1>") -> Callable[..., None]:
    """The body that a notebook would make, with one piece of it replaced."""
    assert old in NOTEBOOK + HELPERS
    helpers = types.ModuleType("notebook_helpers")
    exec(compile(HELPERS.replace(old, new) if old else HELPERS, "helpers.py", "exec"), vars(helpers))
    names: dict[str, Any] = {"__name__": "__main__"}
    sys.modules["notebook_helpers"] = helpers
    try:
        exec(compile(NOTEBOOK.replace(old, new) if old else NOTEBOOK, file, "exec"), names)
    finally:
        del sys.modules["notebook_helpers"]
    return names["body"]


@pytest.mark.parametrize("old, new", [
    ("FACTOR = 2", "FACTOR = 3"), ("FACTOR = 2", "FACTOR = 2.0"),
    ("[1.0, 2.0]", "[1.0, 3.0]"),
    ("return x + x", "return x * x"),
    ("return x - 1", "return x - 2"),
    ("b.fneg(x)", "b.fadd(x, x)"),
    ("x(x), codegen", "x(types.float32), codegen"),
    ("negate(2)", "negate(3)"),
    ("make(1.5", "make(2.5"),
    ("make(1.5", "make(-1.5"),
    ("limit=100", "limit=200"),
    ("i < n and", "i < n or"),
    ("x / 3", "x / 4"),
    ("jit(device=True)", "jit(device=True, fastmath=True)"),
    ("TABLE[0]", "TABLE[1]"),
])  # fmt: skip
def test_a_key_changes_with_all_that_a_body_is_made_of(old, new):
    assert key_of(launch_of(notebook())) != key_of(launch_of(notebook(old, new)))


@pytest.mark.parametrize("old, new", [
    ("  # a comment", ""),
    ("FACTOR = 2\n", "\n\n\nFACTOR = 2\n"),
    ("x[i]) * float32(FACTOR) +", "x[\n i\n]) * float32(FACTOR) +"),
    ("import functools", "import functools, json"),
])  # fmt: skip
def test_a_key_does_not_change_with_comments_lines_and_what_is_not_read(old, new):
    assert key_of(launch_of(notebook())) == key_of(launch_of(notebook(old, new)))


def test_a_key_does_not_depend_on_the_file():
    assert key_of(launch_of(notebook())) == key_of(launch_of(notebook(file="/elsewhere/cell.py")))


FACTORS = """
from numba import cuda as numba_cuda
from aicf.cuda_kernels.dsl import cuda, device
from aicf.cuda_kernels.bodies.element import caller

@device
def scaled(x):
    return x * A

def shifted(x):
    return x + B

@numba_cuda.jit(device=True, inline="always")
def raised(x):
    return x * C
"""
KERNEL = """
def make():
    call = caller(shifted)
    def kernel(x, y, n):
        y[0] = raised(call(scaled(x[0])))
    return kernel
body = make()
"""


def test_what_changes_in_a_notebook_changes_key_and_code_alike():
    """Cells that are run again after a global changed. What numba jitted itself may keep it: then nothing is cached."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(FACTORS, names)

    def run(**changed: float) -> tuple[str | None, set[float]]:
        names.update({name: np.float32(v) for name, v in {"A": 3, "B": 5, "C": 7, **changed}.items()})
        exec(KERNEL, names)
        key = key_of(launch_of(names["body"]))
        ptx = engine.ptx_of(launch_of(names["body"]), ADD, "sm_80")
        return key, {struct.unpack("!f", bytes.fromhex(n))[0] for n in re.findall(r"0f([0-9A-F]{8})", ptx)}

    first = run()
    assert first[1] == {3, 5, 7} and run() == first
    for changed, numbers in (({"A": 13}, {13, 5, 7}), ({"B": 15}, {3, 15, 7})):
        key, found = run(**changed)
        assert found == numbers and key != first[0]
    assert run(C=17)[0] is None


def test_bodies_that_depend_on_more_than_data_and_code_have_no_key(folder, compiled):
    thing = object()

    def body(x, y, n):
        y[0] = thing

    assert key_of(launch_of(body)) is None
    engine.compile_launch(launch_of(body), ADD, TARGET)
    engine.compile_launch(launch_of(body), ADD, TARGET)
    assert compiled == ["body"] and not folder.exists()  # kept in memory, by the body itself


def test_functions_that_call_themselves_or_each_other_have_keys():
    def make(step):
        def even(n):
            return n == 0 or odd(n - step)

        def odd(n):
            return n != 0 and even(n - step)

        return even, odd

    (even, odd), (other, _) = make(1), make(2)
    digests = {keys.body_digest(fn) for fn in (even, odd, other)}
    assert len(digests) == 3 and None not in digests
    assert keys.body_digest(make(1)[0]) == keys.body_digest(even)


def test_globals_that_are_read_are_found_as_python_finds_them():
    def expected(code):
        names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
        return names.union(*(expected(c) for c in code.co_consts if isinstance(c, types.CodeType)))

    functions = [
        f for m in (keys, cache, engine, dsl) for f in vars(m).values() if isinstance(f, types.FunctionType)
    ]
    many = "def long():\n" + "".join(f"    g{i}\n" for i in range(300))  # indices that take two bytes
    names: dict[str, Any] = {}
    exec(many, names)
    for fn in [*functions, names["long"]]:
        assert set(dsl.globals_read(fn.__code__)) == expected(fn.__code__), fn


# --- keys: everything else ----------------------------------------------------------------------------------------------


def test_a_key_changes_with_name_signature_target_block_and_registers():
    def made(name="k", blocks=None):
        def body(x, y, n):
            y[0] = x[0]

        body.__name__ = name
        if blocks:
            body.blocks_per_sm = blocks
        return body

    launches = [
        launch_of(made()), launch_of(made("j")), launch_of(made(blocks=2)), launch_of(made(), block=(64,)),
        launch_of(made(), number=Num(8, i32)), launch_of(made(), number=Num(8, f32)),
    ]  # fmt: skip
    found = [key_of(launch) for launch in launches] + [key_of(launches[0], "sm_90")]
    assert len(set(found)) == len(found)
    assert key_of(launch_of(made())) == found[0]
    assert key_of(launch_of(made(), block=(8, 4))) == found[0]  # as many threads
    assert key_of(launch_of(made(), number=Num(9))) == found[0]  # the value is an argument


@pytest.mark.parametrize("package", [*keys.PACKAGES, "nvidia-nvjitlink", "nvidia-nvjitlink-cu12"])
def test_a_key_changes_with_the_versions_of_what_compiles(package, monkeypatch):
    before, version = keys.toolchain.__wrapped__(), keys._version
    assert keys.toolchain.__wrapped__() == before
    monkeypatch.setattr(keys, "_version", lambda name: "99" if name == package else version(name))
    assert keys.toolchain.__wrapped__() != before


def test_without_wheels_the_systems_libraries_count(tmp_path, monkeypatch):
    version = keys._version
    monkeypatch.setattr(keys, "_version", lambda name: None if "nvjitlink" in name else version(name))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    before = keys.toolchain.__wrapped__()
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvJitLink.so.12.8.93").touch()
    assert str(tmp_path / "lib64" / "libnvJitLink.so.12.8.93") in keys.system_toolkit()
    assert keys.toolchain.__wrapped__() != before


KEYS = """
import json
from kernel_cases import FIRST, MORE, VARIANTS
from aicf.cuda_kernels import engine, keys
from aicf.device.spec import preset

found = {{}}
for n, case in {order}(list(enumerate([*FIRST, *MORE]))):
    for i, l in enumerate(VARIANTS[case.variant].build(case.region, preset("h200"))):
        found[f"{{n}} {{case}} {{i}}"] = keys.kernel_key(l, engine.signature_of(l, case.region), "sm_90a")
print(json.dumps(found))
"""


def test_keys_are_the_same_in_every_process_and_order():
    """And every kernel of aicf's has one."""
    runs = [
        start(KEYS.format(order="list"), PYTHONHASHSEED="1"),
        start(KEYS.format(order="reversed"), PYTHONHASHSEED="2"),
    ]
    one, other = map(finish, runs)
    assert one == other and len(one) > 200
    assert all(one.values()) and len(set(one.values())) > 100


# --- entries ------------------------------------------------------------------------------------------------------------


def test_an_entry_holds_all_of_a_kernel():
    assert cache.decode(cache.encode(FAKE)) == FAKE


def add_launch() -> Launch:
    (launch,) = VARIANTS["cuda.elementwise_flat.v1"].build(ADD, H200)
    return launch


def test_a_kernel_is_compiled_once_for_all_processes(folder, compiled, monkeypatch):
    first = engine.compile_launch(add_launch(), ADD, TARGET)
    monkeypatch.setattr(engine, "_COMPILED", {})  # as in a new process
    assert engine.compile_launch(add_launch(), ADD, TARGET) == first
    assert engine.compile_launch(add_launch(), ADD, "sm_80") != first
    assert compiled == ["elementwise_flat_add"] * 2
    assert [path.suffix for path in folder.iterdir()] == [".kernel"] * 2


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:10], lambda data: data[:25], lambda data: data[:-1], lambda data: data + b"\0",
    lambda data: bytes(len(data)), lambda data: b"not an entry at all",
    *(lambda data, at=at: flipped(data, at) for at in (0, 12, 20, 31, 40, -300, -1)),
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
    assert cache.decode(path.read_bytes()) == kernel and list(folder.iterdir()) == [path]


def test_an_entry_of_another_version_is_made_again(folder, compiled, monkeypatch):
    engine.compile_launch(add_launch(), ADD, TARGET)
    (path,) = folder.iterdir()
    monkeypatch.setattr(cache, "MAGIC", b"aicf kernel 2\n")
    assert cache.load(path.stem) is None and not path.exists()


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
    cache.trim(folder, 3 * size)
    assert {path.stem for path in folder.iterdir()} == {names[0], names[3], names[4]}
    assert cache.size(folder) == (3, 3 * size)
    assert cache.clear(folder) == 3 and cache.size(folder) == (0, 0)


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
from aicf.cuda_kernels import engine
from aicf.device.spec import preset

work = []
for case in FIRST[:4]:
    for launch in VARIANTS[case.variant].build(case.region, preset("h200")):
        work.append((launch, case.region))
made = [engine.compile_launch(launch, region, "sm_90a") for launch, region in work]
brought = sorted({name.split(".")[0] for name in sys.modules} & {"numba", "llvmlite", "cuda", "numba_cuda"})
print(json.dumps([brought, [[k.name, k.registers, k.cubin.hex()] for k in made]]))
"""


def test_processes_compile_into_one_cache_and_later_ones_import_no_numba(folder):
    """Two that begin at once with nothing, then one that finds everything."""
    both = [start(COMPILE, AICF_CACHE_DIR=str(folder.parent)) for _ in range(2)]
    (brought, first), (_, second) = map(finish, both)
    assert first == second and "numba" in brought
    entries = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(entries) == len(first) and all(name.endswith(".kernel") for name in entries)
    brought, third = finish(start(COMPILE))
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


def build(kernel_id: str, r: Any) -> list[Launch]:
    return VARIANTS[kernel_id].build(r, H200)


def build_nothing(kernel_id: str, r: Any) -> list[Launch]:
    raise LookupError(kernel_id)


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_helpers_do_what_this_process_does_not(folder, compiled, monkeypatch):
    pretend = engine.compile_kernel

    def wait_for_the_helper(*args: Any) -> CompiledKernel:
        wait_for(lambda: folder.exists() and len(list(folder.glob("*.kernel"))) == len(KERNELS) - 1)
        return pretend(*args)

    monkeypatch.setattr(engine, "compile_kernel", wait_for_the_helper)
    monkeypatch.setattr(workers, "helpers_for", lambda calls: 1)
    engine.precompile(KERNELS, TARGET, build)
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


def test_few_kernels_or_few_cores_get_no_helpers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16), raising=False)
    assert [workers.helpers_for(n) for n in (0, 5, 6, 100)] == [0, 0, 2, 7]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2), raising=False)
    assert workers.helpers_for(100) == 0
