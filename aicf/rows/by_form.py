"""`by_form`: a function of regions whose answer sizes have no part in is asked once for all regions of a form."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from ..ops import record
from .region import RegionSpec

T = TypeVar("T")


def by_form(function: Callable[[RegionSpec], T]) -> Callable[[RegionSpec], T]:
    """The function may look at ops, element types, ranks, and which sizes are equal, 0 or 1; not at sizes or strides."""

    @wraps(function)
    def found(region: RegionSpec) -> T:
        known, key = region.form.known, (function, record.schema_epoch)
        if key not in known:
            known[key] = function(region)
        return known[key]

    return found
