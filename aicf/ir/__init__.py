"""The intermediate representation: pure data, knows no op. See `graph.py`."""

from .graph import EXTERNAL, Emitter, Graph, Initializer, LoweredOp, Op, Role, Value

__all__ = ["EXTERNAL", "Emitter", "Graph", "Initializer", "LoweredOp", "Op", "Role", "Value"]
