"""Tensors that come from outside, as all that takes them sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import TensorDesc


@dataclass(slots=True)
class Foreign:
    """A tensor that came from outside: its descriptor and pointer, the host array if it has one, and its owner. One is made
    of each fed tensor in each run, so it is not frozen: that costs a microsecond.

    readonly     why it can't be written, or None
    library      whose it is: "numpy", "torch", "cupy", "aicf", …
    stream       the stream its owner orders work on, where the owner says so
    handed_over  it came by DLPack, which orders streams once, when it is asked for
    """

    desc: TensorDesc
    ptr: int
    array: np.ndarray | None
    owner: Any
    ordinal: int = 0
    readonly: str | None = None
    library: str = ""
    stream: int | None = None
    handed_over: bool = False

    @property
    def device(self) -> str:
        return self.desc.device

    @property
    def contiguous(self) -> bool:
        return self.desc.contiguous

    @property
    def signature(self) -> tuple[Any, ...]:
        """What a frozen plan is keyed by: shape, element type and place; neither layout nor pointer."""
        return self.desc.shape, self.desc.dtype, self.desc.device, self.ordinal

    @property
    def place(self) -> str:
        """`cpu`, or a CUDA device with its number."""
        return "cpu" if self.device == "cpu" else f"{self.device}:{self.ordinal}"
