"""Types of StableHLO's ops, inferred and verified from text alone: no JAX, no MLIR."""

from .infer import infer_op

__all__ = ["infer_op"]
