"""Capture: the launches of a bound plan as one CUDA graph, through cuda-core (F3).

Everything is compiled, loaded, allocated and packed when a plan is bound, so that nothing is left that could fail between
the beginning and the end of a capture; nothing runs, so params, states and step are as they were. The graph does not own
memory: who holds it holds the bound tensors too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...device.runtime import Runtime
from ...dispatch import Call


class CapturedGraph:
    """An uploaded CUDA graph and the stream it is launched on."""

    def __init__(self, graph: Any, stream: Any) -> None:
        self.graph, self.stream = graph, stream

    def launch(self) -> None:
        self.graph.launch(self.stream)


def capture(runtime: Runtime, calls: Sequence[Call]) -> CapturedGraph | None:
    """Capture calls in order; None on the CPU device, which has nothing to capture, and for a plan without kernels."""
    if runtime.kind != "cuda" or not calls:
        return None
    builder = runtime.stream.create_graph_builder().begin_building()
    for call in calls:
        call(builder)
    graph = builder.end_building().complete()
    graph.upload(runtime.stream)
    return CapturedGraph(graph, runtime.stream)
