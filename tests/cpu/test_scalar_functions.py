"""Scalar functions as bitcode: one of a name stays itself beside others of that name, and what is damaged is compiled again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf.code_cache import disk
from aicf.cpu_kernels.compiler import functions
from aicf.cpu_kernels.compiler.loops import MapLoop
from aicf.ops.record import unregister
from aicf.ops.schema import elementwise

from .conftest import forget
from .regions import Graph

ROOT = Path(aicf.__file__).parents[1]
X = np.linspace(-3, 3, 77, dtype=np.float32).reshape(7, 11)
LOOP = "elementwise_loop"


COMPILE = """
import sys
from aicf.cpu_kernels.compiler.functions import function_of
for text in sys.argv[1:]:
    names = {"__name__": "drawn"}
    exec(text, names)
    function_of(names["scalar"], ("float32",), ("float32",))
"""


@pytest.mark.sample(1, pool="processes")
def test_functions_of_two_processes_with_one_name_are_two(folder, monkeypatch, request):
    """numba names functions by a number that begins again in each process. Here a loop calls those of two processes."""
    draw = rng(request.node.nodeid)
    numbers = [[float(n) for n in draw.integers(2, 99, 2)] for _ in range(6)]
    texts = [
        f"def scalar(x):\n    return inner(x) + {b!r}\ndef inner(x):\n    return x * {a!r}\n"
        for a, b in numbers
    ]
    for some in (texts[:3], texts[3:]):
        subprocess.run([sys.executable, "-c", COMPILE, *some], check=True, cwd=ROOT, timeout=200)
    assert len(list(folder.glob("*" + disk.FUNCTION))) == 6
    from aicf.cpu_kernels.compiler import numba_functions

    monkeypatch.setattr(numba_functions, "compile_function", None)  # all are found
    scalars = []
    for text in texts:
        names = {"__name__": "drawn"}
        exec(compile(text, "drawn", "exec", dont_inherit=True), names)
        scalars.append(names["scalar"])
    found = [functions.function_of(scalar, ("float32",), ("float32",)) for scalar in scalars]
    assert len({f.symbol for f in found}) == 6
    from aicf.rows.program import Expression, Load, Map
    from aicf.types import TensorDesc, TensorSpec, f32

    expression = Expression(
        "drawn", tuple((s, (0,), (n + 1,)) for n, s in enumerate(scalars)), (f32,) * 7, frozenset(), 1, tuple(range(1, 7)),
    )  # fmt: skip
    desc = TensorDesc.dense(TensorSpec((77,), f32))
    map = Map(
        (77,), 0, (Load(0, f32, (1,)),), (), (f32,) * 7, frozenset(), tuple((n + 1, n) for n in range(6))
    )
    monkeypatch.setattr(Map, "expression", expression)
    loop, results = MapLoop(map, [desc], [desc] * 6), [np.empty(77, np.float32) for _ in range(6)]
    loop.bind([X.ravel()], results)()
    for (a, b), got in zip(numbers, results):
        np.testing.assert_allclose(got, X.ravel() * a + b, rtol=1e-6, atol=1e-5)


def test_a_function_is_compiled_once_for_all_numbers_and_loops(folder, monkeypatch):
    """Attributes are arguments; other walks over memory and other neighbours are other loops of the same function."""
    from aicf.cpu_kernels.compiler import numba_functions

    names, true = list[str](), numba_functions.compile_function
    monkeypatch.setattr(
        numba_functions, "compile_function", lambda f, *more: names.append(f.__name__) or true(f, *more)
    )
    for factor in (0.5, -0.0, float("nan"), float("inf"), 1e-42):
        graph = Graph({"x": X}, ("scale", "x", "y", {"factor": factor}))
        (got,) = graph.run(LOOP)
        with np.errstate(all="ignore"):
            want = X * np.float32(factor)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
    Graph({"x": X[:, ::2]}, ("scale", "x", "y", {"factor": 3.0})).check(LOOP)
    assert len(names) == 1
    Graph({"x": X}, ("square", "x", "s", {}), ("scale", "s", "y", {"factor": 3.0})).check(LOOP)
    Graph({"x": X}, ("square", "x", "s", {}), ("reduce_sum", "s", "y", {"axes": (1,)})).check("reduce_loop")
    assert len(names) == 2
    assert len(list(folder.glob("*.function"))) == 2 and len(list(folder.glob("*.loop"))) == 9


def computed(*functions: Any, values: np.ndarray) -> np.ndarray:
    """What a loop computes of some values by these functions, one after the other."""
    from aicf.rows.program import Expression, Load, Map
    from aicf.types import DType, TensorDesc

    dtype, last = DType.of(values.dtype), len(functions)
    steps = tuple((function, (n,), (n + 1,)) for n, function in enumerate(functions))
    types = (dtype,) * (last + 1)
    map = Map(values.shape, 0, (Load(0, dtype, (1,)),), (), types, frozenset(), ((last, 0),))
    vars(map)["expression"] = Expression("drawn", steps, types, frozenset(), 1, (last,))
    desc, out = TensorDesc(dtype, values.shape, (1,)), np.empty_like(values)
    MapLoop(map, [desc], [desc]).bind([values], [out])()
    return out


USES = """
import numpy as np
from tests.cpu.test_scalar_functions import computed

LARGE, STRIDED = np.arange(200_000.0), np.arange(50.0)[::7]  # numba puts addresses of such arrays into code
x = np.linspace(-3, 3, 77, dtype=np.float32)

def large(x):
    return x + LARGE[199_999]

def strided(x):
    return x + STRIDED[2]

def allocates(x):
    some = np.zeros(3)
    some[1] = x
    return some[0] + some[1]

def helper(x):
    return x + 1

def first(x):
    return helper(x) * 2

def with_text(x, how="up"):
    return x + 1 if how == "up" else x - 1

np.testing.assert_allclose(computed(large, values=x), x + 199_999, rtol=1e-6)
np.testing.assert_allclose(computed(strided, values=x), x + 14, rtol=1e-6)
np.testing.assert_array_equal(computed(allocates, values=x), x)
np.testing.assert_allclose(computed(first, values=x), (x + 1) * 2, rtol=1e-6)
np.testing.assert_allclose(computed(with_text, values=x), x + 1, rtol=1e-6)

def helper(x):
    return x + 5

def second(x):
    return helper(x) * 3

np.testing.assert_allclose(computed(second, values=x), (x + 5) * 3, rtol=1e-6)
print("right")
"""


@pytest.mark.sample(1, pool="processes")
def test_what_one_process_stored_is_right_in_the_next(folder):
    """Of functions that read large arrays, which have addresses, that allocate, and whose helper is defined again."""
    exec(compile(USES, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    stored = sorted(path.name for path in folder.iterdir())
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    ran = subprocess.run(
        [sys.executable, "-c", USES], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path}, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0 and ran.stdout == "right\n" and "damaged" not in ran.stderr, ran.stderr
    assert stored == sorted(path.name for path in folder.iterdir()), "the other process found all of it"


def truncated(data: bytes, _: str) -> bytes:
    return data[: len(data) // 2]


def no_bitcode(data: bytes, name: str) -> bytes:
    return disk.encode(b"no bitcode" * 9, {}, name)


def another_function(data: bytes, name: str) -> bytes:
    """Bitcode that defines another symbol."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly("define i32 @other() {\n ret i32 1\n}", llvm.create_context())
    return disk.encode(module.as_bitcode(), {}, name)


@pytest.mark.sample(2)
@pytest.mark.parametrize("damage", [truncated, no_bitcode, another_function])
def test_a_damaged_function_is_noticed_and_compiled_again(folder, damage, caplog):
    graph = Graph({"x": X}, ("square", "x", "y", {}))
    graph.check(LOOP)
    (path,) = folder.glob("*.function")
    before = path.read_bytes()
    path.write_bytes(damage(before, path.name))
    for loop in folder.glob("*.loop"):
        loop.unlink()
    forget()
    graph.check(LOOP)
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "is damaged" in caplog.text
    assert path.read_bytes() == before, "the same function has the same bitcode"


def test_a_function_that_raises_ends_the_loop_with_an_error():
    @elementwise("positive_only")
    def op(x):
        """x, which is positive."""
        if x < 0:
            raise ValueError("negative")
        return x

    op.reference(lambda x: x)
    try:
        Graph({"x": abs(X)}, ("positive_only", "x", "y", {})).check(LOOP)
        with pytest.raises(RuntimeError, match="a loop of the host ended with status 1"):
            Graph({"x": X}, ("positive_only", "x", "y", {})).run(LOOP)
    finally:
        unregister("positive_only")


def test_a_step_after_one_that_raises_does_not_run():
    """It would not end."""

    def positive(x):
        if x <= 0:
            raise ValueError("not positive")
        return x

    def halved_to_one(x):
        while x != 1:
            x //= 2
        return x

    assert computed(positive, halved_to_one, values=np.array([4, 8, 1, 5, 2])).tolist() == [1] * 5
    with pytest.raises(RuntimeError, match="ended with status 1"):
        computed(positive, halved_to_one, values=np.array([4, 8, 0, -5, 2]))


@pytest.mark.parametrize(
    "default, kind",
    [
        (2**63 - 1, "int64"), (-(2**63), "int64"), (2**64 - 1, "uint64"), (2**64, None), (-(2**63) - 1, None),
        (True, "bool"), (np.bool_(True), "bool"), (np.int8(-5), "int8"), (np.float32(0.1), "float32"), (np.float16(1.5), None),
        (-0.0, "float64"), ("up", None), (None, None),
    ],
)  # fmt: skip
def test_numbers_among_defaults_have_types_of_code_or_are_compiled_into_it(default, kind):
    def scalar(x, number=default):
        return x

    code = functions.function_of(scalar, ("float32",), ("float32",)) if kind else None
    assert functions.type_name(default) == kind
    assert kind is None or (code.numbers[0] == default and type(code.numbers[0]) in (bool, int, float))


def test_an_integer_that_no_type_has_is_refused():
    def scalar(x, number=2**64 + 3):
        return x + number

    with pytest.raises(ValueError, match="too large"):
        functions.function_of(scalar, ("int64",), ("int64",))


WITHOUT_NUMBA = """
import numpy as np, sys, aicf
from tests.cpu.regions import Graph
Graph({"x": np.ones((5, 7), np.float32)}, ("gelu", "x", "g", {}), ("reduce_max", "g", "y", {"axes": (1,)})).check("reduce_loop")
print("numba" in sys.modules)
"""


def test_a_loop_of_known_functions_needs_no_numba(folder):
    """Another process compiled its function, for another loop."""
    Graph({"x": X[:, ::2]}, ("gelu", "x", "y", {})).check(LOOP)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0 and ran.stdout == "False\n", ran.stderr
    assert len(list(folder.glob("*.loop"))) == 3 and len(list(folder.glob("*.function"))) == 1
