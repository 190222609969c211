"""The intermediate representation: pure data, knows no op. See `graph.py`."""

from .graph import Emitter, Graph, Initializer, LoweredOp, Op, Role, Value

__all__ = ["Emitter", "Graph", "Initializer", "LoweredOp", "Op", "Role", "Value"]
