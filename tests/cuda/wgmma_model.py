"""wgmma and the 128-byte swizzle as the PTX manual has them, in NumPy: descriptors decoded bit by bit, the assembly read."""

from __future__ import annotations

import re
from collections.abc import Callable

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


def operand(descriptor: int, lines: int, transposed: bool) -> np.ndarray:
    """The address of each element of lines x 16 of k. PTX ISA, "Matrix Descriptor Format", "Strides", canonical layouts."""
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    assert descriptor >> 62 == 1 and descriptor >> 49 & 7 == 0, (
        "128-byte swizzle from a multiple of 1024 bytes on"
    )
    line, k = np.indices((lines, 16))
    if transposed:
        return swizzle(start + line // 64 * leading + k // 8 * stride + k % 8 * 128 + line % 64 * 2)
    return swizzle(start + line // 8 * stride + line % 8 * 128 + k * 2)


def element_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each accumulator of m64nN, by (thread, number): PTX ISA, "Register Fragments", matrix D."""
    thread, i = np.indices((128, n // 2))
    lane = thread % 32
    return thread // 32 * 16 + lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2


_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)\.\2 \{([^}]*)\}, a, b, (\w+), 1, 1, ([01]), ([01])"
)


def slab(text: str, registers: np.ndarray, a: int, b: int, more: int, read: Callable) -> np.ndarray:
    """What a piece of assembly with products makes of the sums (thread, number); `read` gets halves at addresses."""
    registers, count = registers.copy(), registers.shape[1]
    given = {f"${2 * count}": a, f"${2 * count + 1}": b, f"${2 * count + 2}": more}
    values: dict[str, int] = {}
    for line in text.strip("{}\n").split(";\n"):
        line = line.strip("; \n")
        if found := re.fullmatch(r"add\.s64 (\w), (\$\d+), (\d+)", line):
            values[found[1]] = given[found[2]] + int(found[3])
        elif found := re.fullmatch(r"setp\.(ne|eq)\.b32 (\w+), (\$?\d+), 0", line):
            left = given[found[3]] if found[3].startswith("$") else int(found[3])
            values[found[2]] = (left != 0) == (found[1] == "ne")
        elif found := _PRODUCT.fullmatch(line):
            n, names = int(found[1]), [int(r.strip(" $")) for r in found[3].split(",")]
            assert len(names) == n // 2
            left = read(operand(values["a"], 64, found[5] == "1"))
            right = read(operand(values["b"], n, found[6] == "1"))
            rows, columns = element_of(n)
            made = (left @ right.T)[rows, columns]
            registers[:, names] = made + (registers[:, names] if values[found[4]] else 0.0)
        else:
            assert line.startswith(".reg"), line
    return registers
