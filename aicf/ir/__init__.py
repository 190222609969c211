"""The intermediate representation: pure data. See `graph.py`; `operators.py` has what `x + y` on Values emits."""

from .graph import (
    EXTERNAL,
    FED,
    KEPT,
    Check,
    Emitter,
    Graph,
    Initializer,
    LoweredOp,
    Op,
    Recognised,
    Role,
    StridedView,
    Value,
)

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
    "Recognised",
    "Role",
    "StridedView",
    "Value",
]
