"""How kernels for sm_90 and later begin, so that the launch of each may overlap the end of the one before (programmatic
dependent launch): they wait for that one before they touch memory.

A kernel is over only after it has waited; so all that came before it is over too, and kernels run as if one after another. One
that did not wait would have to be launched without leave to begin early.

Blocks of the next kernel come onto the chip when this one's have left. `launch_dependents` could let them come as soon as all of this
one's are there. On an H200 that took a step of a network of 4 layers of 512 from 102 us to 123. Why was not measured; presumably
they come where there is room then, several to a multiprocessor, beside others that are still at work and get none later. Hopper's
products, which fill a multiprocessor, let the next one come when they have asked for their last slice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dsl import device
from ..ptx import wait_kernel


def begin() -> Any:
    """`begin()`: what came before is done and seen.

    Called by every thread, before its first access to memory that another kernel may touch. A body that has something to do
    until then calls it itself, and says so by `body.waits = True`.
    """
    return wait_kernel()


def waiting(body: Callable[..., None], arguments: int) -> Callable[..., None]:
    """The body, launched with so many arguments, after `begin`."""
    names = ", ".join(f"a{i}" for i in range(arguments))
    # numba takes no kernel of *args
    source = f"def make(begin, body):\n def kernel({names}):\n  begin()\n  body({names})\n return kernel"
    made: dict[str, Any] = {}
    exec(source, made)
    return made["make"](begin(), device(body))
