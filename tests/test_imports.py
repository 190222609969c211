"""The package's names, by every way to reach them, with and without the frameworks that some of them need."""

from __future__ import annotations

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
