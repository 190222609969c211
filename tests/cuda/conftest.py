"""Tests that look at a kernel's machine code and then at its PTX have numba compile it once."""

from __future__ import annotations

import functools

import pytest

from aicf.cuda_kernels.compiler import compile as compiler


@pytest.fixture(scope="session", autouse=True)
def _one_compilation_of_each_launch():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "_ltoir", functools.lru_cache(maxsize=1)(compiler._ltoir))
        yield
