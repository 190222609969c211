"""What host loops cost, as named terms. Read off loops on a 3 GHz x86 core; NumPy's own are in reference.py."""

from __future__ import annotations

from ..device.spec import DeviceSpec
from ..registry.cost import Cost
from ..registry.program import Map, collapse
from ..rows import RegionSpec
from ..types import row_major

CALL_US, ARRAY_US = 1.0, 0.25  # a call of a compiled loop, and each array that numba unpacks for it
RUN_US = 0.013  # where a run begins: a division for each axis, and the block's copies
GAP_US = 0.002  # an element that is not next to the last one, so that the loop gathers
EFFICIENCY = 0.2  # of the arithmetic peak, by the ops' declared flops


def loop_us(map: Map, region: RegionSpec, device: DeviceSpec) -> dict[str, float]:
    """Terms of one pass over a Map: each operand read once, each result written once, and what is carried both."""
    operands = {load.operand for load in map.loads if load.operand is not None}
    bytes = sum(region.operands[p].nbytes for p in operands)
    bytes += sum(region.results[p].nbytes for _, p in map.stores)
    bytes += map.carried * map.numel * 4
    memory = bytes / device.bandwidth * 1e-3
    compute = map.flops / (device.tflops["f32"] * EFFICIENCY) * 1e-6
    arrays = len(operands) + len(map.stores) + map.carried
    terms = {"call": CALL_US + ARRAY_US * arrays, "memory": memory, "loop": max(0.0, compute - memory)}
    return {**terms, **walk_us(map)}


def walk_us(map: Map) -> dict[str, float]:
    """What a walk costs that is not one run over neighbours; NumPy's inner loops begin no faster."""
    strides = [load.strides for load in map.loads] + [row_major(map.shape)] * map.carried
    sizes, steps = collapse(map.shape, strides)
    gaps = sum(walk[-1] not in (0, 1) for walk in steps) * map.numel * GAP_US
    runs = map.numel / max(sizes[-1], 1) * RUN_US if len(sizes) > 1 else 0.0
    return {name: us for name, us in (("runs", runs), ("gaps", gaps)) if us}


def loop_cost(map: Map, region: RegionSpec, device: DeviceSpec) -> Cost:
    return Cost({"launch": device.launch_us, **loop_us(map, region, device)})
