"""What the tests of keys and of the cache share: processes of their own, and launches of any body."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel_cases import region

import aicf
from aicf.cuda_kernels.compiler import engine, keys
from aicf.registry.variant import In, Launch, Num, Out

TARGET = "sm_90a"
ADD = region("add", (8,), (8,))
PATHS = [
    str(Path(aicf.__file__).parents[1]),
    *map(str, Path(__file__).parents[:2]),
    os.environ.get("PYTHONPATH", ""),
]


def start(code: str, **env: str) -> subprocess.Popen:
    """Python in a process of its own that finds aicf, this folder and the one above."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS), **env}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def finish(process: subprocess.Popen) -> Any:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1])


EIGHT = Num(8)


def launch_of(body: Callable[..., None], block: tuple[int, ...] = (32,), number: Num = EIGHT) -> Launch:
    return Launch(body, (1,), block, (In(0), Out(0), number))


def key_of(launch: Launch, target: str = TARGET, r: Any = ADD) -> str | None:
    return keys.kernel_key(launch, engine.signature_of(launch, r), target)
