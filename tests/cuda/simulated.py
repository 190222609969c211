"""Runs a script under numba's simulator, which has to be chosen before numba is imported: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import aicf


def outcomes_of(script: str) -> list[list[str]]:
    """What a script of this folder printed, as simulate.py does: [name, error] of each case; fails if one has an error."""
    paths = [
        str(Path(aicf.__file__).parents[1]),
        str(Path(__file__).parents[1]),
        os.environ.get("PYTHONPATH", ""),
    ]
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": os.pathsep.join(paths)}
    path = Path(__file__).with_name(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [f"{name}\n{error}" for name, error in outcomes if error]
    assert not wrong, "\n\n".join(wrong)
    return outcomes
