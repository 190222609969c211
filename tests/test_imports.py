"""The package's names, by every way to reach them, with and without the frameworks that some of them need."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from draws.seeds import rng

import aicf

FRAMEWORKS = "jax", "onnx", "torch"
HIDE = """
import importlib.abc, json, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run(code: str, hidden: tuple[str, ...] = FRAMEWORKS) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(Path(aicf.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", f"HIDDEN = {hidden!r}{HIDE}{code}"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


EVERY_WAY = """
import inspect, pydoc, pkgutil, importlib, types
import aicf
answers = {}
def attempt(what, do):
    try:
        answers[what] = do()
    except BaseException as error:
        answers[what] = [[k.__name__ for k in type(error).__mro__], str(error)]
star = {}
attempt("star", lambda: exec("from aicf import *", star))
attempt("all", lambda: [getattr(aicf, n) for n in aicf.__all__] and None)
attempt("help", lambda: pydoc.render_doc(aicf) and None)
attempt("getmembers", lambda: inspect.getmembers(aicf) and None)
attempt("dir", lambda: [n for n in dir(aicf) if not hasattr(aicf, n)])
for name in NAMES:
    attempt(f"has {name}", lambda: hasattr(aicf, name))
    attempt(f"get {name}", lambda: getattr(aicf, name) and None)
    attempt(f"or {name}", lambda: getattr(aicf, name, "none") == "none")
    attempt(f"import {name}", lambda: importlib.import_module(f"aicf.{name}") is getattr(aicf, name))
    attempt(f"from {name}", lambda: exec(f"from aicf import {name}", {}))
for found in pkgutil.iter_modules(aicf.__path__):
    attempt(f"module {found.name}", lambda: importlib.import_module(f"aicf.{found.name}") and None if found.name != "__main__" else None)
for module in MODULES:
    made = importlib.import_module(module)
    attempt(f"star of {module}", lambda: exec(f"from {module} import *", {}))
    attempt(f"members of {module}", lambda: inspect.getmembers(made) and None)
    attempt(f"no of {module}", lambda: hasattr(made, "no_such_name"))
answers["imported"] = sorted({n.partition(".")[0] for n in sys.modules} & {"torch", "jax"})
print(json.dumps(answers))
"""
MODULES = ("aicf.nn", "aicf.models", "aicf.training", "aicf.distributed", "aicf.errors", "aicf.frontends", "aicf.frontends.onnx")  # fmt: skip
NEEDS = {"jax": "jax", "torch": "torch", "from_torch": "torch", "onnx_backend": "onnx"}


@pytest.fixture(scope="module")
def base() -> dict:
    names = (*NEEDS, "from_onnx", "no_such_name", "_private")
    done = run(f"NAMES, MODULES = {names!r}, {MODULES!r}\n{EVERY_WAY}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spec("F1")
def test_a_base_install_can_be_looked_through(base):
    for what in ("star", "all", "help", "getmembers"):
        assert base[what] is None, base[what]
    assert base["dir"] == [] and base["imported"] == []
    for module in MODULES:
        assert base[f"star of {module}"] is None and base[f"members of {module}"] is None, base
        assert base[f"no of {module}"] is False
    assert base["has from_onnx"] and base["get from_onnx"] is None


@pytest.mark.spec("F1")
@pytest.mark.parametrize("name", NEEDS)
def test_what_needs_a_framework_is_absent_without_it_and_says_what_to_install(base, name):
    assert base[f"has {name}"] is False and base[f"or {name}"] is True
    kinds, text = base[f"get {name}"]
    assert {"FrontendError", "AttributeError"} <= set(kinds)
    assert f"aicf.{name} needs the package" in text and text.endswith(f"next: pip install {NEEDS[name]}")
    kinds, text = base[f"from {name}"]
    assert "ImportError" in kinds
    if name != "from_torch":  # is no module
        assert text.endswith(f"next: pip install {NEEDS[name]}")
        kinds, text = base[f"import {name}"]
        assert {"FrontendError", "ImportError"} <= set(kinds) and text.endswith(f"pip install {NEEDS[name]}")


def test_all_other_modules_are_imported_without_frameworks(base):
    failed = {what: said for what, said in base.items() if what.startswith("module ") and said is not None}
    assert set(failed) == {"module jax", "module torch", "module onnx_backend"}
    assert all("MissingPackageError" in said[0] for said in failed.values())


@pytest.mark.sample(1, pool="processes")
@pytest.mark.parametrize("name", ["jax", "onnx_backend"])
def test_a_module_is_the_same_by_import_and_as_an_attribute(name):
    pytest.importorskip(NEEDS[name])
    code = f"""
import aicf.{name} as first
import aicf
from aicf import {name} as second
assert first is second is aicf.{name} is sys.modules["aicf.{name}"]
assert hasattr(aicf, {name!r})
"""
    done = run(code, hidden=())
    assert done.returncode == 0, done.stderr


def test_a_framework_that_is_broken_is_named_with_its_error(tmp_path):
    (tmp_path / "jax.py").write_text("raise OSError('libfoo.so: cannot open shared object file')\n")
    code = f"sys.path.insert(0, {str(tmp_path)!r})\nimport aicf\nassert not hasattr(aicf, 'jax')\nimport aicf.jax"
    done = run(code, hidden=())
    assert "MissingPackageError: aicf.jax needs the package jax, which can't be imported" in done.stderr
    assert "libfoo.so" in done.stderr


def test_every_public_name_is_reached_and_misspellings_are_attribute_errors():
    """Drawn over the names: each is there by getattr and in dir; with a letter changed it is an AttributeError, and so absent."""
    draw = rng(__name__)
    modules = (aicf, aicf.nn, aicf.models, aicf.training, aicf.distributed, aicf.errors, aicf.nn.init, aicf.nn.schedules)  # fmt: skip
    for module in modules:
        for name in dir(module):
            assert hasattr(module, name), (module, name)
            at = int(draw.integers(len(name) + 1))
            wrong = name[:at] + chr(ord("a") + int(draw.integers(26))) + name[at:]
            if wrong not in vars(module):
                assert not hasattr(module, wrong), f"{module.__name__}.{wrong}"
                with pytest.raises(AttributeError):
                    getattr(module, wrong)


# --- what an import costs -----------------------------------------------------------------------------------------------

HEAVY = (
    "numpy",
    "numba",
    "llvmlite",
    "rich",
    "ml_dtypes",
    "logging",
    "multiprocessing",
    "concurrent",
    "inspect",
    "dataclasses",
    "html",
    "socket",
)
USES = {
    "": (*HEAVY, "aicf.types", "aicf.ops", "aicf.graph"),
    "aicf.f32, aicf.TensorSpec": ("numba", "llvmlite", "rich", "aicf.ops", "aicf.graph"),
    "aicf.nn.Linear(2, 3)": ("numba", "llvmlite", "aicf.cuda_kernels", "aicf.distributed", "aicf.models"),
    "aicf.compile, aicf.default_registry()": ("numba", "llvmlite", "aicf.cuda_kernels", "aicf.distributed", "aicf.models"),
    "aicf.schema_of('add')": ("numba", "llvmlite", "aicf.cuda_kernels", "aicf.graph"),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("uses", USES)
def test_what_is_not_used_is_not_imported(uses):
    """`import aicf` and one use; the modules that were imported for nothing are named."""
    done = run(
        f"before = {{*sys.modules}}\nimport aicf\n{uses}\nprint(json.dumps([*sys.modules.keys() - before]))",
        hidden=(),
    )
    assert done.returncode == 0, done.stderr
    assert not sorted(set(json.loads(done.stdout)) & set(USES[uses]))


COSTS = """
from pace import least_seconds
def fresh():
    for name in [n for n in sys.modules if n.partition(".")[0] == "aicf"]:
        del sys.modules[name]
    import aicf
print(json.dumps(least_seconds(fresh, LIMIT) < LIMIT))
"""


def test_an_import_takes_milliseconds():
    """As long as it would take alone on a known machine (pace.py)."""
    tests = str(Path(__file__).parent)
    done = run(f"sys.path.insert(0, {tests!r})\nLIMIT = 0.03\n{COSTS}", hidden=())
    assert done.stdout == "true\n", done.stderr


def test_names_are_defined_where_the_package_looks_for_them():
    """Each public name of the table is in its module, and each is public."""
    for name, module in aicf._MODULE_OF.items():
        assert name in aicf.__all__ and getattr(importlib.import_module(f"aicf.{module}"), name) is getattr(
            aicf, name
        )


@pytest.mark.sample(1, pool="processes")
def test_any_name_may_be_the_first(request):
    """Drawn names, each in a process of its own, whose modules are imported in another order than those of the others."""
    draw = rng(request.node.nodeid)
    for name in draw.choice([n for n in aicf.__all__ if n != "onnx_backend"], 2, replace=False):
        done = run(
            f"import aicf\naicf.{name}\naicf.compile, aicf.nn, aicf.op_call, aicf.schema_of('scan'), aicf.models",
            hidden=(),
        )
        assert done.returncode == 0, (name, done.stderr)


TOGETHER = """
import threading
import aicf
names, errors = {names}, []
barrier = threading.Barrier(len(names))
def first(name):
    barrier.wait()
    try:
        getattr(aicf, name)
    except BaseException as error:
        errors.append((name, repr(error)))
threads = [threading.Thread(target=first, args=(name,)) for name in names]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
"""


@pytest.mark.sample(1, pool="processes")
def test_threads_may_use_names_first_at_once(request):
    names = [n for n in aicf.__all__ if n not in ("onnx_backend", "from_onnx")]
    for some in (["KernelRegistry", "schemas"], list(rng(request.node.nodeid).permutation(names)[:12])):
        done = run(TOGETHER.format(names=list(map(str, some))), hidden=())
        assert done.returncode == 0, (some, done.stderr)


FIRST = {
    "from aicf.ops.schema import schema_of": "schema_of('no_such_op')",  # asks for ops of other packages
    "from aicf.device.spec import preset": "preset('h100'), preset('no such board')",
    "from aicf.dispatch import op_call\nimport numpy as np": "op_call('cumsum', [np.ones(3, np.float32)], [np.ones(3, np.float32)], {'axis': 0})\nraise SystemExit('no op is called')",
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", FIRST)
def test_what_a_module_above_does_is_there_without_its_import(first):
    done = run(f"{first}\n{FIRST[first]}", hidden=())
    assert "no op is called" in done.stderr or "no device preset is called" in done.stderr, done.stderr


def test_a_registry_loads_deferred_variants_when_they_are_looked_at(request):
    """By every way to look, each first: they are found, once, and the registry's generation stays."""
    from types import ModuleType

    from aicf.device.spec import preset
    from aicf.registry.registry import KernelRegistry

    variants = [v for v in aicf.default_registry() if v.device == "cuda"]
    draw = rng(request.node.nodeid)
    some = [variants[n] for n in draw.choice(len(variants), 5, replace=False)]
    ways = [
        lambda r: list(r) == sorted(some, key=lambda v: v.id.rstrip("]").split("[")), lambda r: len(r) == 5, lambda r: some[0].id in r,
        lambda r: r.by_id(some[1].id) is some[1], lambda r: set(r.index(preset("h100")).variants) <= set(some),
        lambda r: set(r.copy()) == set(some), lambda r: {v for v in some if "gemm" in v.kinds} <= set(r.variants("gemm")) <= set(some),
    ]  # fmt: skip
    for way in ways:
        loaded, module = [], ModuleType("drawn")
        vars(module).update({v.name: v for v in some})
        registry = KernelRegistry()
        registry.defer("cuda", lambda loaded=loaded, module=module: loaded.append(1) or [module])
        registry.index(preset("cpu"))
        assert not loaded
        before = registry.generation
        assert way(registry) and way(registry)
        assert (loaded, registry.generation) == ([1], before), ways.index(way)
        registry.remove(some[0].id)
        assert some[0].id not in registry and len(registry) == 4
