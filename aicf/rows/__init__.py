"""What a region is: its ops (RegionSpec), its attribute rows, its structure, and the program it is read as. One op is a region of length 1."""

from .form import Form
from .region import RegionOp, RegionSpec
from .rows import LENGTH_LIMIT, Attributes, Conflict
from .state import AttributeState

__all__ = ["LENGTH_LIMIT", "AttributeState", "Attributes", "Conflict", "Form", "RegionOp", "RegionSpec"]
