"""Dumps: the stages of each compilation as numbered files, its kernels beside them, and what its first run did."""

from .dump import OFF, Dump, begin
from .kernels import FAILED

__all__ = ["FAILED", "OFF", "Dump", "begin"]
