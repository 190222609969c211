"""NVTX ranges: op kind, kernel, tensors and stream of every op that is started, for profilers.

They are there when the package `nvtx` is; AICF_NVTX=0 turns them off. Without them nothing is paid for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from .. import config
from ..rows import RegionSpec


@cache
def domain() -> Any | None:
    """nvtx's domain `aicf`, or None; decided once."""
    if not config.nvtx_enabled():
        return None
    try:
        import nvtx
    except ImportError:
        return None
    made = getattr(nvtx, "get_domain", lambda name: None)("aicf")
    return (
        made if hasattr(made, "push_range") else None
    )  # before nvtx 0.2.12 there were no ranges by attributes


def label(kernel_id: str, region: RegionSpec, stream: int) -> str:
    """`gemm + relu -> cuda.gemm_tiled.v1 f32[64x64], f32[64x32] stream=0x1`."""
    tensors = ", ".join(map(str, region.operands or region.results))
    return f"{region.signature} -> {kernel_id} {tensors} stream={stream:#x}"


def annotated(call: Callable[..., Any], text: str) -> Callable[..., Any]:
    """The call inside a range; the call itself where there are no ranges."""
    ranges = domain()
    if ranges is None:
        return call
    attributes = ranges.get_event_attributes(message=text)

    def ranged(*args: Any) -> Any:
        ranges.push_range(attributes)
        try:
            return call(*args)
        finally:
            ranges.pop_range()

    return ranged
