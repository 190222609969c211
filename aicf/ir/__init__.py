"""The intermediate representation: pure data, knows no op. See `graph.py`."""

from .graph import EXTERNAL, FED, KEPT, Check, Emitter, Graph, Initializer, LoweredOp, Op, Role, Value

__all__ = [
    "EXTERNAL",
    "FED",
    "KEPT",
    "Check",
    "Emitter",
    "Graph",
    "Initializer",
    "LoweredOp",
    "Op",
    "Role",
    "Value",
]
