"""Kernels in numba's simulator: their arithmetic and every index, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...registry.variant import In, Launch, Num, Table, Work
from ..dsl import SIMULATED, materialise


def simulate(launch: Launch, arrays_in: Sequence[np.ndarray], arrays_out: Sequence[np.ndarray],
             workspace: np.ndarray | None = None) -> None:  # fmt: skip
    """Run a launch in the simulator; needs NUMBA_ENABLE_CUDASIM=1 from the start of the process.

    Each array is the memory behind a pointer: C-contiguous; results are written in place. `workspace` is of bytes.
    Indexing is checked, which a GPU does not do. Seconds per thousand threads: for tiny shapes only.
    """
    if not SIMULATED:
        raise DeviceError("the simulator is off", hint="set NUMBA_ENABLE_CUDASIM=1 before Python starts")
    from numba import cuda

    def of(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(of, arg))
        if isinstance(arg, Table):
            return list(map(of, arg.entries))  # an array in the place of each pointer
        if isinstance(arg, Num):
            return arg.dtype.numpy.type(arg.value)
        if isinstance(arg, Work):
            assert workspace is not None, "this launch uses a workspace"
            return workspace[arg.offset :].view(arg.dtype.numpy)
        memory = (arrays_in if isinstance(arg, In) else arrays_out)[arg.index]
        return (
            memory.reshape(-1)[arg.offset // memory.itemsize :]
            if memory.flags.c_contiguous
            else _refuse(memory)
        )

    with np.errstate(all="ignore"):
        kernel = cuda.jit(materialise(launch.body))
        kernel[launch.grid, launch.block, 0, launch.shared](*map(of, launch.args))


def _refuse(memory: np.ndarray) -> Any:
    raise DeviceError(
        "the simulator takes contiguous memory", got=f"strides {memory.strides} for {memory.shape}"
    )
