"""The kernels' arithmetic on a machine without a GPU: numba's simulator against NumPy in float64.

It checks every index, which a GPU does not; it has no intrinsics, so these run through their plain Python twins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aicf


@pytest.mark.spec("F2")
def test_simulated_kernels_agree_with_numpy():
    script = Path(__file__).with_name("simulate.py")
    paths = [str(Path(aicf.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [f"{name}\n{error}" for name, error in outcomes if error]
    assert not wrong, "\n\n".join(wrong)
    assert len(outcomes) > 20
