"""A chosen kernel made into a call on given tensors: what plans and `run_op` start."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..device.reading import remember
from ..device.spec import DeviceSpec
from ..device.tensor import Runtime, Tensor
from ..errors import VerifyError
from ..registry import blame
from ..registry.registry import KernelRegistry
from ..registry.select import Selection
from ..registry.variant import Built, Collective, HostCall, Launch
from ..rows import RegionSpec
from .annotate import annotated, label
from .call import op_call
from .collective import CollectiveCall
from .extensions import default_registry

# Runs a bound kernel and returns the id of the variant that it is of; None where nothing was run. On CUDA it takes another
# stream, or a graph builder, if given one.
Call = Callable[..., "str | None"]


KEPT = 1024  # kernels of regions, more for plans of more; a new size of a batch brings new ones


@dataclass(slots=True)
class _Kernel:
    """A kernel of one region. Calls that are bound hold what they need of it."""

    built: Built
    workspace: int  # bytes
    starts: list[Any] | None = None  # loaded, so that only pointers are missing


class KernelLoader:
    """Builds and compiles chosen kernels for one runtime, each region once while it is among those used last. Plans launch by
    id only."""

    def __init__(self, registry: KernelRegistry, runtime: Runtime) -> None:
        self.registry, self.runtime = registry, runtime
        self._kernels: OrderedDict[tuple[str, RegionSpec], _Kernel] = OrderedDict()
        self._kept = KEPT

    def build(self, kernel_id: str, region: RegionSpec) -> Built:
        return self._kernel(kernel_id, region).built

    def workspace(self, kernel_id: str, region: RegionSpec) -> int:
        """Bytes of scratch memory that the kernel uses."""
        return self._kernel(kernel_id, region).workspace

    def _kernel(self, kernel_id: str, region: RegionSpec) -> _Kernel:
        key = (kernel_id, region)
        found = self._kernels.get(key)
        if found is not None:
            with suppress(KeyError):  # another thread's new ones have just taken its place
                self._kernels.move_to_end(key)
        else:
            variant, spec = self.registry.by_id(kernel_id), self.runtime.spec
            if reject := variant.supported(region, spec):
                raise VerifyError(
                    f"{kernel_id} does not take {region}", got=str(reject), expected="a region that the kernel was chosen for",
                    hint="compile the model again: its plan is of other kernels than those that are registered",
                )  # fmt: skip
            found = _Kernel(blame.built(variant, region, spec), variant.query_workspace(region, spec))
            remember(self._kernels, key, found, self._kept)
        return found

    def prepare(self, kernels: Sequence[tuple[str, RegionSpec]]) -> None:
        """Compile what is in no cache, of kernels that will be bound: many at once, where that is faster."""
        self._keep(len(kernels))
        if self.runtime.kind == "cuda":
            from ..cuda_kernels.compiler import engine

            target, build = self.runtime.spec.target, partial(_build_anew, self.runtime.spec)
            engine.precompile(self._launches(kernels), target, build)

    def begin(self, kernels: Sequence[tuple[str, RegionSpec]]) -> Callable[[], None]:
        """The same in the background, where there are cores for it. What is returned waits until it is done."""
        self._keep(len(kernels))
        if self.runtime.kind != "cuda":
            return lambda: None
        from ..cuda_kernels.compiler import engine

        return engine.begin(
            self._launches(kernels), self.runtime.spec.target, partial(_build_anew, self.runtime.spec)
        )

    def _keep(self, count: int) -> None:
        self._kept = max(self._kept, 2 * count)

    def _launches(
        self, kernels: Sequence[tuple[str, RegionSpec]]
    ) -> list[tuple[str, RegionSpec, list[Launch]]]:
        """Those of kernels that were not built before."""
        new = [k for k in kernels if k not in self._kernels and any(t.numel for t in k[1].results)]
        built = [(kernel_id, region, self.build(kernel_id, region)) for kernel_id, region in new]
        return [(k, region, made) for k, region, made in built if isinstance(made, list)]

    def bind(
        self,
        kernel_id: str,
        region: RegionSpec,
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
        workspace: Tensor | None = None,
    ) -> Call:
        """A call that runs the kernel on these tensors, in an NVTX range; it does nothing when every result is empty."""
        if all(t.numel == 0 for t in region.results):
            return _nothing
        built = self.build(kernel_id, region)
        if isinstance(built, Collective):  # it has a range of its own, around all that leave together
            return CollectiveCall.of(built, kernel_id, results[0])
        call = self._bound(kernel_id, region, operands, results, workspace)
        return annotated(call, label(kernel_id, region, self.runtime.stream_id))

    def _bound(
        self,
        kernel_id: str,
        region: RegionSpec,
        operands: Sequence[Tensor],
        results: Sequence[Tensor],
        workspace: Tensor | None,
    ) -> Call:
        kernel, variant = self._kernel(kernel_id, region), self.registry.by_id(kernel_id)
        built = kernel.built
        if isinstance(built, HostCall):
            given, made = [t.array for t in operands], [t.array for t in results]
            return _host_call(blame.bound(kernel_id, region, built, given, made), variant.id)
        assert isinstance(built, list)
        from ..cuda_kernels.compiler import engine

        if kernel.starts is None:
            kernel.starts = [engine.prepare(launch, region, kernel_id) for launch in built]
        ins, outs = [t.ptr for t in operands], [t.ptr for t in results]
        scratch = workspace.ptr if workspace is not None else 0
        calls = [engine.bind(start, self.runtime.stream, ins, outs, scratch) for start in kernel.starts]
        return partial(_all, calls, variant.id)


def _build_anew(spec: DeviceSpec, kernel_id: str, region: RegionSpec) -> list[Launch]:
    """What a helper process compiles: it knows the variants that are installed, and no others."""
    built = blame.built(default_registry().by_id(kernel_id), region, spec)
    assert isinstance(built, list), kernel_id
    return built


def _nothing(*on: Any) -> None:
    pass


def _host_call(start: Callable[[], None], kernel_id: str) -> Call:
    def call(*on: Any) -> str:
        start()
        return kernel_id

    return call


def _all(calls: list[Callable[..., None]], kernel_id: str, *on: Any) -> str:
    for call in calls:
        call(*on)
    return kernel_id


def run_op(
    kind: str,
    operands: Sequence[Tensor | None],
    results: Sequence[Tensor],
    attrs: Mapping[str, Any],
    runtime: Runtime,
) -> Selection:
    """`op_call` on aicf's tensors, on their runtime's own stream."""
    return op_call(kind, operands, results, attrs, runtime.stream_id)
