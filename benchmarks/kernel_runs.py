"""Kernels of a region on random data: checked against the region's reference in f64, then timed, on either device.

Results are stored between guards of poison. On a GPU the reference is PyTorch's where it has the op, so that large regions are
checked too; launches have sets of operands of their own, so that none finds its data in the L2 cache. On the host data stay warm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import aicf
from aicf.calibrate.measure import ColdBench, ColdTensors
from aicf.device.runtime import runtime
from aicf.device.tensor import ALIGNMENT, Tensor
from aicf.graph.tune import verify
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec

from .harness import Bench, WrongResult
from .stats import Sample, enough, wall

TOLERANCE = {
    **verify.TOLERANCE,
    DType.f32: 5e-5,
    DType.f16: 5e-3,
    DType.bf16: 4e-2,
}  # of an element and of the root mean square of all
ROUNDED = 4e-3  # the same, of products of tf32
LOOKS = 3  # at first, of which the least counts, as a run may be disturbed
SAMPLE_S = 3e-3  # on the host a sample runs a kernel again and again for about so long
LARGEST_ON_HOST = 2**21  # bytes of a region that NumPy computes
POISON = 255  # of every byte: a NaN in f32, f16 and bf16


@dataclass(frozen=True)
class Bound:
    """A kernel, bound to each set of tensors. `seconds`: of one run, roughly."""

    id: str
    calls: Sequence[Callable[[], Any]]
    seconds: float


class KernelRuns:
    """One device and its kernels."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.runtime = bench, runtime(bench.device)
        self.cold = ColdBench(self.runtime, aicf.default_registry(), bench.rng)
        self.registry, self.prepare = self.cold.registry, self.cold.prepare

    @property
    def spec(self) -> aicf.DeviceSpec:
        return self.runtime.spec

    def table(self, region: RegionSpec, shift: int = 0) -> Table:
        return Table(self, region, shift)

    def once(self, call: Callable[[], Any]) -> float:
        """Seconds of one run, roughly."""
        look = self.bench.lab.device_time(call, 1) if self.bench.on_gpu else wall(call, 1)
        return max(min(look() for _ in range(LOOKS)), 1e-7)

    def sample(self, bound: Bound) -> Sample:
        """Takes one measurement: seconds of one run, on a GPU with cold caches."""
        if self.bench.on_gpu:
            microseconds, _ = self.cold.sample(bound.id, bound.calls)
            return lambda: microseconds() * 1e-6
        call, seconds = bound.calls[0], SAMPLE_S / 10 if self.bench.tiny else SAMPLE_S
        return wall(call, max(enough(call, seconds) for _ in range(3)))  # a look may be disturbed


class Table(ColdTensors):
    """A region's tensors between guards, for one kernel after the other. `shift`: elements past alignment that each tensor starts."""

    def __init__(self, runs: KernelRuns, region: RegionSpec, shift: int) -> None:
        self.runs, self.shift = runs, shift
        super().__init__(runs.cold, region)

    def empty(self, spec: TensorSpec) -> Tensor:
        size = 3 * ALIGNMENT + -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        return self.runtime.view(
            self.runtime.allocate(size), ALIGNMENT + self.shift * spec.dtype.itemsize, spec
        )

    # --- verifying ----------------------------------------------------------------------------------------------------

    def checked(self, kernel_id: str) -> Bound:
        """Bind a kernel to every set and run it; WrongResult if it is wrong in the first, or writes outside of its results."""
        calls, results = self.bind(kernel_id), self.sets[0][1]
        for tensor in results:
            self._memory_of(tensor)[...] = POISON
        calls[0]()
        self.runtime.sync()
        for n, tensor in enumerate(results):
            self._check(f"{kernel_id}, result {n}", n, tensor)
        return Bound(kernel_id, calls, self.runs.once(calls[-1]))

    def _memory_of(self, tensor: Tensor) -> Any:
        """All bytes of its allocation, as an array of NumPy or PyTorch."""
        nbytes = tensor.owner.nbytes
        view = self.runtime.view(tensor.owner, 0, TensorSpec((nbytes,), DType.u8, self.runtime.kind))
        return self.runs.bench.lab.torch.from_dlpack(view) if self.runs.bench.on_gpu else view.array

    def _elements(self, desc: TensorDesc, memory: Tensor) -> Any:
        """By the region's strides; floats in f64."""
        tensor = self.strided(desc, memory)
        if self.runs.bench.on_gpu:
            elements = self.runs.bench.lab.torch.from_dlpack(tensor)
            return elements.double() if elements.is_floating_point() else elements
        return tensor.array.astype(np.float64) if desc.dtype.kind == "float" else tensor.array

    @cached_property
    def _wanted(self) -> list[Any]:
        """The region's ops one after the other in f64. Of a large region with an op that only NumPy has, what the first kernel computed: then kernels are compared with
        each other."""
        region, (operands, results) = self.region, self.sets[0]
        torch = _Torch(self.runs.bench.lab.torch) if self.runs.bench.on_gpu else None
        if (
            torch
            and region.nbytes > LARGEST_ON_HOST
            and any(op.kind.name not in torch.ops for op in region.ops)
        ):
            return [self._elements(*pair).clone() for pair in zip(region.results, results)]
        values = dict(zip(region.inputs, map(self._elements, region.operands, operands)))
        apply = torch.apply if torch else _reference
        for op in region.ops:
            values.update(zip(op.outputs, apply(op.kind.name, [values.get(t) for t in op.inputs], op.attrs)))
        return [values[t] for t in region.outputs]

    @cached_property
    def _tolerance(self) -> dict[int, float]:
        """Of each tensor that the region computes: it inherits the roundings of those before it."""
        tolerances: dict[int, float] = {}
        for op in self.region.ops:
            before = max((tolerances.get(t, 0.0) for t in op.inputs), default=0.0)
            before = max(before, ROUNDED * (op.attrs.get("precision") is aicf.Precision.tf32))
            types = {t: self.region.tensors[t].dtype for t in op.outputs}
            tolerances |= {t: max(before, TOLERANCE.get(dtype, 0.0)) for t, dtype in types.items()}
        return tolerances

    def _check(self, what: str, n: int, tensor: Tensor) -> None:
        """Elements near the reference, guards as they were."""
        memory, start = self._memory_of(tensor), tensor.ptr - tensor.owner.ptr
        end, desc, want = start + tensor.spec.nbytes, self.region.results[n], self._wanted[n]
        if not (bool((memory[:start] == POISON).all()) and bool((memory[end:] == POISON).all())):
            raise WrongResult(f"{what}: written outside of the result")
        if not desc.numel:
            return
        got = self._elements(desc, tensor)
        bad = got != want
        if desc.dtype.kind == "float":
            usual = float((want * want).mean()) ** 0.5
            bad &= ~(abs(got - want) <= self._tolerance[self.region.outputs[n]] * (abs(want) + usual))
        if bool(bad.any()):
            first = int(bad.reshape(-1).nonzero()[0][0])
            raise WrongResult(
                f"{what}: {int(bad.sum())} elements are wrong; the first, {first}, is {got.reshape(-1)[first]}, "
                f"expected {want.reshape(-1)[first]}"
            )


# --- references -------------------------------------------------------------------------------------------------------


def _reference(kind: str, operands: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    return schema_of(kind).call_reference(operands, attrs)


class _Torch:
    """The ops' references on a GPU; what is not here is computed by NumPy, for operands of moderate size."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.ops: dict[str, Callable[..., Any]] = {
            "add": torch.add, "sub": torch.sub, "mul": torch.mul, "relu": torch.relu, "tanh": torch.tanh,
            "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
            "relu_grad": lambda dy, y: dy * (y > 0),
            "scale": lambda x, factor: x * factor,
            "bias_add": lambda x, bias: x + (bias if len(bias) in (1, x.shape[-1]) else bias[:, None]),
            "broadcast_in_dim": self._broadcast,
            "gemm": self._gemm,
            "reduce_sum": lambda x, axes, keepdims: torch.sum(x, axes, keepdims),
            "reduce_mean": lambda x, axes, keepdims: torch.mean(x, axes, keepdims),
            "reduce_max": lambda x, axes, keepdims: torch.amax(x, axes, keepdims),
        }  # fmt: skip

    def apply(self, kind: str, operands: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        if kind in self.ops:
            return (self.ops[kind](*(x for x in operands if x is not None), **attrs),)
        host = [x if x is None else x.cpu().numpy() for x in operands]
        device = next(x.device for x in operands if x is not None)
        return tuple(self.torch.from_numpy(np.asarray(a)).to(device) for a in _reference(kind, host, attrs))

    def _gemm(self, a: Any, b: Any, trans_a: bool, trans_b: bool, alpha: float, **types: Any) -> Any:
        return alpha * self.torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)

    def _broadcast(self, x: Any, shape: Sequence[int], dims: Sequence[int]) -> Any:
        placed = [x.shape[dims.index(i)] if i in dims else 1 for i in range(len(shape))]
        return x.reshape(placed).expand(tuple(shape))
