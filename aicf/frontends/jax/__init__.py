"""JAX functions run by aicf: `aicf.jax.jit(f)`, through the StableHLO that JAX lowers them to."""

from .jit import Jitted, jit
from .report import JaxReport, report

__all__ = ["JaxReport", "Jitted", "jit", "report"]
