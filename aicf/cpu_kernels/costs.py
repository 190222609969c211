"""What host loops cost, as named terms. Read off loops on a 3 GHz x86 core; NumPy's own are in reference.py."""

from __future__ import annotations

import math

from ..device.spec import DeviceSpec
from ..ops.schema import schema_of
from ..registry.cost import Cost, host_memory_us, roofline
from ..rows import RegionSpec
from ..rows.program import Map, collapse
from ..types import row_major

CALL_US, ARRAY_US = 1.0, 0.25  # a call of a compiled loop, and each array that numba unpacks for it
RUN_US = 0.013  # where a run begins: a division for each axis, and the block's copies
GAP_US = 0.002  # an element that is not next to the last one, so that the loop gathers
EFFICIENCY = 0.2  # of the arithmetic peak, by the ops' declared flops


def loop_us(map: Map, region: RegionSpec, device: DeviceSpec) -> dict[str, float]:
    """Terms of one pass over a Map: each operand read once, each result written once, and the core result written and read.

    Tensor by tensor, as each is in the cache or not: so a pass never costs more than two that share its tensors.
    """
    read = {load.operand for load in map.loads if load.operand is not None}
    sizes = [region.operands[p].nbytes for p in read] + [region.results[p].nbytes for _, p in map.stores]
    sizes += [map.numel * 4] * map.core_results
    memory = math.fsum([host_memory_us(device, size) for size in sizes])
    compute = (
        roofline(device, bytes=0, flops=map.flops, efficiency=EFFICIENCY, launches=0).us if map.flops else 0.0
    )
    limit = {"memory": memory} if memory >= compute else {"compute": compute}
    return {"call": CALL_US + ARRAY_US * len(sizes), **limit, **walk_us(map)}


def one_loop(region: RegionSpec, device: DeviceSpec) -> float:
    """What `loop_cost` never goes below: the call, and each tensor that is sure to be read or written."""
    own = any(schema_of(op.kind).access_fn for op in region.ops)  # ways to read, or not to
    tensors = region.results if own else region.operands + region.results
    memory = math.fsum([host_memory_us(device, t.nbytes) for t in tensors])
    return device.launch_us + CALL_US + ARRAY_US * len(tensors) + memory


def walk_us(map: Map) -> dict[str, float]:
    """What a walk costs that is not one run over neighbours; NumPy's inner loops begin no faster."""
    strides = [load.strides for load in map.loads] + [row_major(map.shape)] * map.core_results
    sizes, steps = collapse(map.shape, strides)
    gaps = sum(walk[-1] not in (0, 1) for walk in steps) * map.numel * GAP_US
    runs = map.numel / max(sizes[-1], 1) * RUN_US if len(sizes) > 1 else 0.0
    return {name: us for name, us in (("runs", runs), ("gaps", gaps)) if us}


def loop_cost(map: Map, region: RegionSpec, device: DeviceSpec) -> Cost:
    return Cost({"launch": device.launch_us, **loop_us(map, region, device)})
