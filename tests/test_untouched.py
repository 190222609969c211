"""Collecting tests opens no device: a module that does so is an error of collection that names it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HAS_JAX = importlib.util.find_spec("jax") is not None
MODULES = {
    "JAX": "import jax\nX = jax.numpy.ones(3)",
    "aicf": "from aicf.device import runtime\ntry:\n    runtime.CudaRuntime(0)\nexcept Exception:\n    pass",
    "none": "from aicf.device.runtime import CudaRuntime\nassert CudaRuntime.__name__ == 'CudaRuntime'\n"
    "import jax, numpy as np\nX = np.ones(3)\nF = jax.jit(lambda x: x + 1)\nS = jax.ShapeDtypeStruct((3,), np.float32)",
}


@pytest.mark.sample(1, pool="processes")
def test_a_module_that_opens_a_device_is_not_collected(tmp_path):
    """One process collects them all: two are refused by name, and the third, which opens none, has its test."""
    modules = {name: text for name, text in MODULES.items() if HAS_JAX or "jax" not in text}
    for library, text in modules.items():
        (tmp_path / f"test_{library}.py").write_text(f"{text}\n\ndef test_one():\n    pass\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "untouched",
        "-p",
        "no:cacheprovider",
        ".",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{HERE}:{HERE.parent}"},
    )  # fmt: skip
    opened = set(re.findall(r"test_(\w+)\.py: (\w+) opened a device while tests were collected", done.stdout))
    assert opened == {(name, name) for name in modules if name != "none"}, done.stdout + done.stderr
    errors, _, _ = done.stdout.partition(
        "short test summary info"
    )  # which repeats them where the environment is a CI's
    assert errors.count("next: at module level use NumPy") == len(opened) and done.returncode == 2
    assert re.findall(r"test_(\w+)\.py::", done.stdout) == (["none"] if HAS_JAX else [])
