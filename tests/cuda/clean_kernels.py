"""Kernels that have been compiled and found clean: `make test` compiles those that are not among them, and a drawn few others.

clean_kernels.txt has a digest for each, of the source of all that its code depends on, whatever it is called, the same for every Python, without the versions of
what compiles it. `AICF_ACCEPT=1 make test`
adds those that it lacks; remove the file before to be rid of those that are no more.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from aicf.code_cache.digest import Portable
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.keys import kernel_digest
from aicf.registry.variant import Launch
from aicf.rows import RegionSpec

FILE = Path(__file__).with_name("clean_kernels.txt")
BY_SOURCE = Portable()  # of all kernels, which share most of what they call
KNOWN = frozenset(FILE.read_text().split()) if FILE.exists() else frozenset()
FOUND = os.environ.get("AICF_CLEAN_KERNELS")  # a folder, in which each process of a run has a file


def digest(launch: Launch, region: RegionSpec, target: str) -> str:
    made = kernel_digest(launch, engine.signature_of(launch, region), target, region.strict, BY_SOURCE)
    assert made is not None, f"{launch} depends on something that can't be described"
    return made.hex()[:12]


def are_new(launches: Sequence[Launch], region: RegionSpec, target: str) -> bool:
    return any(digest(launch, region, target) not in KNOWN for launch in launches)


def found_clean(launch: Launch, region: RegionSpec, target: str) -> None:
    if FOUND:
        with Path(FOUND, f"{os.getpid()}.txt").open("a") as file:
            file.write(digest(launch, region, target) + "\n")


def accept(folder: str) -> None:
    """What the processes of a run have found is known from now on."""
    found = {line for file in Path(folder).glob("*.txt") for line in file.read_text().split()}
    FILE.write_text("".join(f"{line}\n" for line in sorted(KNOWN | found)))
