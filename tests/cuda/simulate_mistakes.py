"""Bodies that index out of bounds, in numba's simulator: each says so, the thread and the line. Prints as simulate.py does."""

from __future__ import annotations

import json
import os

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np

from aicf.cuda_kernels.compiler.simulate import simulate
from aicf.cuda_kernels.dsl import cuda
from aicf.errors import DeviceError
from aicf.registry.variant import In, Launch, Out


def before(x, y):
    i = cuda.grid(1)
    y[i] = x[i - 2]


def written_before(x, y):
    i = cuda.grid(1)
    y[i - 2] = x[i]


def behind(x, y):
    i = cuda.grid(1)
    y[i] = x[i + 2]


def inside(x, y):
    i = cuda.grid(1)
    y[i] = 2 * x[i]


def launched(body) -> np.ndarray:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    simulate(Launch(body, (1,), (4,), (In(0), Out(0))), [x], [y])
    return y


def wrong(body, said: str) -> str | None:
    try:
        launched(body)
    except IndexError as error:
        note = getattr(error, "__notes__", [""])[0]
        told = (
            said in str(error) and "tid=[" in str(error) and f"{__file__}:" in note and body.__name__ in note
        )
        return None if told else f"{error} {note}"
    return "nothing was raised"


def of_an_array() -> str | None:
    x = np.zeros((1, 4), np.float32)
    try:
        simulate(Launch(inside, (1,), (4,), (In(0), Out(0))), x, x)
    except DeviceError as error:
        return None if error.expected == "simulate(launch, [x], [y])" else str(error)
    return "nothing was raised"


print(json.dumps(["inside", None if launched(inside).tolist() == [0, 2, 4, 6] else "other numbers"]))
print(json.dumps(["read before", wrong(before, "out of bounds: memory of 4 elements begins at 0")]))
print(
    json.dumps(["written before", wrong(written_before, "out of bounds: memory of 4 elements begins at 0")])
)
print(json.dumps(["behind", wrong(behind, "out of bounds")]))
print(json.dumps(["an array", of_an_array()]))
