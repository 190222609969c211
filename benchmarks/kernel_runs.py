"""Kernels of a region on random data: checked against the region's reference in f64, then timed, on either device.

Results lie between guards of poison. On a GPU the reference is PyTorch's where it has the op, so that large regions are
checked too; runs take sets of operands in turn, so that none finds its data in the L2 cache. On the host data stay warm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import aicf
from aicf.device.runtime import runtime
from aicf.device.tensor import ALIGNMENT, Tensor
from aicf.dispatch import KernelLoader
from aicf.ops.draw import draw, plain
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec

from .harness import Bench, WrongResult
from .stats import Sample, enough, wall

TOLERANCE = {
    DType.f32: 5e-5,
    DType.f16: 5e-3,
    DType.bf16: 4e-2,
}  # of an element and of the root mean square of all
ROUNDED = 4e-3  # the same, of products of tf32
LARGEST_DRAW = 2**22  # elements; longer operands repeat them
LOOKS = 3  # at first, of which the least counts, as a run may be disturbed
LAUNCHES = 50  # in a graph, at most: of kernels of 2 us, samples of 20 launches differ by 3 %, of 100 by 1 %
SAMPLE_S = 3e-4  # a sample runs a kernel again and again for about so long
LARGEST_ON_HOST = 2**21  # bytes of a region that NumPy computes
POISON = -1  # of every 4 bytes: a NaN in f32, f16 and bf16


@dataclass(frozen=True)
class Bound:
    """A kernel, bound to each set of tensors. `seconds`: of one run, roughly."""

    calls: Sequence[Callable[[], Any]]
    seconds: float


class KernelRuns:
    """One device and its kernels."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.runtime = bench, runtime(bench.device)
        self.registry = aicf.default_registry()
        self.loader = KernelLoader(self.registry, self.runtime)

    @property
    def spec(self) -> aicf.DeviceSpec:
        return self.runtime.spec

    def prepare(self, kernels: Sequence[tuple[str, RegionSpec]]) -> None:
        """Compile what is in no cache, many at once."""
        self.loader.prepare(kernels)

    def table(self, region: RegionSpec, shift: int = 0) -> Table:
        return Table(self, region, shift)

    def once(self, call: Callable[[], Any]) -> float:
        """Seconds of one run, roughly."""
        look = self.bench.lab.device_time(call, 1) if self.bench.on_gpu else wall(call, 1)
        return max(min(look() for _ in range(LOOKS)), 1e-7)

    def sample(self, bound: Bound) -> Sample:
        """Takes one measurement: seconds of one run."""
        calls = bound.calls
        if not self.bench.on_gpu:
            seconds = SAMPLE_S if self.bench.tiny else 10 * SAMPLE_S
            return wall(calls[0], max(enough(calls[0], seconds) for _ in range(3)))  # a look may be disturbed
        lab, launches = self.bench.lab, max(1, min(LAUNCHES, int(SAMPLE_S / bound.seconds)))
        turns = [calls[i % len(calls)] for i in range(launches)]
        return lab.device_time(lab.aicf_graph(turns), launches, cold=True)


class Table:
    """A region's tensors, for one kernel after the other. `shift`: elements past alignment that each tensor starts."""

    def __init__(self, runs: KernelRuns, region: RegionSpec, shift: int) -> None:
        self.runs, self.region, self.shift, self.runtime = runs, region, shift, runs.runtime
        arrays = [self._drawn(n) for n in range(len(region.operands))]
        count = runs.bench.lab.sets(max(region.nbytes, 1), LAUNCHES) if runs.bench.on_gpu else 1
        self.sets = [
            ([self._given(d, a) for d, a in zip(region.operands, arrays)], [self._memory(d) for d in region.results])
            for _ in range(count)
        ]  # fmt: skip

    def _drawn(self, n: int) -> np.ndarray:
        """Values for an operand, as the first op that takes it wants them."""
        region, rng, tensor = self.region, self.runs.bench.rng, self.region.inputs[n]
        desc = region.operands[n]
        op = next(op for op in region.ops if tensor in op.inputs)
        schema, shapes = schema_of(op.kind), [None if t < 0 else region.tensors[t].shape for t in op.inputs]
        decl = schema.operands[op.inputs.index(tensor)]
        if desc.numel <= LARGEST_DRAW or decl.name in schema.domains:
            array = draw(schema, decl, desc.dtype, shapes, rng)
        else:
            array = np.resize(
                plain(desc.dtype, (LARGEST_DRAW - 3,), rng).astype(desc.dtype.numpy), desc.shape
            )
        return array.astype(desc.dtype.numpy)

    def _memory(self, desc: TensorDesc) -> tuple[Tensor, Tensor]:
        """(the whole, the tensor within it)."""
        size = 3 * ALIGNMENT + -(-desc.nbytes // ALIGNMENT) * ALIGNMENT
        memory = self.runtime.allocate(size)
        whole = self.runtime.view(memory, 0, TensorSpec((size // 4,), DType.i32, desc.device))
        start = ALIGNMENT + self.shift * desc.dtype.itemsize
        return whole, self.runtime.view(memory, start, TensorSpec(desc.shape, desc.dtype, desc.device))

    def _given(self, desc: TensorDesc, array: np.ndarray) -> Tensor:
        _, tensor = self._memory(desc)
        self.runtime.write(tensor, array)
        return tensor

    # --- verifying ----------------------------------------------------------------------------------------------------

    def verified(self, kernel_id: str) -> Bound:
        """Bind a kernel to every set and run it; WrongResult if it is wrong in the first, or writes beside its results."""
        variant, region = self.runs.registry.by_id(kernel_id), self.region
        nbytes = variant.query_workspace(region, self.runtime.spec)
        scratch = (
            self.runtime.empty(TensorSpec((-(-nbytes // 4),), DType.f32, self.runtime.kind))
            if nbytes
            else None
        )
        calls = [
            self.runs.loader.bind(kernel_id, region, ins, [t for _, t in outs], scratch)
            for ins, outs in self.sets
        ]
        for whole, _ in self.sets[0][1]:
            self._poison(whole)
        calls[0]()
        self.runtime.sync()
        for n, (whole, tensor) in enumerate(self.sets[0][1]):
            self._check(f"{kernel_id}, result {n}", whole, tensor, self._wanted[n])
        return Bound(calls, self.runs.once(calls[-1]))

    @cached_property
    def _wanted(self) -> list[Any]:
        """The region's ops one after the other in f64. Of a large region with an op that only NumPy has, what the first kernel computed: then kernels are compared with
        each other."""
        given = self.sets[0][0]
        if self.runs.bench.on_gpu and self.region.nbytes > LARGEST_ON_HOST and not self._torch_has_all:
            return [_wide(self.runs.bench.lab.torch.from_dlpack(t)).clone() for _, t in self.sets[0][1]]
        if self.runs.bench.on_gpu:
            torch = self.runs.bench.lab.torch
            known: dict[int, Any] = {
                t: _wide(torch.from_dlpack(x)) for t, x in zip(self.region.inputs, given)
            }
            apply = _Torch(torch).apply
        else:
            known = {t: _wide_array(x.array) for t, x in zip(self.region.inputs, given)}
            apply = _reference
        for op in self.region.ops:
            known.update(zip(op.outputs, apply(op.kind.name, [known.get(t) for t in op.inputs], op.attrs)))
        return [known[t] for t in self.region.outputs]

    @property
    def _torch_has_all(self) -> bool:
        return all(op.kind.name in _Torch(self.runs.bench.lab.torch).ops for op in self.region.ops)

    def _poison(self, whole: Tensor) -> None:
        if self.runs.bench.on_gpu:
            self.runs.bench.lab.torch.from_dlpack(whole).fill_(POISON)
        else:
            whole.array.fill(POISON)

    def _tolerance(self, dtype: DType) -> float:
        precisions = [op.attrs["precision"] for op in self.region.ops if op.kind.name == "gemm"]
        return max(TOLERANCE[dtype], ROUNDED) if aicf.Precision.tf32 in precisions else TOLERANCE[dtype]

    def _check(self, what: str, whole: Tensor, tensor: Tensor, want: Any) -> None:
        """Elements near the reference, guards as they were."""
        start, end = tensor.ptr - whole.ptr, tensor.ptr - whole.ptr + tensor.spec.nbytes
        if self.runs.bench.on_gpu:
            torch = self.runs.bench.lab.torch
            got, guards = _wide(torch.from_dlpack(tensor)), torch.from_dlpack(whole).view(torch.uint8)
        else:
            got, guards = _wide_array(tensor.array), whole.array.view(np.uint8)
        if not (bool((guards[:start] == 255).all()) and bool((guards[end:] == 255).all())):
            raise WrongResult(f"{what}: written outside of the result")
        if not want.size if isinstance(want, np.ndarray) else not want.numel():
            return
        usual = float((want * want).mean()) ** 0.5
        bad = ~(abs(got - want) <= self._tolerance(tensor.dtype) * (abs(want) + usual))
        if bool(bad.any()):
            at = int(
                bad.reshape(-1).argmax() if isinstance(bad, np.ndarray) else bad.reshape(-1).int().argmax()
            )
            raise WrongResult(
                f"{what}: {int(bad.sum())} elements are wrong; the first, {at}, is {float(got.reshape(-1)[at])}, "
                f"expected {float(want.reshape(-1)[at])}"
            )


# --- references -------------------------------------------------------------------------------------------------------


def _wide_array(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def _wide(tensor: Any) -> Any:
    return tensor.double() if tensor.is_floating_point() else tensor


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
            "bias_add": torch.add,  # of a bias for each column
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

    def _gemm(self, a: Any, b: Any, trans_a: bool, trans_b: bool, **plain: Any) -> Any:
        return self.torch.matmul(a.mT if trans_a else a, b.mT if trans_b else b)

    def _broadcast(self, x: Any, shape: Sequence[int], dims: Sequence[int]) -> Any:
        placed = [x.shape[dims.index(i)] if i in dims else 1 for i in range(len(shape))]
        return x.reshape(placed).expand(tuple(shape))
