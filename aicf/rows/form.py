"""Form: what regions have in common that differ in the sizes of their tensors alone. What follows from it is found once.

Sizes are numbered as they are met, 0 and 1 being themselves: which of them are equal belongs to the form, how great they are
does not. Equal forms are one object, as long as it is remembered, and compare by identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ..types import DType, TensorDesc

Sort = tuple[DType, int, str, bool, tuple[int, ...]]  # a tensor without its sizes and strides
NUMBERED = {0: 0, 1: 1}  # sizes that mean something by themselves


class Form:
    """known  what was found out about regions of this form, by whoever did"""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}


@lru_cache(maxsize=16384)
def form_of(*parts: Any) -> Form:
    """The form of a region that these values tell from others; the first is the form that it was grown from, if it was."""
    return Form()


def sorts(tensors: Iterable[TensorDesc], number: dict[int, int]) -> tuple[Sort, ...]:
    """Tensors with numbers in the place of sizes; `number` grows by those that are new."""
    made = []
    for t in tensors:
        sizes = tuple([number.setdefault(size, len(number)) for size in t.shape])
        made.append((t.dtype, t.alignment, t.device, t.contiguous, sizes))
    return tuple(made)
