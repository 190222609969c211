"""Predicted time of a kernel, as named terms in microseconds, so that a choice can be explained by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..device.spec import DeviceSpec


@dataclass(frozen=True)
class Cost:
    """Terms add up to `us`. Built by `roofline`, or by hand: Cost({"launch": 1.0, "compute": 12.0})."""

    terms: Mapping[str, float] = field(default_factory=dict)
    predicted: float | None = None  # of a measured time: what the model would have said

    @cached_property
    def us(self) -> float:
        return max(sum(self.terms.values()), 1e-3)

    def plus(self, **terms: float) -> Cost:
        return Cost({**self.terms, **{k: self.terms.get(k, 0.0) + v for k, v in terms.items()}})

    def measured(self, us: float) -> Cost:
        """A measured time in the place of this prediction, which stays to be compared with."""
        return Cost({"measured": us}, predicted=self.us)

    def __str__(self) -> str:
        return " + ".join(f"{name} {us:.3g}" for name, us in self.terms.items() if us)


def roofline(
    device: DeviceSpec,
    *,
    bytes: float,
    flops: float = 0.0,
    rate: str = "f32",
    efficiency: float = 1.0,
    memory_efficiency: float = 1.0,
    blocks: int | None = None,
    blocks_per_sm: int = 1,
    launches: int = 1,
) -> Cost:
    """Launch overhead plus the larger of memory and compute time, with the tail of the last wave.

    bytes, flops       moved through device memory; done in the unit that `rate` names (2 per multiply-add)
    efficiency         of the peak arithmetic rate that this kernel's inner loop reaches with the chip full
    memory_efficiency  of the peak bandwidth that its access pattern reaches
    blocks             of the grid; fewer than the multiprocessors leave some idle, a ragged last wave leaves a tail
    """
    memory = bytes / (device.bandwidth * memory_efficiency) * 1e-3
    speed = (
        device.tflops.get(rate, 0.0) * efficiency
    )  # 0 where the device has no such unit: never the best choice
    compute = (flops / speed * 1e-6 if speed else math.inf) if flops else 0.0
    terms = {"launch": device.launch_us * launches}
    terms["memory" if memory >= compute else "compute"] = max(memory, compute)
    if blocks is not None and device.kind == "cuda" and blocks > 0:
        slots = device.sms * blocks_per_sm
        waves = math.ceil(blocks / slots)
        idle = waves * slots / blocks - 1.0  # share of the chip that has nothing to do
        if idle > 0:
            terms["idle multiprocessors" if waves == 1 else "wave tail"] = idle * max(
                compute, memory * (blocks < device.sms)
            )
    return Cost(terms)
