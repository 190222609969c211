"""The intermediate representation: pure data. See `graph.py`; `operators.py` has what `x + y` on Values emits."""

from .body import BodyOp, Subgraph, body_of, sketch
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
    "BodyOp",
    "Check",
    "Emitter",
    "Graph",
    "Initializer",
    "LoweredOp",
    "Op",
    "Recognised",
    "Role",
    "StridedView",
    "Subgraph",
    "Value",
    "body_of",
    "sketch",
]
