"""What the ops are: one file per op or small family. Importing this package registers all of them: it imports every module in it."""

from ..discover import modules_in
from .schema import OpSchema, schema_of, schemas

modules_in(__name__, __path__)

__all__ = ["OpSchema", "schema_of", "schemas"]
