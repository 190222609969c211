"""StableHLO modules as models: `read` makes one, `run_module` runs it once; jaxlib's MLIR bindings parse them. `infer_op` types one op from text
alone."""

from .reading import read, run_module
from .typing import infer_op

__all__ = ["infer_op", "read", "run_module"]
