"""Collecting tests opens no device: a module that does so is an error of collection that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODULES = {
    "JAX": "import jax\nX = jax.numpy.ones(3)",
    "aicf": "from aicf.device import runtime\ntry:\n    runtime.CudaRuntime(0)\nexcept Exception:\n    pass",
    "": "import jax, numpy as np\nX = np.ones(3)\nF = jax.jit(lambda x: x + 1)\nS = jax.ShapeDtypeStruct((3,), np.float32)",
}


@pytest.mark.parametrize("library", MODULES, ids=lambda name: name or "none")
def test_a_module_that_opens_a_device_is_not_collected(library, tmp_path):
    if "jax" in MODULES[library]:
        pytest.importorskip("jax")
    module = tmp_path / "test_it.py"
    module.write_text(f"{MODULES[library]}\n\ndef test_one():\n    pass\n")
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
        str(module),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{HERE}:{HERE.parent}"},
    )  # fmt: skip
    said = f"test_it.py: {library} opened a device while tests were collected" in done.stdout
    assert (done.returncode, said) == ((2, True) if library else (0, False)), done.stdout + done.stderr
    assert ("next: at module level use NumPy" in done.stdout) is bool(library)
