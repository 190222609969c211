"""scan on a GPU: the kernels of its body as a chain, step after step, on rows of what is stacked."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.bodies import ScanSteps, Spot
from ...registry.variant import In, Out, Work, contiguous, one_op, variant
from ...rows import RegionSpec
from ...types import DType, TensorDesc
from ..chain import Chain, Place, dense, region_of


class _ScanWalk:
    """The chain of all steps. What is carried lies in two places of the workspace that take turns, or in the rows that show it."""

    def __init__(self, region: RegionSpec, device: DeviceSpec) -> None:
        self.scan = scan = ScanSteps(region, device)
        self.chain = Chain(device)
        shown = {first: n for n, first in enumerate(scan.plan.same) if first != n}
        self.shown = [shown.get(n) for n in range(scan.carried)]
        self.turns = [
            () if row is not None else (self.chain.reserve(t), self.chain.reserve(t))
            for t, row in zip(scan.results, self.shown)
        ]
        self.arena = self.chain.reserve(dense((scan.plan.arena,), DType.u8)).offset
        for k, t in enumerate(scan.order):
            for step in scan.plan.steps:
                ins = [self._place(spot, k, t, desc) for spot, desc in zip(step.ins, step.region.operands)]
                outs = [self._place(spot, k, t, desc) for spot, desc in zip(step.outs, step.region.results)]
                self.chain.add(step.variant, step.us, step.region, ins, outs)
        for n, desc in enumerate(scan.results[: scan.carried]):
            if scan.length == 0:
                self._copy(desc, In(scan.places[n]), Out(n))
            elif self.shown[n] is not None:
                self._copy(desc, self._after(n, scan.length - 1), Out(n))

    def _after(self, n: int, k: int) -> Place:
        """Where step k, in the order of steps, leaves what is carried."""
        row, scan = self.shown[n], self.scan
        if row is not None:
            return Out(row, scan.order[k] * scan.results[row].nbytes)
        return Out(n) if k == scan.length - 1 else self.turns[n][k % 2]

    def _place(self, spot: Spot, k: int, t: int, desc: TensorDesc) -> Place:
        """Where a tensor of the body lies in step k, which is of row t."""
        scan, (what, n, offset) = self.scan, spot
        place: Place
        if what == "arena":
            return Work(self.arena + offset, desc.dtype)
        if n < scan.carried:
            before = k - (what == "operand")
            place = self._after(n, before) if before >= 0 else In(scan.places[n])
        elif what == "result":
            place = Out(n, t * scan.results[n].nbytes)
        else:
            place = In(scan.places[n], t * scan.operands[n].nbytes if n in scan.rows else 0)
        return replace(place, offset=place.offset + offset)

    def _copy(self, desc: TensorDesc, source: Place, target: Place) -> None:
        region = region_of({"x": desc}, ("y", "copy", "x", {}), alignment=desc.alignment)
        self.chain.run(region, [source], [target])


_walk = lru_cache(maxsize=32)(_ScanWalk)


@variant("scan", id="cuda.scan.v1", dtypes=DType)
class ScanChain:
    """The launches of the body's kernels, for each step, all in one graph when it is captured. Parallel over what these are parallel over;
    steps wait for one another. Limit: a launch for each kernel of each step."""

    def accepts(region):
        yield one_op(region)
        yield contiguous(region)

    def cost(region, device):
        scan = ScanSteps(region, device)
        return scan.plan.cost(scan.length).plus(launch=device.launch_us)

    def workspace(region, device):
        return _walk(region, device).chain.workspace

    def build(region, device):
        return _walk(region, device).chain.launches()
