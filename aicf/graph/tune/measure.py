"""Measuring one region: each kernel is run on poisoned results and verified; those that are right are timed in turn.

Results stand between guards of poison, so that a kernel which writes outside of them is found. Operands and results are the
same memory for all kernels and all runs. What a program would find in a cache is there: on CUDA the second-level one holds
what fits, while on the host each run comes after other work, which leaves only the last-level one.
"""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...device.runtime import CudaRuntime
from ...device.tensor import ALIGNMENT, Runtime, Tensor
from ...dispatch import Call, KernelLoader
from ...errors import AicfError, KernelError, TuningError
from ...lazy import lazy
from ...registry.measured import Measured, Timing
from ...registry.registry import KernelRegistry
from ...rows import RegionSpec
from ...types import DType, TensorSpec
from ..run.capture import capture
from .verify import Trial, jumps

Clock = Callable[[], float]
Sample = Callable[[], float]  # microseconds of one run

DRAWS = 3  # of operands, where a rounding error may make a result jump
LEAST, MOST = 3, 50  # samples of each kernel
HOPELESS = 3.0  # a kernel that takes so many times the best one's time is sampled no further
SAMPLE_US = 200.0  # on CUDA a sample launches a short kernel again and again for about so long
LAUNCHES = 20  # at most
POISON = -1  # of every 4 bytes: a NaN in f32, f16 and bf16


@dataclass
class Bench:
    """One device. `region` measures; what has been compiled stays with the loader."""

    runtime: Runtime
    registry: KernelRegistry
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    clock: Clock = time.monotonic
    least: int = LEAST  # samples of each kernel that is not hopeless, whatever the deadline

    def __post_init__(self) -> None:
        self.loader = KernelLoader(self.registry, self.runtime)

    def region(self, region: RegionSpec, kernels: Sequence[str], deadline: float) -> Measured:
        """Verify these kernels, then time those that are right until the deadline, though not before a few samples.

        TuningError if the device can't go on: a CUDA context is lost with the kernel that broke it.
        """
        with self.runtime.current():
            table = self.table(region)
            bound: dict[str, Any] = {}
            refused: dict[str, str] = {}
            for id in kernels:
                try:
                    call, fault = table.verified(id)
                except Exception as error:  # a kernel is not to blame for what another one broke
                    self._check_device(id, region, error)
                    cause = error.__cause__ if isinstance(error, KernelError) and error.__cause__ else error
                    fault = f"{type(cause).__name__}: {cause.what if isinstance(cause, AicfError) else cause}"
                if fault:
                    refused[id] = fault
                else:
                    bound[id] = call
            samples = {id: self.sample(id, call) for id, call in bound.items()}
            return Measured(region, self._in_turn(samples, deadline), refused)

    def _check_device(self, id: str, region: RegionSpec, error: Exception) -> None:
        try:
            self.runtime.sync()
        except Exception as lost:
            raise TuningError(
                f"{id} broke the device, nothing more can be measured in this process",
                where=str(region), got=f"{error}; then {lost}",
            ) from error  # fmt: skip

    def table(self, region: RegionSpec) -> Any:
        """A region's tensors; its `verified` binds a kernel to them."""
        return _Table(self, region)

    def sample(self, id: str, call: Any) -> tuple[Sample, int]:
        """What takes one sample, and how many runs are in one."""
        if isinstance(self.runtime, CudaRuntime):
            return _device_sample(self.runtime, call, self.registry.by_id(id).capture_safe, *self.events)
        return _host_sample(call, self._wash), 1

    @lazy
    def events(self) -> tuple[Any, Any]:
        assert isinstance(self.runtime, CudaRuntime)
        driver, check = self.runtime.driver, self.runtime.check
        made = check(driver.cuEventCreate(0))[0], check(driver.cuEventCreate(0))[0]
        for event in made:
            weakref.finalize(self, driver.cuEventDestroy, event)
        return made

    @lazy
    def _wash(self) -> np.ndarray:
        """More data than the second-level cache holds."""
        return np.ones(2 * self.runtime.spec.l2_bytes // 4, np.float32)

    def _in_turn(self, samples: Mapping[str, tuple[Sample, int]], deadline: float) -> dict[str, Timing]:
        """One sample of each, again and again, so that a drifting clock rate meets all of them alike."""
        taken: dict[str, list[float]] = {id: [] for id in samples}
        collecting = gc.isenabled()
        gc.disable()
        try:
            for n in range(MOST):
                if n >= self.least and self.clock() >= deadline:
                    break
                best = min((statistics.median(times) for times in taken.values() if times), default=0.0)
                for id, (sample, _) in samples.items():
                    if n < LEAST or statistics.median(taken[id]) <= HOPELESS * best:
                        taken[id].append(sample())
        finally:
            if collecting:
                gc.enable()
        return {id: _timing(times, samples[id][1]) for id, times in taken.items()}


def _timing(times: list[float], per_sample: int) -> Timing:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(float(f"{median:.5g}"), float(f"{(high - low) / median:.3g}"), len(times) * per_sample)


# --- operands and results -----------------------------------------------------------------------------------------------


class _Table:
    """A region's tensors on the device, for one kernel after the other."""

    def __init__(self, bench: Bench, region: RegionSpec) -> None:
        self.bench, self.region, self.runtime = bench, region, bench.runtime
        self.trials = [Trial.draw(region, bench.rng)]
        self.operands = [self.runtime.empty(TensorSpec(t.shape, t.dtype, t.device)) for t in region.operands]
        self.results = [
            _Guarded(self.runtime, TensorSpec(t.shape, t.dtype, t.device)) for t in region.results
        ]

    def verified(self, id: str) -> tuple[Call, str | None]:
        """The kernel bound to these tensors, and what is wrong with it. A result that jumps may be right in another draw."""
        variant = self.bench.registry.by_id(id)
        nbytes = variant.query_workspace(self.region, self.runtime.spec)
        scratch = _Guarded(self.runtime, TensorSpec((-(-nbytes // 4),), DType.f32, self.runtime.kind))
        results = [r.tensor for r in self.results]
        call = self.bench.loader.bind(
            id, self.region, self.operands, results, scratch.tensor if nbytes else None
        )
        fault: str | None = None
        for n in range(DRAWS if jumps(self.region) else 1):
            if n == len(self.trials):
                self.trials.append(Trial.draw(self.region, self.bench.rng))
            fault = self._run(call, self.trials[n], [*self.results, scratch])
            if fault is None:
                break
        return call, fault

    def _run(self, call: Call, trial: Trial, written: Sequence[_Guarded]) -> str | None:
        for tensor, array in zip(self.operands, trial.operands):
            self.runtime.write(tensor, array)
        for guarded in written:
            guarded.poison()
        call()
        self.runtime.sync()
        if not all(guarded.intact() for guarded in written):
            return "it writes outside of its results"
        for n, (tensor, array) in enumerate(zip(self.operands, trial.operands)):
            if self.runtime.download(tensor).tobytes() != array.tobytes():
                return f"it changes operand {n}"
        return trial.fault([self.runtime.download(r.tensor) for r in self.results])


class _Guarded:
    """A tensor with poison before and behind it."""

    def __init__(self, runtime: Runtime, spec: TensorSpec) -> None:
        self.runtime, self.nbytes = runtime, spec.nbytes
        size = 2 * ALIGNMENT + -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        memory = runtime.allocate(size)
        self.whole: Tensor = runtime.view(memory, 0, TensorSpec((size // 4,), DType.i32, runtime.kind))
        self.tensor: Tensor = runtime.view(memory, ALIGNMENT, spec)

    def poison(self) -> None:
        self.runtime.write(self.whole, np.full(self.whole.shape, POISON, np.int32))

    def intact(self) -> bool:
        around = self.runtime.download(self.whole).view(np.uint8)
        return bool((around[:ALIGNMENT] == 255).all() and (around[ALIGNMENT + self.nbytes :] == 255).all())


# --- samples ------------------------------------------------------------------------------------------------------------


def _host_sample(call: Call, wash: np.ndarray) -> Sample:
    """One run, as it comes in a program: other work was done before it, so neither code nor data are in the nearest caches."""

    def sample() -> float:
        wash.sum()
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    return sample


def _device_sample(
    runtime: CudaRuntime, call: Call, capture_safe: bool, before: Any, behind: Any
) -> tuple[Sample, int]:
    """Device time by events around replays of a graph; the replay before them keeps the device busy until they are queued."""
    driver, check, stream = runtime.driver, runtime.check, runtime.stream.handle

    def timed(work: Callable[[], object]) -> float:
        work()
        check(driver.cuEventRecord(before, stream))
        work()
        check(driver.cuEventRecord(behind, stream))
        check(driver.cuEventSynchronize(behind))
        return float(check(driver.cuEventElapsedTime(before, behind))[0]) * 1e3

    launches = max(1, min(LAUNCHES, int(SAMPLE_US / max(timed(call), 1e-3))))
    if capture_safe:
        graph = capture(runtime, [call] * launches)
        return lambda: timed(graph.launch) / launches, launches
    return lambda: timed(lambda: [call() for _ in range(launches)]) / launches, launches
