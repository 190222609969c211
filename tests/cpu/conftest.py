"""A cache of one test alone, for tests of what is compiled and stored for the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aicf.cpu_kernels.compiler import code, functions, shipped, toolchain


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an empty cache, which is on; compiled code in memory is dropped before and after. numba compiles scalar functions: a
    setting of its own, here its default, keeps those that come with aicf out."""
    monkeypatch.setenv("NUMBA_OPT", "3")
    monkeypatch.setenv("AICF_CACHE", "on")
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    forget()
    yield tmp_path / "kernels"
    forget()


def forget() -> None:
    toolchain.toolchain.cache_clear()  # which has the settings
    code.code_of.cache_clear()
    functions.function_of.cache_clear()
    shipped._entries.cache_clear()
