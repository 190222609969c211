"""The intermediate representation: pure data, knows no op. See `graph.py`."""

from .graph import EXTERNAL, Check, Emitter, Graph, Initializer, LoweredOp, Op, Role, Value

__all__ = ["EXTERNAL", "Check", "Emitter", "Graph", "Initializer", "LoweredOp", "Op", "Role", "Value"]
