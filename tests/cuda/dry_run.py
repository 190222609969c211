"""A plugin: tests for a GPU, on a machine without one. Nothing is launched and no number compared; it fails where a kernel refuses what
it is asked to take, or its launches can't be made. Tests that go on to look at numbers, or at the device itself, are skipped there.

    python -m pytest -p dry_run -m gpu tests/cuda       (with tests and tests/cuda on PYTHONPATH; `make dry-run`)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import test_gpu_kernels as on_gpu
from cuda.pathfinder import DynamicLibNotFoundError
from kernel_cases import VARIANTS, Case, Operands

from aicf.cuda_kernels.compiler import engine
from aicf.device import runtime
from aicf.device.spec import preset
from aicf.errors import DeviceError

LARGE = 10**8  # elements; of these one is in memory


class Refused(Exception):
    """A kernel does not take what a test asks it to, or can't be launched."""


class Beyond(Exception):
    """What a GPU would be needed for."""


if runtime.cuda_missing() is None:
    raise pytest.UsageError("there is a GPU here, which this would not use: python -m pytest -m gpu")
runtime.cuda_missing = lambda: None  # tests for a GPU are not skipped: this is read before conftest.py is


class Dry(on_gpu.Gpu):
    def allocate(self, nbytes: int) -> int:
        return 4096

    def upload(self, pointer: int, array: np.ndarray) -> None:
        pass

    def download(self, pointer: int, nbytes: int) -> np.ndarray:
        raise Beyond

    def free(self) -> None:
        pass


def open_gpu() -> Dry:
    stream = SimpleNamespace(sync=lambda: None)
    return Dry(SimpleNamespace(create_stream=lambda: stream), stream, preset("h200"))


def launch_case(gpu: Dry, case: Case, memory: Sequence[np.ndarray], shift: int = 0,
                onto: dict[int, int] | None = None) -> list[np.ndarray]:  # fmt: skip
    variant, r = VARIANTS[case.variant], case.region
    try:
        if reject := variant.supported(r, gpu.spec):
            assert reject.condition == "needs", str(reject)
            pytest.skip(str(reject))
        assert variant.query_workspace(r, gpu.spec) >= 0
        for launch in variant.build(r, gpu.spec):
            engine.configuration(launch)
            engine.parameters(launch.args)
            assert launch.shared <= gpu.spec.shared_per_block, launch
            assert all(0 < blocks < 2**31 for blocks in launch.grid), launch
    except Exception as error:
        raise Refused(f"{case}: {error!r}") from error
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
    "lse_of": lambda x, weight: np.zeros(len(x)),
}  # fmt: skip
BEYOND = (Beyond, DeviceError, DynamicLibNotFoundError)


def pytest_collection_finish() -> None:
    """In the modules of tests, which have these by their names; where they come from they stay."""
    for name, module in list(sys.modules.items()):
        if name.startswith("test_") or name == "simulate":
            vars(module).update({n: f for n, f in REPLACED.items() if n in vars(module)})


@contextmanager
def as_far_as_it_goes() -> Iterator[None]:
    try:
        yield
    except BEYOND as error:
        pytest.skip(f"needs the device: {type(error).__name__}")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Any:
    with as_far_as_it_goes():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Any:
    try:
        with as_far_as_it_goes():
            return (yield)
    except AssertionError as error:
        if "no product is known" in str(error):
            raise
        pytest.skip("looks at numbers")
