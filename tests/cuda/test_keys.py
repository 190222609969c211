"""Keys of compiled kernels: what they depend on and what not, in this process and in others."""

from __future__ import annotations

import dis
import os
import re
import struct
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from cache_support import ADD, finish, key_of, launch_of, start
from kernel_cases import FIRST, MORE, VARIANTS

from aicf.code_cache import digest
from aicf.code_cache.digest import Portable
from aicf.cuda_kernels import dsl
from aicf.cuda_kernels.compiler import cache, engine, keys
from aicf.device.spec import preset
from aicf.registry.variant import Num
from aicf.types import f32, i32

# --- bodies -------------------------------------------------------------------------------------------------------

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
    ("        i = cuda.grid(1)\n", "        i = cuda.grid(1)\n\n        # a line further down\n\n"),
    ("import functools", "import functools, json"),
])  # fmt: skip
def test_a_key_does_not_change_with_comments_lines_and_what_is_not_read(old, new):
    assert key_of(launch_of(notebook())) == key_of(launch_of(notebook(old, new)))


def test_a_key_does_not_depend_on_the_file():
    assert key_of(launch_of(notebook())) == key_of(launch_of(notebook(file="/elsewhere/cell.py")))


FACTORS = """
from numba import cuda as numba_cuda
from aicf.cuda_kernels.dsl import cuda, device
from aicf.cuda_kernels.tiles.element import feeder
from aicf.rows.program import Expression
from aicf.types import f32

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
    shift = feeder(Expression("shifted", ((shifted, (0,), (1,)),), (f32, f32), frozenset(), 1, (1,)), (f32,), ())
    def kernel(x, y, n):
        y[0] = raised(scaled(shift((x,), (), (n,), n)))
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


class Window(NamedTuple):
    first: int
    size: int


def test_what_a_body_holds_in_a_named_tuple_is_in_its_key():
    """As the bounds of a masked load are."""

    def make(held):
        def body(x):
            return x + held[0]

        return body

    digests = {keys.body_digest(make(held)) for held in (Window(1, 2), Window(1, 3), (1, 2))}
    assert len(digests) == 3 and None not in digests
    assert keys.body_digest(make(Window(1, 2))) in digests


@pytest.mark.parametrize("op, operands", [("gather", ((5, 7), (3,))), ("pad", ((5, 7),))])
def test_kernels_of_masked_loads_have_keys(op, operands):
    from kernel_cases import region

    from aicf.types import TensorDesc, TensorSpec

    attrs = {"low": (1, 0), "high": (0, 2), "interior": (0, 0), "value": 0.0} if op == "pad" else {}
    descs = [
        TensorDesc.dense(TensorSpec(shape, i32 if n else f32, "cuda")) for n, shape in enumerate(operands)
    ]
    spec, device = region(op, *descs, **attrs), preset("h200")
    for launch in VARIANTS["cuda.elementwise_strided.v1"].build(spec, device):
        assert keys.kernel_digest(launch, engine.signature_of(launch, spec), device.target) is not None


SCALE = 2.0


def scaled(offset):
    def body(x):
        """A docstring."""
        return x * SCALE + offset  # a comment

    return body


def test_portable_digests_follow_source_closures_and_globals(monkeypatch):
    def digest(offset=1.0):
        return keys.body_digest(scaled(offset), Portable())

    first = digest()
    assert first == digest() != digest(2.0)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert digest() != first


@pytest.mark.parametrize(
    "id", ["cuda.gemm_tiled.v1[32x32]", "cuda.elementwise_flat.v1", "cuda.reduce_naive.v2"]
)
def test_portable_digests_have_nothing_of_this_python_s_own(id, monkeypatch):
    """No bytecode, no list of its library's modules."""
    case = next(c for c in [*FIRST, *MORE] if c.variant == id)
    (launch, *_) = VARIANTS[id].build(case.region, preset("h200"))
    first = digest.digest(Portable().of(launch.body))

    def refuse(code):
        raise AssertionError(f"bytecode of {code}")

    monkeypatch.setattr(digest, "_code", refuse)
    libraries = digest.LIBRARIES | {"a module of another Python"}
    for module in (digest, dsl):
        monkeypatch.setattr(module, "LIBRARIES", libraries)
    assert digest.digest(Portable().of(launch.body)) == first


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


# --- everything else ----------------------------------------------------------------------------------------------


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
    before, version = keys.toolchain.__wrapped__(), keys.version
    assert keys.toolchain.__wrapped__() == before
    monkeypatch.setattr(keys, "version", lambda name: "99" if name == package else version(name))
    assert keys.toolchain.__wrapped__() != before


def test_without_wheels_the_systems_libraries_count(tmp_path, monkeypatch):
    version = keys.version
    monkeypatch.setattr(keys, "version", lambda name: None if "nvjitlink" in name else version(name))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    before = keys.toolchain.__wrapped__()
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvJitLink.so.12.8.93").touch()
    assert str(tmp_path / "lib64" / "libnvJitLink.so.12.8.93") in keys.system_toolkit()
    assert keys.toolchain.__wrapped__() != before


KEYS = """
import json
from draws.seeds import rng
from kernel_cases import FIRST, MORE, VARIANTS
from aicf.cuda_kernels.compiler import engine, keys
from aicf.device.spec import preset

found, cases = {{}}, [*FIRST, *MORE]
some = rng("keys").permutation(len(cases))[::{every}].tolist()
for n, case in {order}([(n, cases[n]) for n in some]):
    for i, l in enumerate(VARIANTS[case.variant].build(case.region, preset("h200"))):
        found[f"{{n}} {{case}} {{i}}"] = keys.kernel_key(l, engine.signature_of(l, case.region), "sm_90a")
print(json.dumps(found))
"""


@pytest.mark.sample(1, pool="processes")
def test_keys_are_the_same_in_every_process_and_order():
    """And every kernel of aicf's has one; drawn ones, unless all are wanted."""
    every = 1 if os.environ.get("AICF_TEST_ALL") else 24
    runs = [
        start(KEYS.format(order="list", every=every), PYTHONHASHSEED="1"),
        start(KEYS.format(order="reversed", every=every), PYTHONHASHSEED="2"),
    ]
    one, other = map(finish, runs)
    assert one == other and len(one) > 1200 / every
    assert all(one.values()) and len(set(one.values())) > 600 / every
