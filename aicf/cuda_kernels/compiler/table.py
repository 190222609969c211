"""A launch's tables: numbers and pointers that its kernel reads from device memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import DeviceError
from ...registry.variant import In, Num, Table


class Tables:
    """Of one Table, whatever the pointers: its numbers, and which operands and results go where among them."""

    def __init__(self, table: Table) -> None:
        entries = table.entries
        self.numbers = np.array([int(e.value) if isinstance(e, Num) else 0 for e in entries], np.int64)
        ins = [(at, e.index) for at, e in enumerate(entries) if isinstance(e, In)]
        outs = [(at, e.index) for at, e in enumerate(entries) if not isinstance(e, (In, Num))]
        self.ins, self.outs = (np.array(pairs, np.int64).reshape(-1, 2).T for pairs in (ins, outs))

    def filled(self, ins: Sequence[int], outs: Sequence[int]) -> np.ndarray:
        """The words, with these pointers."""
        words = self.numbers.copy()
        for (at, index), pointers in ((self.ins, ins), (self.outs, outs)):
            if len(at):
                words[at] = np.array(pointers, np.uint64).view(np.int64)[index]
        return words

    def put(self, ins: Sequence[int], outs: Sequence[int], stream: Any) -> Any:
        """In memory of the current device, in a stream's order: it is given back when nobody holds it, behind what was launched."""
        from cuda.bindings import driver
        from cuda.core import Device

        words = self.filled(ins, outs)
        memory = Device().memory_resource.allocate(max(words.nbytes, 8), stream=stream)
        # pageable memory: the driver has read it when it answers
        (code,) = driver.cuMemcpyHtoDAsync(int(memory.handle), words.ctypes.data, words.nbytes, stream.handle)
        if int(code) != 0:
            raise DeviceError(f"the CUDA driver answered {code.name}", where="copying a kernel's table")
        return memory


@functools.lru_cache(maxsize=256)
def tables_of(table: Table) -> Tables:
    return Tables(table)
