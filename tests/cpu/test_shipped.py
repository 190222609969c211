"""Scalar functions that come with aicf: what numba compiles here, to the bit; found where they are as in their files, and nowhere else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf.cpu_kernels.compiler import functions, shipped
from aicf.cpu_kernels.compiler.loops import MapLoop
from aicf.rows.program import Expression, Load, Map
from aicf.types import DType, TensorDesc, TensorSpec

from .conftest import forget

ROOT = Path(aicf.__file__).parents[1]
TOOL = ROOT / "tools" / "scalar_functions.py"
if not TOOL.exists():
    pytest.skip("a source distribution has no tools", allow_module_level=True)

spec = importlib.util.spec_from_file_location("scalar_functions", TOOL)
tool = importlib.util.module_from_spec(spec)
sys.modules["scalar_functions"] = tool
spec.loader.exec_module(tool)

DRAWN = 12
here = pytest.mark.skipif(
    shipped.read()[0] != shipped.platform(), reason="aicf's file is of another platform or LLVM"
)
NUMBERS = [0.0, -0.0, 0.5, -1, 1, 2.5, -3, 1e-40, 1e30, -1e30, 88.5, np.inf, -np.inf, np.nan]


@pytest.fixture(scope="module")
def called():
    return tool.by_key()


@pytest.fixture
def file_is_used(tmp_path, monkeypatch):
    """An empty cache, and no setting that keeps aicf's file out."""
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    for name in [n for n in os.environ if n.startswith(shipped.SETTINGS)]:
        monkeypatch.delenv(name)
    forget()
    yield
    forget()


@here
def test_the_file_is_that_of_the_ops(called):
    have = shipped.read()[1].keys()
    new = sorted({called[key].function.__name__ for key in called.keys() - have})
    assert called.keys() == have, f"missing: {new}; next: python tools/scalar_functions.py"
    assert shipped.in_package(shipped.FILE).stat().st_size < 300_000


@here
def test_results_are_those_of_numba_to_the_bit(called, folder, monkeypatch, request):
    """Drawn functions in loops, on drawn and special values: bitcode of the file, and of numba here."""
    draw = rng(request.node.nodeid)
    entries = shipped.read()[1]
    for key in draw.choice(sorted(entries), DRAWN, replace=False):
        each, results = called[key], []
        values = [_values(name, draw) for name in each.operands]
        for found in (entries, {}):
            monkeypatch.setattr(functions, "shipped", found.get)
            forget()
            results.append(_computed(each, values))
        for got, want in zip(*results):
            np.testing.assert_array_equal(got, want, err_msg=str(each))
            assert (got.view(f"u{got.itemsize}") == want.view(f"u{want.itemsize}"))[got == got].all(), each


def _values(name: str, draw: np.random.Generator) -> np.ndarray:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        return np.append(draw.choice(NUMBERS, 100), draw.normal(0, 9, 100)).astype(dtype)
    few = draw.integers(0, 2 if dtype.kind == "b" else 5, 100)
    return np.append(few, few if dtype.kind == "b" else draw.integers(0, 99, 100)).astype(dtype)


def _computed(each, values: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a loop that calls a function on arrays of these values."""
    count, types = len(values), [DType.of(np.dtype(name)) for name in (*each.operands, *each.results)]
    slots = tuple(range(count, len(types)))
    step = each.function, tuple(range(count)), slots
    expression = Expression("drawn", (step,), tuple(types), frozenset(), count, slots)
    size = 200
    loads = tuple(Load(n, types[n], (1,)) for n in range(count))
    map = Map((size,), 0, loads, (), tuple(types), frozenset(), tuple((s, n) for n, s in enumerate(slots)))
    vars(map)["expression"] = expression
    descs = [TensorDesc.dense(TensorSpec((size,), dtype)) for dtype in types]
    out = [np.empty(size, name) for name in each.results]
    MapLoop(map, descs[:count], descs[count:]).bind(values, out)()
    return out


@here
def test_a_function_that_is_not_as_its_file_has_it_is_not_found(called, request):
    draw = rng(request.node.nodeid)
    found = 0
    for key in draw.permutation(sorted(called)):
        each = called[key]
        function, code = each.function, each.function.__code__
        consts = [n for n, value in enumerate(code.co_consts) if isinstance(value, np.floating)]
        if not consts or found == DRAWN:
            continue
        found += 1
        changed = list(code.co_consts)
        changed[consts[-1]] += type(changed[consts[-1]])(1)
        other = code.replace(co_consts=tuple(changed))
        copy = FunctionType(other, function.__globals__, function.__name__, None, function.__closure__)
        assert shipped.shipped_key(functions.plain(function), *each.request) == key
        assert shipped.shipped_key(copy, *each.request) is None, code.co_qualname
        moved = code.replace(co_firstlineno=code.co_firstlineno + 1)
        copy = FunctionType(moved, function.__globals__, function.__name__, None, function.__closure__)
        assert shipped.shipped_key(copy, *each.request) is None, code.co_qualname
    assert found == DRAWN


def test_types_of_literals_are_part_of_the_key(called):
    """One function, whose literals are f32 or f64, on operands of one type."""
    from aicf.ops.scalar import typed_scalar
    from aicf.ops.schema import schema_of

    scalar = schema_of("gelu_erf").scalar
    keys = {
        shipped.shipped_key(typed_scalar(scalar, dtype)[0], ("float32",), ("float32",), {}, False)
        for dtype in (DType.f32, DType.f64)
    }
    assert len(keys) == 2 and None not in keys


@pytest.mark.parametrize("data", [None, b"", b"other", lambda whole: whole[:-9], lambda whole: whole[:200]])
def test_a_file_that_can_t_be_read_is_said_and_not_used(file_is_used, monkeypatch, data):
    """Of an installation that lost or cut it: numba compiles."""
    whole = shipped.in_package(shipped.FILE).read_bytes()

    def get_data(package: str, name: str) -> bytes:
        if data is None:
            raise FileNotFoundError(name)
        return data(whole) if callable(data) else data

    monkeypatch.setattr(shipped.pkgutil, "get_data", get_data)
    shipped._entries.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"functions.bin can't be read.* install aicf again"):
        assert not shipped.available()


def test_a_function_of_no_module_is_not_in_the_file(called):
    names: dict = {}
    exec("def scalar(x):\n    return x + 1.0\n", names)
    names["scalar"].__module__ = None
    assert shipped.shipped_key(names["scalar"], ("float32",), ("float32",), {}, False) is None


def test_a_setting_of_numba_or_another_platform_keeps_the_file_out(file_is_used, monkeypatch):
    key = next(iter(shipped.read()[1]))
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_OPT", "2")
        assert shipped.shipped(key) is None
    for other in ([1, shipped.platform()[1]], [shipped.platform()[0], "other-unknown-system"]):
        shipped._entries.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(shipped, "platform", lambda found=other: found)
            assert shipped.shipped(key) is None


COLD = """
import sys
import numpy as np
import aicf
from aicf.demo import build_model, recipe
rng = np.random.default_rng(0)
feed = {"x": rng.random((64, 64), dtype=np.float32), "y": rng.integers(0, 10, 64)}
program = aicf.compile(build_model(), mode="train", device="cpu", **recipe(50))
results = [program(feed)["output"].numpy().tobytes().hex() for _ in range(2)]
print("numba" in sys.modules, results)
"""


@here
@pytest.mark.sample(1, pool="processes")
def test_a_cold_process_trains_without_numba_to_the_same_bits(file_is_used, tmp_path):
    said = []
    for settings in ({}, {"NUMBA_OPT": "3", "AICF_CACHE": "off"}):
        done = subprocess.run(
            [sys.executable, "-c", COLD], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **settings}, timeout=200
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.partition(" "))
    assert [numba for numba, _, _ in said] == ["False", "True"] and said[0][2] == said[1][2]
    assert not list(tmp_path.rglob("*.function"))
