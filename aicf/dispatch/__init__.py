"""From a question to a running kernel: the default registry, chosen kernels made into calls, and `op_call`."""

from .call import op_call
from .extensions import default_registry, load_extensions
from .ge2 import GemmBiasActParams, ge2_launch
from .loader import Call, KernelLoader, run_op

__all__ = [
    "Call",
    "GemmBiasActParams",
    "KernelLoader",
    "default_registry",
    "ge2_launch",
    "load_extensions",
    "op_call",
    "run_op",
]
