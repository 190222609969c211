"""Compiled loops of the host on disk: found by content, whatever is damaged or missing; processes without numba."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aicf
from aicf.code_cache import disk
from aicf.cpu_kernels.compiler import code, toolchain
from aicf.cpu_kernels.compiler.loops import MapLoop
from aicf.device.spec import host
from aicf.rows.program import RegionProgram
from aicf.rows.read import read
from aicf.types import bf16, f16, f32, i32, i64

from .conftest import forget
from .regions import VARIANTS, Graph, normal

ROOT = Path(aicf.__file__).parents[1]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of loops that numba compiles from now on."""
    names: list[str] = []
    true = code._compiled

    def told(spec: Any) -> Any:
        names.append(code._name(spec))
        return true(spec)

    monkeypatch.setattr(code, "_compiled", told)
    return names


X = np.linspace(-3, 3, 77, dtype=np.float32).reshape(7, 11)


def scaled(x: np.ndarray = X, by: float = 0.5, kind: str = "scale") -> Graph:
    return Graph({"x": x}, (kind, "x", "y", {"factor": by} if kind == "scale" else {}))


def summed(x: np.ndarray = X, axes: tuple[int, ...] = (1,)) -> Graph:
    return Graph({"x": x}, ("square", "x", "s", {}), ("reduce_sum", "s", "y", {"axes": axes}))


def test_a_loop_is_compiled_once_for_all_sizes_and_processes(folder, compiled):
    for x in (X, X[:2], X[0], np.repeat(X, 40, 0), np.tile(X, 3)):
        scaled(x).check("elementwise_loop")
    assert compiled == ["scale"] and sorted(p.suffix for p in folder.iterdir()) == [".function", ".loop"]
    for x in (X, np.repeat(X, 9000, 0)):  # rows of a few elements; more than a block
        summed(x).check("reduce_loop")
        summed(x, (0,)).check("reduce_loop")
    assert sorted(compiled) == ["reduce_sum", "reduce_sum", "scale", "square"]  # of rows, and of columns
    forget()  # as in a new process
    scaled().check("elementwise_loop")
    summed().check("reduce_loop")
    assert len(compiled) == len(list(folder.glob("*.loop"))) == 4


def test_off(folder, compiled, monkeypatch):
    monkeypatch.setenv("AICF_CACHE", "off")
    scaled().check("elementwise_loop")
    assert compiled == ["scale"] and not folder.exists()


# --- keys -------------------------------------------------------------------------------------------------------------


def key(graph: Graph) -> str | None:
    program = read(graph.region)
    assert isinstance(program, RegionProgram)
    return code.loop_key(MapLoop(program.after, graph.region.operands, graph.region.results).spec)


def test_a_key_is_of_content():
    """Other functions, attributes, types, or ways to walk memory are other loops; other sizes are not."""
    graphs = [
        scaled(),
        scaled(by=0.25),
        scaled(by=-0.5),
        scaled(kind="relu"),
        scaled(kind="square"),
        scaled(X[:, ::2]),
    ]
    graphs += [scaled(np.broadcast_to(X[:, :1], X.shape))]
    graphs += [scaled(normal(7, 11, dtype=t), kind="square") for t in (f16, bf16, i32, i64)]
    keys = [key(g) for g in graphs]
    assert None not in keys and len(set(keys)) == len(keys)
    assert key(scaled(X[:3])) == key(scaled(X.reshape(-1))) == keys[0]


@pytest.mark.skipif(sys.platform == "win32", reason="the C library has another name there")
def test_a_function_that_depends_on_more_than_data_and_code_is_not_kept(folder, compiled):
    """An address of this process would be wrong in another one."""
    import ctypes

    from aicf.ops.record import unregister
    from aicf.ops.schema import elementwise

    cube_root = ctypes.CDLL(None).cbrtf
    cube_root.restype, cube_root.argtypes = ctypes.c_float, [ctypes.c_float]

    @elementwise("cube_root")
    def op(x):
        """The cube root of x."""
        return cube_root(x)

    op.reference(np.cbrt)
    try:
        graph = Graph({"x": X}, ("cube_root", "x", "y", {}))
        for _ in range(2):
            graph.check("elementwise_loop")
        assert compiled == ["cube_root"] and key(graph) is None and not folder.exists()
    finally:
        unregister("cube_root")


def test_a_jitted_function_of_one_s_own_is_called_from_loops_and_from_python(folder, compiled):
    import numba

    from aicf.ops.record import unregister
    from aicf.ops.schema import elementwise

    @numba.njit
    def third(x):
        return x * np.float32(1 / 3)

    @elementwise("a_third")
    def op(x):
        """A third of x."""
        return third(x)

    op.reference(lambda x: x / 3)
    try:
        Graph({"x": X}, ("a_third", "x", "y", {})).check("elementwise_loop")
        assert compiled == ["a_third"] and third.overloads
        assert third(np.float32(6)) == third.py_func(np.float32(6)) == 2
        assert third(np.float64(6)) == pytest.approx(2)  # another type: numba's own way
        assert numba.njit(lambda x: third(x) + 1)(np.float32(6)) == 3
    finally:
        unregister("a_third")


@pytest.mark.parametrize("package", toolchain.PACKAGES)
def test_a_key_changes_with_the_versions_of_what_compiles(package, monkeypatch):
    before, version = toolchain.toolchain.__wrapped__(), toolchain.version
    assert toolchain.toolchain.__wrapped__() == before
    monkeypatch.setattr(toolchain, "version", lambda name: "99" if name == package else version(name))
    assert toolchain.toolchain.__wrapped__() != before


@pytest.mark.parametrize("fact", ["get_host_cpu_name", "get_process_triple"])
def test_a_key_changes_with_the_processor(fact, monkeypatch):
    import llvmlite.binding as llvm

    before = toolchain.toolchain.__wrapped__()
    monkeypatch.setattr(llvm, fact, lambda: "another")
    assert toolchain.toolchain.__wrapped__() != before


@pytest.mark.parametrize("module", toolchain.LOOPS)
def test_a_key_changes_with_the_code_that_compiles(module, monkeypatch):
    before, source = toolchain.toolchain.__wrapped__(), toolchain._module
    monkeypatch.setattr(toolchain, "_module", lambda name: b"other" if name == module else source(name))
    assert toolchain.toolchain.__wrapped__() != before


def test_all_that_imports_numba_is_among_the_code_that_compiles():
    folder = Path(code.__file__).parent
    found = {p.stem for p in folder.glob("*.py") if "numba" in {*_imported(p)}}
    assert found == {"code", "numba_functions", "target"}, found
    assert {"numba_functions", "target"} <= {
        *toolchain.FUNCTIONS
    }  # `code` names functions of numba for a linker alone


def _imported(path: Path) -> list[str]:
    import ast

    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and n.level == 0]
    names += [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    return [name.split(".")[0] for name in names]


# --- damage -----------------------------------------------------------------------------------------------------------


def other_code(data: bytes, name: str) -> bytes:
    """Whole, but no object file."""
    _, facts = disk.decode(data, name)
    return disk.encode(b"no object file" * 9, facts, name)


def other_symbol(data: bytes, name: str) -> bytes:
    return disk.encode(disk.decode(data, name)[0].replace(b"aicf_loop", b"aicf_look"), {"needs": []}, name)


def other_facts(data: bytes, name: str) -> bytes:
    return disk.encode(disk.decode(data, name)[0], {"name": "?"}, name)


@pytest.mark.sample(3)
@pytest.mark.parametrize("damage", [
    lambda data, _: b"", lambda data, _: data[:25], lambda data, _: data[:-1], lambda data, _: bytes(len(data)),
    lambda data, _: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:], other_code, other_symbol, other_facts,
])  # fmt: skip
def test_a_damaged_entry_is_noticed_and_made_again(folder, compiled, damage, caplog):
    scaled().check("elementwise_loop")
    (path,) = folder.glob("*.loop")
    path.write_bytes(damage(path.read_bytes(), path.name))
    for _ in range(2):
        forget()
        scaled().check("elementwise_loop")
    assert len(compiled) == 2  # the second time it was whole again
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "is damaged" in caplog.text


# --- processes and threads --------------------------------------------------------------------------------------------

RUN = """
import json, os, sys, time
import numpy as np
import aicf
from aicf.demo import build_model
{before}
rng = np.random.default_rng(0)
feed = {{"x": rng.random((64, 64), dtype=np.float32), "y": rng.integers(0, 10, 64)}}
how = {how}
began = time.process_time()
program = aicf.compile(build_model(), device="cpu", **how)
results = [program(feed if how else {{"x": feed["x"]}})["output"].numpy().tobytes().hex()]
seconds = time.process_time() - began
results += [program(feed if how else {{"x": feed["x"]}})["output"].numpy().tobytes().hex()]
print(json.dumps([results, seconds, "numba" in sys.modules]))
"""
TRAIN = (
    "dict(mode='train', loss=aicf.nn.SoftmaxCrossEntropy(), "
    "optimizer=aicf.nn.AdamW(aicf.nn.schedules.Cosine(2e-3, total=50, warmup=5), weight_decay=0.3))"
)
BARRIER = """
meeting = os.environ["AICF_CACHE_DIR"]
open(os.path.join(meeting, str(os.getpid())), "w").close()
while len(os.listdir(meeting)) < 2:
    time.sleep(0.01)
"""


def start(text: str) -> subprocess.Popen:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


def finish(process: subprocess.Popen) -> Any:
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert errors == ""
    return json.loads(out.splitlines()[-1])


@pytest.mark.sample(1, pool="processes")
def test_processes_that_compile_at_once_share_a_cache(folder):
    both = [start(RUN.format(before=BARRIER, how={})) for _ in range(2)]
    (first, _, numba), (second, _, _) = map(finish, both)
    assert numba and first == second
    assert folder.exists() and all(path.suffix in (".loop", ".function") for path in folder.iterdir())


@pytest.mark.sample(1, pool="processes")
def test_a_later_process_trains_at_once_without_numba(folder):
    """The demo's model: compiled and a first step in half a second of CPU time, to the same bits."""
    first, _, numba = finish(start(RUN.format(before="", how=TRAIN)))
    entries = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert numba and entries
    second, seconds, numba = finish(start(RUN.format(before="", how=TRAIN)))
    assert first == second and not numba
    assert seconds < 0.5
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == entries


FAR = """
import ctypes, mmap
import llvmlite.binding as llvm
from aicf.cpu_kernels.compiler import code
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
PAGE, LENGTH, NORESERVE = mmap.PAGESIZE, 64 << 30, 0x4000
jit = code._jit()
numbers = [n + 0.5 for n in range(400)] * 3  # two pages of code or more, one of constants
lines = [f"%v{i + 1} = fadd double %v{i}, {n:e}" for i, n in enumerate(numbers)]
text = "define double @aicf_loop(double %v0) {\\n" + "\\n".join(lines) + f"\\nret double %v{len(lines)}" + "\\n}"
machine = llvm.Target.from_default_triple().create_target_machine(opt=3, reloc="pic", codemodel="default", jit=True)
made = machine.emit_object(llvm.parse_assembly(text))
def reserve(length):
    start = libc.mmap(None, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE, -1, 0)
    assert start != ctypes.c_void_p(-1).value
    return start
block = reserve(LENGTH)
for pages in (1 << 18, 1 << 12, 1 << 6, 8, 2):  # no room for two pages above the block
    while (start := reserve(pages * PAGE)) > block:
        pass
    libc.munmap(start, pages * PAGE)
for n in range(1, 200):  # single pages at the upper end
    libc.munmap(block + LENGTH - 2 * n * PAGE, PAGE)
kept = []
for _ in range(50):
    kept.append(code._link(jit, made, []))
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(kept[-1]["aicf_loop"])(1.0) == 1.0 + sum(numbers)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's order of finding free memory")
def test_code_and_constants_of_a_loop_are_near_each_other_in_memory_in_pieces():
    """A piece of one page is free 64 GB from where there is room for more, as beside what CUDA reserves."""
    done = subprocess.run([sys.executable, "-c", FAR], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_threads_that_run_one_loop_at_once():
    """Each has a block of its own, in which rows are formed."""
    built = VARIANTS["reduce_loop"].build(summed().region, host())
    inputs = [normal(7, 11) for _ in range(8)]

    def work(i: int) -> bool:
        x, y = inputs[i % 8], np.empty(7, np.float32)
        built.function([x], [y])
        return np.allclose(y, (x.astype(float) ** 2).sum(1), rtol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(2000)))


def test_a_bound_call_reads_its_arrays_anew():
    built = VARIANTS["elementwise_loop"].build(scaled().region, host())
    x, y = X.copy(), np.empty_like(X)
    call = built.bind([x], [y])
    call()
    np.testing.assert_array_equal(y, X * f32.numpy.type(0.5))
    x[:] = 8
    call()
    assert (y == 4).all()
