"""Times of kernels that start with cold caches: what the terms of predictions for memory describe.

`aicf tune` measures with operands in the second-level cache, and verifies results first. Here each launch has tensors of its own that the cache
does not hold, and results are not verified: references of large regions take longer than all that is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device.runtime import CudaRuntime
from ..device.tensor import Tensor
from ..dispatch import Call
from ..graph.run.capture import capture
from ..graph.tune.measure import Bench, Sample
from ..graph.tune.verify import draw_operands
from ..lazy import lazy
from ..ops.schema import schema_of
from ..registry.select import select
from ..rows import RegionSpec
from ..types import DType, OpKind, TensorDesc, TensorSpec

LAUNCHES = 50  # in a graph, at most: of kernels of 2 us, samples of 20 launches differ by 3 %
SAMPLE_US = 300.0  # of a graph
DRAWN = 2**22 - 3  # elements of an operand; longer ones repeat them, out of step with rows and tiles
WASHES = 3  # before a sample: the host needs so long to launch the graph behind them


@dataclass
class ColdBench(Bench):
    """A device whose second-level cache holds other data when a kernel starts."""

    least: int = 7

    def table(self, region: RegionSpec) -> Any:
        return ColdTensors(self, region)

    def sample(self, id: str, call: Sequence[Call]) -> tuple[Sample, int]:
        if not isinstance(self.runtime, CudaRuntime):
            return super().sample(id, call[0])
        return _cold_sample(
            self.runtime, call, self.registry.by_id(id).capture_safe, self._read_other_data, *self.events
        )

    @lazy
    def _read_other_data(self) -> Call:
        """Sums twice as many bytes as the cache holds. They are read, not written, so that nothing is left to be written back."""
        kind, schema = OpKind("reduce_sum"), schema_of("reduce_sum")
        source = TensorSpec(
            (max(1, 2 * self.runtime.spec.l2_bytes // 4096), 1024), DType.f32, self.runtime.kind
        )
        attrs = schema.pack(schema.normalized([source], {"axes": (1,), "keepdims": False}))
        (sums,) = schema.infer([source], attrs)
        region = RegionSpec.single(kind, attrs, [TensorDesc.dense(source)], [TensorDesc.dense(sums)])
        chosen = select(region, self.runtime.spec, self.registry).chosen.variant
        tensors = self.runtime.empty(source), self.runtime.empty(sums), self.workspace(chosen.id, region)
        self._other_data = tensors  # calls have pointers alone
        return self.loader.bind(chosen.id, region, tensors[:1], tensors[1:2], tensors[2])

    def prepare(self, kernels: Sequence[tuple[str, RegionSpec]]) -> None:
        """Compile the kernels of several regions together."""
        self.loader.prepare(kernels)

    def workspace(self, id: str, region: RegionSpec) -> Tensor | None:
        """The kernel's scratch memory, if it has any."""
        nbytes = self.loader.workspace(id, region)
        return self.runtime.empty(TensorSpec((nbytes,), DType.u8, self.runtime.kind)) if nbytes else None


class ColdTensors:
    """A region's tensors on the device, so often that launches in turn find none of theirs in the second-level cache."""

    def __init__(self, bench: ColdBench, region: RegionSpec) -> None:
        self.bench, self.region, self.runtime = bench, region, bench.runtime
        on_gpu, fitting = self.runtime.kind == "cuda", 4 * self.runtime.spec.l2_bytes // max(region.nbytes, 1)
        first = [self._memory(t) for t in region.operands]
        for tensor, array in zip(first, draw_operands(region, bench.rng, DRAWN)):
            self._fill(tensor, array)
        self.sets = [(first, [self._memory(t) for t in region.results])]
        self.scratch: list[Tensor | None] = []  # calls have pointers alone
        for _ in range(min(LAUNCHES, 1 + fitting) - 1 if on_gpu else 0):
            more = [self._memory(t) for t in region.operands]
            for target, source in zip(more, first):
                self.runtime.copy(target.ptr, source.ptr, source.spec.nbytes)
            self.sets.append((more, [self._memory(t) for t in region.results]))

    def _memory(self, desc: TensorDesc) -> Tensor:
        """All that its strides reach, in one dimension unless it is contiguous."""
        shape = desc.shape
        if not desc.contiguous and desc.numel:
            shape = (1 + sum((n - 1) * step for n, step in zip(shape, desc.stride)),)
        return self.empty(TensorSpec(shape, desc.dtype, self.runtime.kind))

    def strided(self, desc: TensorDesc, memory: Tensor) -> Tensor:
        """The tensor that kernels are bound to."""
        if memory.shape == desc.shape:
            return memory
        array, steps = memory.array, [step * desc.dtype.itemsize for step in desc.stride]
        if array is not None:
            array = np.ndarray(desc.shape, array.dtype, array.view(np.uint8), strides=steps)
        spec = TensorSpec(desc.shape, desc.dtype, self.runtime.kind)
        return Tensor(spec, memory.ptr, self.runtime, memory, desc.stride, array)

    def empty(self, spec: TensorSpec) -> Tensor:
        return self.runtime.empty(spec)

    def _fill(self, tensor: Tensor, array: Any) -> None:
        """Writes the values, and writes them again until the tensor is full."""
        if array.nbytes >= tensor.spec.nbytes:
            values = array.reshape(-1)[: tensor.spec.numel].reshape(tensor.shape)
            return self.runtime.write(tensor, values)
        spec = TensorSpec((array.size,), tensor.dtype, self.runtime.kind)
        block = self.runtime.view(tensor.owner, tensor.ptr - tensor.owner.ptr, spec)
        self.runtime.write(block, array.reshape(-1))
        filled = block.spec.nbytes
        while filled < tensor.spec.nbytes:
            more = min(filled, tensor.spec.nbytes - filled)
            self.runtime.copy(tensor.ptr + filled, tensor.ptr, more)
            filled += more

    def bind(self, id: str) -> list[Call]:
        """The kernel bound to each set."""
        scratch, region = self.bench.workspace(id, self.region), self.region
        self.scratch.append(scratch)
        return [
            self.bench.loader.bind(
                id,
                region,
                [*map(self.strided, region.operands, operands)],
                [*map(self.strided, region.results, results)],
                scratch,
            )
            for operands, results in self.sets
        ]

    def verified(self, id: str) -> tuple[list[Call], None]:
        """The same after one run; its results are not looked at."""
        calls = self.bind(id)
        calls[0]()
        self.runtime.sync()
        return calls, None


def _cold_sample(
    runtime: CudaRuntime, calls: Sequence[Call], capture_safe: bool, read_other: Call, before: Any, after: Any
) -> tuple[Sample, int]:
    """Device time of a graph of launches, each on the next set of tensors, after other data went through the cache."""
    driver, check, stream = runtime.driver, runtime.check, runtime.stream.handle

    def timed(work: Callable[[], object]) -> float:
        for _ in range(WASHES):
            read_other()
        check(driver.cuEventRecord(before, stream))
        work()
        check(driver.cuEventRecord(after, stream))
        check(driver.cuEventSynchronize(after))
        return float(check(driver.cuEventElapsedTime(before, after))[0]) * 1e3

    once = min(timed(calls[0]) for _ in range(3))
    launches = max(1, min(LAUNCHES, int(SAMPLE_US / max(once, 1e-3))))
    row = [calls[n % len(calls)] for n in range(launches)]
    if capture_safe:
        work: Callable[[], object] = capture(runtime, row).launch
    else:
        work = lambda: [call() for call in row]  # noqa: E731
    return lambda: timed(work) / launches, launches
