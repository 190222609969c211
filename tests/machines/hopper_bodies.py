"""Kernel bodies and launches in plain Python, for the model of a machine in hopper_model.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from aicf.cuda_kernels.dsl import Deferred, Name, _Materials
from aicf.registry.variant import In, Num, Out, TensorMap, Work
from aicf.types import u8

PTX = "aicf.cuda_kernels.ptx."


def to_tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits behind the point, nearest even; infinities and NaN stay."""
    bits = x.view(np.uint32)
    rounded = (bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, bits).astype(np.uint32).view(np.float32)


class Tensor:
    """A tensor in memory, as a TensorMap describes it."""

    def __init__(self, tensor_map: TensorMap, memory: np.ndarray) -> None:
        self.map, self.memory = tensor_map, memory.view(np.uint8) if tensor_map.dtype is u8 else memory

    def check(self, corner: tuple[int, ...], stores: bool = False) -> None:
        """That the accelerator takes a corner: stores take no negative one."""
        assert len(corner) == len(self.map.box), "as many coordinates as the tensor has dimensions"
        assert corner[0] * self.map.itemsize % 16 == 0, "an illegal instruction: between multiples of 16"
        assert not stores or min(corner) >= 0, "an illegal instruction: a store at a negative coordinate"

    def _places(self, corner: tuple[int, ...], stores: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Elements of memory for those of a box, and which of them are inside. The contiguous dimension is the last."""
        m = self.map
        self.check(corner, stores)
        at = np.indices(m.box[::-1])[::-1] + np.reshape(corner, (-1, *[1] * len(m.box)))
        extents = np.reshape(m.extents, (-1, *[1] * len(m.box)))
        steps = 1, *(p // m.itemsize for p in m.pitches)
        return np.tensordot(steps, at, 1), ((at >= 0) & (at < extents)).all(axis=0)

    def box(self, corner: tuple[int, ...]) -> np.ndarray:
        places, inside = self._places(corner)
        values = self.memory[np.where(inside, places, 0)]
        return np.where(
            inside, (to_tf32(values) if self.map.dtype == "tf32" else values).astype(np.float64), 0.0
        )

    def windows(self, corner: tuple[int, ...], further: tuple[int, ...]) -> np.ndarray:
        """Of a WindowMap: (windows, channels). Each begins one step further than the one before, along the nearest axis that has room for it between
        the corners; behind the last image there is nothing."""
        m = self.map
        assert corner[0] * m.itemsize % 16 == 0, "an illegal instruction: between multiples of 16"
        assert all(0 <= d < 256 for d in further), "offsets have eight bits"
        channel, *at, image = corner
        ends = [extent - 1 + last for extent, last in zip(m.extents[1:-1], m.last)]
        assert all(a >= first for a, first in zip(at, m.first)), "the first window is outside of the box"
        made = np.zeros((m.box[1], m.box[0]))
        channels = np.arange(channel, min(channel + m.box[0], m.extents[0]))
        for row in made:
            place = [a + d for a, d in zip(at, further)]
            if image < m.extents[-1] and all(0 <= a < e for a, e in zip(place, m.extents[1:-1])):
                start = sum(a * p // m.itemsize for a, p in zip((*place, image), m.pitches))
                row[: len(channels)] = self.memory[start + channels].astype(np.float64)
            for axis, (first, end, step) in enumerate(zip(m.first, ends, m.steps)):
                at[axis] += step
                if at[axis] <= end:
                    break
                at[axis] = first
            else:
                image += 1
        return made

    def put(self, corner: tuple[int, ...], values: np.ndarray) -> None:
        places, inside = self._places(corner, stores=True)
        self.memory[places[inside]] = values[inside]

    def add(self, corner: tuple[int, ...], values: np.ndarray) -> None:
        places, inside = self._places(corner, stores=True)
        self.memory[places[inside]] += values[inside].astype(self.memory.dtype)


def argument(arg: Any, ins: list[np.ndarray], outs: list[np.ndarray], workspace: np.ndarray) -> Any:
    if isinstance(arg, tuple):
        return tuple(argument(part, ins, outs, workspace) for part in arg)
    if isinstance(arg, Num):
        return arg.dtype.numpy.type(arg.value) if arg.dtype.kind == "float" else int(arg.value)
    if isinstance(arg, TensorMap):
        return Tensor(arg, argument(arg.source, ins, outs, workspace))
    if isinstance(arg, Work):
        return workspace[arg.offset :].view(arg.dtype.numpy)
    assert isinstance(arg, In | Out)
    memory = (ins if isinstance(arg, In) else outs)[arg.index]
    return memory[arg.offset // memory.itemsize :] if arg.offset else memory


class Cuda:
    """numba.cuda, for the current thread."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.shared = machine, self

    def array(self, length: int, kind: Any) -> Any:
        assert length == 0, "shared memory is dynamic"
        return self.machine.current.block.words()

    @property
    def threadIdx(self) -> Any:
        return SimpleNamespace(x=self.machine.current.index)

    @property
    def blockIdx(self) -> Any:
        return SimpleNamespace(x=self.machine.current.block.index)

    @property
    def gridDim(self) -> Any:
        return SimpleNamespace(x=self.machine.grid)

    def shfl_sync(self, lanes: int, value: Any, source: int) -> Any:
        assert lanes == 0xFFFFFFFF and 0 <= source < 32
        return self.machine._warp("shfl", value)[source]

    def shfl_xor_sync(self, lanes: int, value: Any, apart: int) -> Any:
        assert lanes == 0xFFFFFFFF
        return self.machine._warp("shfl", value)[self.machine.current.index % 32 ^ apart]

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return np.float32(np.float64(x) * np.float64(y) + np.float64(z))

    def syncthreads(self) -> None:
        self.machine._meet("all", self.machine.everyone, [self.machine.current.block])

    def syncwarp(self) -> None:
        """Then each lane reads what the others wrote."""
        self.machine.fence_async()()
        self.machine._warp("sync", 0)


class Bits(int):
    """32 of them, whatever type they go by."""


def _uint32(x: int) -> int:
    if isinstance(x, Bits):
        return x
    assert 0 <= x < 2**32, f"{x} is no u32"
    return int(x)


def _uint64(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x  # an address of memory: what lies from there on
    assert 0 <= x < 2**64, f"{x} is no u64"
    return int(x)


def _int32(x: int) -> int:
    if isinstance(x, Bits):
        return x
    assert -(2**31) <= x < 2**31, f"{x} is no i32"
    return int(x)


class bodies(_Materials):
    """A body with the machine behind its names: instructions are the machine's, and those that it does not know their plain twins, as
    other factories' are."""

    def __init__(self, machine: Any) -> None:
        super().__init__()
        self.machine = machine

    def of(self, value: Any) -> Any:
        if isinstance(value, Name):
            names = {"numba.cuda": self.machine.cuda, "numba.cuda.types.uint32": _uint32,
                     "numba.cuda.types.uint64": _uint64, "numba.cuda.types.int32": _int32, "numba.cuda.types.float32": np.float32, "numba.cuda.types": SimpleNamespace(uint8=None)}  # fmt: skip
            return names[repr(value)]
        if isinstance(value, Deferred) and value not in self.made:
            factory, args = value.factory, tuple(map(self.of, value.args))
            if factory.__name__ == "device":
                self.made[value] = args[0]
            elif factory.__module__.startswith(PTX) and hasattr(self.machine, factory.__name__):
                self.made[value] = getattr(self.machine, factory.__name__)(*args)
            else:
                simulated, factory.__globals__["SIMULATED"] = factory.__globals__["SIMULATED"], True
                self.made[value] = factory(*args)
                factory.__globals__["SIMULATED"] = simulated
        return self.made[value] if isinstance(value, Deferred) else super().of(value)


def in_python(function: Any) -> Any:
    """A device function that asks nothing of the machine, with those that it calls, as a plain one."""
    return bodies(SimpleNamespace(cuda=None)).of(function)
