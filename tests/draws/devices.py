"""Kernels of a device, run directly on drawn memory: the host's, a GPU's, or none (`Dry`, which builds launches and starts nothing)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from aicf.device.runtime import cuda_missing, runtime
from aicf.device.spec import host, preset
from aicf.dispatch import default_registry
from aicf.registry.variant import Collective, KernelVariant
from aicf.rows import RegionSpec

from .layouts import Laid


class Host:
    """The CPU device."""

    kind, loose, dry = "cpu", False, False

    def __init__(self) -> None:
        self.spec = host()

    def variants(self, region: RegionSpec) -> Iterator[KernelVariant]:
        """Every kernel that accepts the region and needs no other rank, not only the one that selection chooses."""
        for variant in default_registry().variants(region.kind):
            if variant.device == self.kind and variant.supported(region, self.spec) is None:
                yield variant

    def run(
        self, variant: KernelVariant, region: RegionSpec, operands: list[Laid], results: list[Laid]
    ) -> list[Laid] | None:
        """The results after a run; None if the kernel exchanges data between ranks, or nothing runs on this device."""
        built = variant.build(region, self.spec)
        return (
            None if isinstance(built, Collective) else self.launch(variant, region, built, operands, results)
        )

    def launch(
        self,
        variant: KernelVariant,
        region: RegionSpec,
        built: Any,
        operands: list[Laid],
        results: list[Laid],
    ) -> list[Laid] | None:
        built.function([o.array for o in operands], [r.array for r in results])
        return results


class Cuda(Host):
    """An NVIDIA GPU: the memory is copied there as it is, guards included, and copied back."""

    kind, loose = "cuda", True

    def __init__(self) -> None:
        self.runtime = runtime("cuda")
        self.spec = self.runtime.spec

    def launch(
        self,
        variant: KernelVariant,
        region: RegionSpec,
        built: Any,
        operands: list[Laid],
        results: list[Laid],
    ) -> list[Laid] | None:
        from aicf.cuda_kernels.compiler import engine

        on = self.runtime
        memories = {id(t.memory): on.allocate(max(t.memory.nbytes, 1)) for t in (*operands, *results)}
        for t in (*operands, *results):
            on.copy(memories[id(t.memory)].ptr, t.memory.ctypes.data, t.memory.nbytes)
        ins, outs = (
            [memories[id(t.memory)].ptr + t.start * t.memory.itemsize for t in ts]
            for ts in (operands, results)
        )
        workspace = on.allocate(max(variant.query_workspace(region, self.spec), 1))
        with on.current():
            for launch in built:
                engine.bind(engine.prepare(launch, region, variant.id), on.stream, ins, outs, workspace.ptr)()
        on.sync()
        for t in (*operands, *results):
            on.copy(t.memory.ctypes.data, memories[id(t.memory)].ptr, t.memory.nbytes)
        on.sync()
        return results


class Dry(Host):
    """A GPU that is not here: kernels are selected and built, and their launches are checked as far as they are data."""

    kind, loose, dry = "cuda", True, True

    def __init__(self) -> None:
        self.spec = preset("h200")

    def launch(
        self,
        variant: KernelVariant,
        region: RegionSpec,
        built: Any,
        operands: list[Laid],
        results: list[Laid],
    ) -> list[Laid] | None:
        from aicf.cuda_kernels.compiler import engine

        assert variant.query_workspace(region, self.spec) >= 0
        for launch in built:
            engine.configuration(launch)
            engine.parameters(launch.args)
            assert launch.shared <= self.spec.shared_per_block, launch
            assert all(0 < blocks < 2**31 for blocks in launch.grid), launch
        return None


@functools.cache
def device(name: str) -> Any:
    """A device by name: cpu, cuda, or dry, which is cuda without a GPU."""
    if name == "cuda" and (reason := cuda_missing()):
        raise RuntimeError(f"no GPU: {reason}; --dry-run builds launches without one")
    return {"cpu": Host, "cuda": Cuda, "dry": Dry}[name]()


def fresh(laid: Laid) -> Laid:
    """The same array in memory of its own."""
    return Laid(np.array(laid.memory), laid.start, laid.shape, laid.stride)
