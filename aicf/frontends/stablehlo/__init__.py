"""StableHLO modules as models: `read` makes one, `run_module` runs it once. jaxlib's MLIR bindings parse them."""

from .reading import read, run_module

__all__ = ["read", "run_module"]
