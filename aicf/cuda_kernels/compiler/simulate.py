"""Kernels in numba's simulator: their arithmetic and every index, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...ops.whose_line import place
from ...registry.variant import In, Launch, Num, Table, Work
from ..dsl import SIMULATED, materialise, module


def simulate(launch: Launch, arrays_in: Sequence[np.ndarray], arrays_out: Sequence[np.ndarray],
             workspace: np.ndarray | None = None) -> None:  # fmt: skip
    """Run a launch in the simulator; needs NUMBA_ENABLE_CUDASIM=1 from the start of the process.

    Each array is the memory behind a pointer: C-contiguous; results are written in place. `workspace` is of bytes.
    Indexing is checked, which a GPU does not do: what is before a pointer is out of bounds too. What the body raises says which
    thread it was, with a note of the file and the line. Seconds per thousand threads: for tiny shapes only.
    """
    if not SIMULATED:
        raise DeviceError("the simulator is off", hint="set NUMBA_ENABLE_CUDASIM=1 before Python starts")
    for given in (arrays_in, arrays_out):
        if isinstance(given, np.ndarray):
            raise DeviceError(
                "the simulator takes lists of arrays, one for each pointer",
                expected="simulate(launch, [x], [y])", got=f"an array of shape {given.shape}", hint="put it into a list",
            )  # fmt: skip
    cuda = module("numba.cuda")

    def of(arg: Any) -> Any:
        if isinstance(arg, tuple):
            return tuple(map(of, arg))
        if isinstance(arg, Table):
            return list(map(of, arg.entries))  # an array in the place of each pointer
        if isinstance(arg, Num):
            return arg.dtype.numpy.type(arg.value)
        if isinstance(arg, Work):
            assert workspace is not None, "this launch uses a workspace"
            return workspace[arg.offset :].view(arg.dtype.numpy).view(_Memory)
        memory = (arrays_in if isinstance(arg, In) else arrays_out)[arg.index]
        return (
            memory.reshape(-1)[arg.offset // memory.itemsize :].view(_Memory)
            if memory.flags.c_contiguous
            else _refuse(memory)
        )

    with np.errstate(all="ignore"):
        kernel = cuda.jit(materialise(launch.body))
        try:
            kernel[launch.grid, launch.block, 0, launch.shared](*map(of, launch.args))
        except Exception as error:
            error.add_note(f"in the simulated kernel, at {place(error, launch.body)}")
            raise


class _Memory(np.ndarray):
    """What is behind a pointer. In NumPy x[-1] is the last element; on a GPU it is what lies before the first."""

    def __getitem__(self, index: Any) -> Any:
        _check(self, index)
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _check(self, index)
        super().__setitem__(index, value)


def _check(memory: np.ndarray, index: Any) -> None:
    if isinstance(index, (int, np.integer)) and index < 0:
        raise IndexError(f"index {index} is out of bounds: memory of {memory.size} elements begins at 0")


def _refuse(memory: np.ndarray) -> Any:
    raise DeviceError(
        "the simulator takes contiguous memory", got=f"strides {memory.strides} for {memory.shape}"
    )
