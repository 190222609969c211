"""A launch on the model of a Hopper multiprocessor, against NumPy."""

from __future__ import annotations

import numpy as np
from kernel_cases import Case, assert_close, reference
from machines.hopper_model import NOTHING, Machine

from aicf.registry.variant import Launch
from aicf.rows import RegionSpec


def run_launch(
    launch: Launch, r: RegionSpec, seed: int, grid: int = 0, machine: type[Machine] = Machine, tolerance: float = 0.0,
    workspace: np.ndarray = NOTHING, at_once: int = 0,
) -> list[np.ndarray]:  # fmt: skip
    """With small whole numbers: sums are exact, whatever their order. What lies between rows is NaN. `grid`: fewer blocks."""
    rng, ins, arrays = np.random.default_rng(seed), [], []
    for d in r.operands:
        arrays.append(rng.integers(-2, 3, d.shape).astype(d.dtype.numpy))
        nothing = np.nan if d.dtype.kind == "float" else 0
        memory = np.full(1 + sum((e - 1) * s for e, s in zip(d.shape, d.stride)), nothing).astype(
            d.dtype.numpy
        )
        view = np.ndarray(d.shape, d.dtype.numpy, memory, strides=[s * d.dtype.itemsize for s in d.stride])
        view[...] = arrays[-1]
        arrays[-1] = view.copy()  # where a stride is 0, the last of what was written
        ins.append(memory)
    outs = [np.full(d.numel, np.nan).astype(d.dtype.numpy) for d in r.results]
    machine(seed).launch(launch, ins, outs, grid, workspace, at_once)
    got = [x.reshape(d.shape) for x, d in zip(outs, r.results)]
    assert_close(Case("", r, tolerance=tolerance), got, reference(Case("", r), arrays))
    return got
