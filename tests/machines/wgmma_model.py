"""wgmma and the 128-byte swizzle as the PTX manual has them, in NumPy: descriptors decoded bit by bit, the assembly read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from aicf.registry.variant import TensorMap


def swizzle(address: np.ndarray, nbytes: int = 128) -> np.ndarray:
    """Bits 4 to 6 of an address in shared memory, exclusive or bits 7 to 9; of 64 bytes two of them, of 32 one, of 0 none."""
    return address ^ (address >> 7 & nbytes // 16 - bool(nbytes)) << 4


def swizzled(start: int, tensor_map: TensorMap) -> np.ndarray:
    """Where the elements of a box lie: densely, the contiguous dimension last."""
    assert start % max(128, 8 * tensor_map.swizzle) == 0, "swizzles repeat, and maps of the same place agree"
    shape = tensor_map.box[::-1]
    return swizzle(start + np.arange(np.prod(shape)).reshape(shape) * tensor_map.itemsize, tensor_map.swizzle)


def operand(descriptor: int, lines: int, kind: str, transposed: bool) -> np.ndarray:
    """The address of each element of lines x 32 bytes of k. PTX ISA, "Matrix Descriptor Format", "Strides", canonical layouts."""
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert descriptor >> 62 == 1 and descriptor >> 49 & 7 == 0, (
        "128-byte swizzle from a multiple of 1024 bytes on"
    )
    nbytes = NUMPY[kind].itemsize
    line, k = np.indices((lines, 32 // nbytes))
    if transposed:
        assert nbytes == 2
        return swizzle(start + line // 64 * leading + k // 8 * stride + k % 8 * 128 + line % 64 * 2)
    return swizzle(start + line // 8 * stride + line % 8 * 128 + k * nbytes)


def element_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each accumulator of m64nN, by (thread, number): PTX ISA, "Register Fragments", matrix D."""
    thread, i = np.indices((128, n // 2))
    lane = thread % 32
    return thread // 32 * 16 + lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2


def fragment(words: np.ndarray, kind: str) -> np.ndarray:
    """Matrix A of 64 x 32 bytes of k, from each thread's four words, or numbers in them: PTX ISA, "Register Fragments"."""
    values = words
    if words.ndim == 2:
        values = np.ascontiguousarray(words, np.uint32).view(NUMPY[kind]).reshape(128, 4, -1)
    if kind == "tf32":
        values = read_as(kind, values)
    thread, j, e = np.indices(values.shape)
    lane, each = thread % 32, values.shape[2]
    made = np.empty((64, 8 * each))
    rows, columns = thread // 32 * 16 + lane // 4 + j % 2 * 8, (j // 2 * 4 + lane % 4) * each + e
    made[rows, columns] = values.astype(np.float64)
    return made


def read_as(kind: str, values: np.ndarray) -> np.ndarray:
    """What shared memory holds, as numbers: it has bytes as they are, and of an f32 the lower 13 bits are not read as tf32."""
    if NUMPY[kind].itemsize == 1:
        read = np.nan_to_num(values).astype(np.uint8).view(NUMPY[kind]).astype(np.float64)
        return np.where(np.isnan(values), np.nan, read)
    if kind == "tf32":
        bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
        return bits.view(np.float32).astype(np.float64)
    return values


NUMPY = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2), "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}  # fmt: skip
_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.([fs]32)\.(\w+)\.(\w+) \{([^}]*)\}, (a|\{[^}]*\}), b, (\w+)((?:, \d)*)"
)


def k_tile(text: str, registers: np.ndarray, a: Any, b: int, more: int, read: Callable) -> np.ndarray:
    """What a piece of assembly with products makes of the sums (thread, number); `read` gets numbers at addresses. a: a
    descriptor, or (thread, word), each word 32 bits or a tuple of numbers."""
    registers, count = registers.copy(), registers.shape[1]
    words = a.shape[1] if isinstance(a, np.ndarray) else 1
    given = {f"${2 * count}": a, f"${2 * count + words}": b, f"${2 * count + words + 1}": more}
    values: dict[str, int] = {}
    for line in text.strip("{}\n").split(";\n"):
        line = line.strip("; \n")
        if found := re.fullmatch(r"add\.u32 (\w+), (\$\d+), (\d+)", line):
            values[found[1]] = given[found[2]] + int(found[3]) & 0xFFFFFFFF
        elif found := re.fullmatch(r"mov\.b32 (\w+), (\d+)", line):
            values[found[1]] = int(found[2])
        elif found := re.fullmatch(r"mov\.b64 (\w), \{(\w+), (\w+)\}", line):
            values[found[1]] = values[found[2]] | values[found[3]] << 32
        elif found := re.fullmatch(r"setp\.(ne|eq)\.b32 (\w+), (\$?\d+), 0", line):
            left = given[found[3]] if found[3].startswith("$") else int(found[3])
            values[found[2]] = (left != 0) == (found[1] == "ne")
        elif found := _PRODUCT.fullmatch(line):
            n, names = int(found[1]), [int(r.strip(" $")) for r in found[6].split(",")]
            left_kind, right_kind = found[4], found[5]
            whole, halves = left_kind in ("s8", "u8"), NUMPY[left_kind].itemsize == 2
            assert len(names) == n // 2 and int(found[2]) * NUMPY[left_kind].itemsize == 32
            assert (found[3] == "s32") == whole
            flags = [int(flag) for flag in found[9].split(", ")[1:]]
            in_registers = found[7] != "a"
            assert flags[:2] == ([] if whole else [1, 1]) and len(flags[2:]) == halves * (2 - in_registers)
            if in_registers:
                each = [int(r.strip("{} $")) - 2 * count for r in found[7].split(",")]
                left = fragment(a[:, each], left_kind)
            else:
                left = read_as(left_kind, read(operand(values["a"], 64, left_kind, halves and flags[2] == 1)))
            right = read_as(right_kind, read(operand(values["b"], n, right_kind, halves and flags[-1] == 1)))
            rows, columns = element_of(n)
            made = (left @ right.T)[rows, columns]
            registers[:, names] = made + (registers[:, names] if values[found[8]] else 0.0)
        else:
            assert line.startswith(".reg") or line == "wgmma.fence.sync.aligned", line
    return registers
