"""A plugin: tests for a GPU, without one. Nothing is launched and no number compared; it fails where a kernel refuses what it is
asked to take, or its launches can't be made.

    python -m pytest -p dry_run -m gpu tests/cuda       (with tests/cuda on PYTHONPATH; `make dry-run`)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_gpu_kernels as on_gpu
from kernel_cases import VARIANTS, Case, Operands

from aicf.cuda_kernels import engine
from aicf.device import runtime
from aicf.device.spec import preset

LARGE = 10**8  # elements; of these one is in memory


class Refused(Exception):
    """A kernel does not take what a test asks it to."""


class Dry(on_gpu.Gpu):
    def allocate(self, nbytes: int) -> int:
        return 4096

    def upload(self, pointer: int, array: np.ndarray) -> None:
        pass

    def download(self, pointer: int, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def free(self) -> None:
        pass


def open_gpu() -> Dry:
    stream = SimpleNamespace(sync=lambda: None)
    return Dry(SimpleNamespace(create_stream=lambda: stream), stream, preset("h200"))


def launch_case(gpu: Dry, case: Case, memory: Sequence[np.ndarray], shift: int = 0,
                onto: dict[int, int] | None = None) -> list[np.ndarray]:  # fmt: skip
    variant, r = VARIANTS[case.variant], case.region
    reject = variant.supported(r, gpu.spec)
    if reject is not None and reject.condition == "needs":
        pytest.skip(str(reject))
    if reject is not None:
        raise Refused(f"{case}: {reject}")
    variant.query_workspace(r, gpu.spec)
    for launch in variant.build(r, gpu.spec):
        engine.configuration(launch)
        engine.parameters(launch.args)
        if launch.shared > gpu.spec.shared_per_block or not all(0 < g < 2**31 for g in launch.grid):
            raise Refused(f"{case}: {launch}")
    return _zeros(r.results)


def _zeros(tensors: Sequence[Any]) -> list[np.ndarray]:
    return [
        np.broadcast_to(np.zeros((), t.dtype.numpy), t.shape)
        if t.numel > LARGE
        else np.zeros(t.shape, t.dtype.numpy)
        for t in tensors
    ]


def operands_for(case: Case, seed: int = 0) -> Operands:
    made = _zeros(case.region.operands)
    return SimpleNamespace(arrays=made, memory=made)  # type: ignore[return-value]


REPLACED = {
    "open_gpu": open_gpu, "launch_case": launch_case, "operands_for": operands_for, "assert_close": lambda *args, **more: None,
    "reference": lambda case, arrays, exact=True: _zeros(case.region.results),
}  # fmt: skip
runtime.cuda_missing = lambda: None  # tests for a GPU are not skipped: this is read before conftest.py is


def pytest_collection_finish() -> None:
    """In the modules of tests, which have these by their names; where they come from they stay."""
    for name, module in list(sys.modules.items()):
        if name.startswith("test_") or name == "simulate":
            vars(module).update({n: f for n, f in REPLACED.items() if n in vars(module)})


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Any:
    """A test that goes on to look at numbers, or at the device itself, has told all that it can."""
    try:
        return (yield)
    except Exception as error:
        if isinstance(error, Refused) or "no product is known" in str(error):
            raise
        pytest.skip(f"needs the device: {type(error).__name__}")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Any:
    try:
        return (yield)
    except Exception as error:
        pytest.skip(f"needs the device: {type(error).__name__}")
