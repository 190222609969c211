"""What selection reads of a fused region. One op is a region of length 1."""

from .region import RegionOp, RegionSpec

__all__ = ["RegionOp", "RegionSpec"]
