"""Products with weights of 8 or 4 bits, which are read as they are stored: what a model takes to make a token is the time to read them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..types import DType, TensorSpec, f32, numel
from .constraints import TypeConstraint
from .schema import ACCUMULATES, LINEAR, FloatOwn, op, require

Codes = TypeConstraint("codes", frozenset({DType.i8, DType.u8}), shared=False)
BITS = {8: DType.i8, 4: DType.u8}
MIDDLE = 8  # that a code of 4 bits stands above its number
FEW = 16  # rows to which codes are read by the product's own kernel; for more of them weights are made first
CHUNK = {8: 16, 4: 32}  # codes that it reads at once, of one group


@op("gemm_codes", core="gemm_codes", traits=(LINEAR, ACCUMULATES))
def gemm_codes(x: FloatOwn, w: Codes, scale: FloatOwn, *, bits: int = 8):
    """x @ W', where row n of W is made of codes: W[n, k] = code[n, k] * scale[n, k // group].

    Shapes: x (..., M, K), w (N, K) of 8 bits, or (N, K / 2) of 4; scale (N, K / group); y (..., M, N) of x's element type. Sums are in f32. A
    weight is rounded to x's element type before it is multiplied, or its scale multiplies a sum over its group.

    Codes of 8 bits are i8. Codes of 4 bits are numbers from -8 to 7, plus 8; of two in a byte, of u8 or i8, the lower four bits are the first along
    k: `pack_codes` makes them. A group is all of k, for a scale per channel, or so many of it, such as 128.

    C1  bits is 8, of i8, or 4
    C2  x has rank 2 or more, w has rank 2
    C3  the contracted extents agree
    C4  scale has a row for each of w, and a number of groups that divides K
    """
    require(bits in BITS, "C1", f"bits is {bits}, expected 8 or 4")
    require(bits == 4 or w.dtype is DType.i8, "C1", f"w is {w.dtype}, expected i8, for codes of 8 bits")
    require(x.rank >= 2, "C2", f"x has rank {x.rank}, expected 2 or more")
    require(w.rank == 2, "C2", f"w has rank {w.rank}, expected 2")
    n, row = w.shape
    k = row * 8 // bits
    require(x.shape[-1] == k, "C3", f"x has rows of {x.shape[-1]}, w of {k} codes")
    rows, groups = scale.shape if scale.rank == 2 else (0, 0)
    require(
        rows == n and groups > 0 and k % groups == 0,
        "C4",
        f"scale has shape {scale.shape}, expected ({n}, a divisor of {k})",
    )
    return TensorSpec((*x.shape[:-1], n), x.dtype, x.device)


def pack_codes(codes: np.ndarray) -> np.ndarray:
    """Codes from -8 to 7, shape (N, K) with an even K, two in a byte: shape (N, K / 2), u8."""
    above = (np.asarray(codes, np.int8) + np.int8(MIDDLE)).astype(np.uint8)
    return np.ascontiguousarray(above[:, ::2] | above[:, 1::2] << 4)


def unpack_codes(packed: np.ndarray) -> np.ndarray:
    """What `pack_codes` was given, i8."""
    packed = packed.view(np.uint8)
    both = np.stack([packed & 15, packed >> 4], -1).astype(np.int8) - np.int8(MIDDLE)
    return both.reshape(len(packed), -1)


def _unpacked(emit: Any, w: Any, bits: int) -> Any:
    """Codes, (N, K), of i8."""
    if bits == 8:
        return w
    n, row = w.shape
    low, high = emit.bitwise_and(w, 15), emit.shift_right_logical(w, 4)
    both = [emit.reshape(x, shape=(n, row, 1)) for x in (low, high)]
    w = emit.reshape(emit.concatenate(*both, axis=2), shape=(n, 2 * row))
    return emit.sub(w if w.dtype is DType.i8 else emit.convert(w, dtype=DType.i8), MIDDLE)


def dequantized(emit: Any, w: Any, scale: Any, bits: int, dtype: DType) -> Any:
    """The weights, (N, K), of this element type."""
    return emit.dequantize(_unpacked(emit, w, bits), scale, dtype=dtype)


@gemm_codes.replaced_by
def _(emit, x, w, scale, bits):
    """Where no kernel reads codes: on the CPU, of f32, of many rows."""
    rows = int(np.prod(x.shape[:-1]))
    group, chunk = x.shape[-1] // scale.shape[1], CHUNK[bits]
    if emit.device == "cuda" and x.dtype is not f32 and 0 < rows <= FEW and group and group % chunk == 0:
        return None
    return emit.gemm(x, dequantized(emit, w, scale, bits, x.dtype), trans_b=True)


@gemm_codes.reference
def _(x, w, scale, *, bits):
    codes = unpack_codes(w) if bits == 4 else w
    scale = scale.astype(np.promote_types(scale.dtype, x.dtype))
    wide = codes * np.repeat(scale, codes.shape[1] // scale.shape[1], 1)
    return x @ wide.T


@gemm_codes.gradient
def _(emit, dy, x, w, scale, bits):
    dx = emit.gemm(dy, dequantized(emit, w, scale, bits, x.dtype))
    rows = [emit.reshape(v, shape=(numel(v.shape[:-1]), v.shape[-1])) for v in (dy, x)]
    weights = emit.gemm(*rows, trans_a=True)
    parts = emit.mul(weights, emit.convert(_unpacked(emit, w, bits), dtype=x.dtype))
    n, k = parts.shape
    groups = scale.shape[1]
    total = emit.reduce_sum(emit.reshape(parts, shape=(n, groups, k // groups)), axes=(2,), keepdims=False)
    return dx, None, total if scale.dtype is x.dtype else emit.convert(total, dtype=scale.dtype)


@gemm_codes.counts
def _(x, w, scale, bits):
    return 2 * x.numel * w.shape[0]


def _bytes(rng, shape, shapes):
    return rng.integers(0, 128, shape)


gemm_codes.draws(w=_bytes)
gemm_codes.samples((4, 6), (5, 6), (5, 1))
gemm_codes.samples((2, 3, 64), (5, 64), (5, 2))
gemm_codes.samples((4, 64), (5, 32), (5, 2), bits=4)
gemm_codes.samples((1, 6), (3, 3), (3, 3), bits=4)
gemm_codes.samples((0, 6), (3, 6), (3, 1))
