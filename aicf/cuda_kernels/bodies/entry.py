"""How kernels for sm_90 and later begin, so that the launch of each may overlap the end of the one before (programmatic
dependent launch): they wait for that one before they touch memory, and let the one after them begin to do the same.

A kernel is over only after it has waited; so all that came before it is over too, and kernels run as if one after another. One
that did not wait would have to be launched without leave to begin early.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..dsl import device
from .ptx import launch_next, wait_kernel


@functools.cache
def begin() -> Any:
    """`begin()`: what came before is done and seen; the next kernel may be brought onto the chip when all blocks are here.

    Called by every thread, before its first access to memory that another kernel may touch. A body that has something to do
    until then calls it itself, and says so by `body.waits = True`.
    """
    wait, let_go = wait_kernel(), launch_next()

    def both():
        wait()
        let_go()

    return device(both)


def waiting(body: Callable[..., None], arguments: int) -> Callable[..., None]:
    """The body, launched with so many arguments, after `begin`."""
    names = ", ".join(f"a{i}" for i in range(arguments))
    # numba takes no kernel of *args
    source = f"def make(begin, body):\n def kernel({names}):\n  begin()\n  body({names})\n return kernel"
    made: dict[str, Any] = {}
    exec(source, made)
    return made["make"](begin(), device(body))
