"""The seed of a run, and generators that follow from it: the same in every worker process, and again when it is set."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np

VARIABLE = "AICF_TEST_SEED"


@functools.cache
def run_seed() -> str:
    """AICF_TEST_SEED; else the commit's hash, so that each commit draws anew; else, without git, 0."""
    if seed := os.environ.get(VARIABLE):
        return seed
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return "0"  # a source distribution inside somebody's repository
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True)
    return found.stdout.strip()[:12] if found.returncode == 0 else "0"


def run_number() -> int:
    """The seed of the run as a number of 32 bits, for libraries that take one."""
    return int.from_bytes(hashlib.blake2b(run_seed().encode(), digest_size=4).digest(), "little")


def rng(*words: object) -> np.random.Generator:
    """A generator for what these words name, such as a test's id, under the seed of the run."""
    return seeded(run_seed(), *words)


def seeded(*words: object) -> np.random.Generator:
    """A generator that depends on these words alone, not on the process."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
