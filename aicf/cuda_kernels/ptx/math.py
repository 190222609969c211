"""Arithmetic that numba has no names for. PTX ISA, chapters "Floating-Point Instructions", "Half Precision Floating-Point
Instructions" and "Data Movement and Conversion Instructions"."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ...types import DType, bf16, f16
from ..dsl import SIMULATED, deferred, intrinsic, ir, types
from .assemble import assemble, instruction


@deferred
def add_half2() -> Any:
    """`add(x, y)`: two halves in 32 bits each, added lane by lane and rounded to nearest even.
    `add.rn.f16x2`, sm_53."""
    if SIMULATED:

        def add_lanes(x, y):
            lanes = np.array([x, y], np.uint32).view(np.float16)
            return (lanes[:2] + lanes[2:]).view(np.uint32)[0]

        return add_lanes

    @intrinsic
    def add(typing, x, y):
        def codegen(ctx, b, sig, args):
            return assemble(b, "add.rn.f16x2 $0, $1, $2;", "=r,r,r", ir.IntType(32), list(args))

        return types.uint32(types.uint32, types.uint32), codegen

    return add


@deferred
def pack_halves(dtype: DType, single: bool = False) -> Any:
    """`pack(low, high)`: two f32 rounded to f16 or bf16, nearest even, in 32 bits. `cvt.rn.f16x2.f32`, sm_80; `single`: of f16 by two
    instructions, `cvt.rn.f16.f32`, sm_53."""
    kind = {f16: "f16", bf16: "bf16"}[dtype]
    real = types.float32
    if single:
        assert dtype is f16
        text = "{ .reg .b16 low, high; cvt.rn.f16.f32 low, $1; cvt.rn.f16.f32 high, $2; mov.b32 $0, {low, high}; }"
        return instruction(text, real, real, result=types.uint32, effects=False)
    return instruction(f"cvt.rn.{kind}x2.f32 $0, $2, $1;", real, real, result=types.uint32, effects=False)


@deferred
def unpack_halves(dtype: DType) -> Any:
    """`unpack(word)`: two f32 (low, high), of f16 or bf16 in 32 bits. `cvt.f32.f16`, sm_53; bf16 is the upper half
    of an f32."""
    if SIMULATED:
        return lambda word: tuple(np.array([word], np.uint32).view(dtype.numpy).astype(np.float32))
    text = {
        f16: "{\n.reg .b16 low, high;\nmov.b32 {low, high}, $2;\ncvt.f32.f16 $0, low;\ncvt.f32.f16 $1, high;\n}",
        bf16: "{\n.reg .b32 x;\nshl.b32 x, $2, 16;\nmov.b32 $0, x;\nand.b32 x, $2, 0xffff0000;\nmov.b32 $1, x;\n}",
    }[dtype]
    return instruction(text, types.uint32, result=(types.float32, types.float32), effects=False)


FP8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


@deferred
def pack_fp8(kind: str) -> Any:
    """`pack(a, b, c, d)`: four f32 rounded to e4m3 or e5m2, nearest even, a in the lowest byte; what is too large, and infinity,
    becomes the largest number. `cvt.rn.satfinite.e4m3x2.f32`, sm_89."""
    if SIMULATED:

        def pack_lanes(*values):
            most = np.float32(ml_dtypes.finfo(FP8[kind]).max)
            x = np.array(values, np.float32)
            lanes = np.clip(x, -most, most).astype(FP8[kind]).view(np.uint8)
            return np.where(np.isnan(x), np.uint8(0x7F), lanes).view(np.uint32)[0]

        return pack_lanes
    assert kind in FP8
    convert = f"cvt.rn.satfinite.{kind}x2.f32"
    text = f"{{\n.reg .b16 low, high;\n{convert} low, $2, $1;\n{convert} high, $4, $3;\nmov.b32 $0, {{low, high}};\n}}"
    return instruction(text, *[types.float32] * 4, result=types.uint32, effects=False)


@deferred
def unpack_fp8(kind: str) -> Any:
    """`unpack(word)`: four f32, of e4m3 or e5m2, the lowest byte first. `cvt.rn.f16x2.e4m3x2`, sm_89."""
    if SIMULATED:
        return lambda word: tuple(np.array([word], np.uint32).view(FP8[kind]).astype(np.float32))
    assert kind in FP8
    lines = [".reg .b16 low, high, x, y;", ".reg .b32 pair;", "mov.b32 {low, high}, $4;"]
    for i, half in enumerate(("low", "high")):
        lines += [f"cvt.rn.f16x2.{kind}x2 pair, {half};", "mov.b32 {x, y}, pair;"]
        lines += [f"cvt.f32.f16 ${2 * i}, x;", f"cvt.f32.f16 ${2 * i + 1}, y;"]
    text = "{\n" + "\n".join(lines) + "\n}"
    return instruction(text, types.uint32, result=(types.float32,) * 4, effects=False)


APPROXIMATE: dict[str, tuple[str, Any]] = {
    "exp2": ("ex2.approx.ftz.f32", np.exp2),
    "log2": ("lg2.approx.ftz.f32", np.log2),
    "reciprocal": ("rcp.approx.ftz.f32", np.reciprocal),
    "rsqrt": ("rsqrt.approx.ftz.f32", lambda x: 1 / np.sqrt(x)),
    "tanh": ("tanh.approx.f32", np.tanh),
}


@deferred
def approximate(function: str) -> Any:
    """`f(x)`: exp2, log2, reciprocal, rsqrt or tanh of an f32 in one instruction: to 2^-22 of it or better (log2 from 1/2 to 2 to
    2^-22), tanh to 2^-10.9. Subnormal x and results are 0, but tanh's. `ex2.approx`, `lg2.approx`, `rcp.approx`,
    `rsqrt.approx`, sm_70; `tanh.approx`, sm_75."""
    text, twin = APPROXIMATE[function]
    if SIMULATED:
        return twin
    return instruction(f"{text} $0, $1;", types.float32, result=types.float32, effects=False)


@deferred
def larger(nan: bool = True) -> Any:
    """`larger(x, y)`: of two f32; NaN if either is NaN, or without `nan` the other one. `max.NaN.f32`, sm_80; `max.f32`, sm_50: Python's `max` takes
    a comparison and a choice."""
    if SIMULATED:
        return np.maximum if nan else np.fmax
    real = types.float32
    return instruction(f"max{'.NaN' * nan}.f32 $0, $1, $2;", real, real, result=real, effects=False)


@deferred
def tanh_for_halves() -> Any:
    """`tanh(x)`, of f32, by 2^x and a reciprocal, which are approximate: to 1.3e-4 of it, less than half of f16's last place, and
    where it is not small to 2.4e-7. `ex2.approx`, `rcp.approx`, sm_70."""
    if SIMULATED:
        return np.tanh
    lines = [
        ".reg .f32 x, t;", ".reg .pred small;",
        "mul.f32 x, $1, 0f4038AA3B;",  # 2 / log(2)
        "ex2.approx.ftz.f32 x, x;", "add.f32 x, x, 0f3F800000;", "rcp.approx.ftz.f32 x, x;",
        "fma.rn.f32 t, x, 0fC0000000, 0f3F800000;",  # 1 - 2 / (exp(2 x) + 1)
        "abs.f32 x, $1;", "setp.lt.f32 small, x, 0f3B03126F;",  # 0.002
        "selp.f32 $0, $1, t, small;",
    ]  # fmt: skip
    return instruction("{\n" + "\n".join(lines) + "\n}", types.float32, result=types.float32, effects=False)


@deferred
def erfc_for_halves() -> Any:
    """`erfc(x)`, of f32, by 2^x and a reciprocal, which are approximate: to 4e-5 of it. With t = 1 / (1 + 0.53 |x|), erfc |x| is
    e^(-x^2) times a polynomial in t, fitted. `ex2.approx`, `rcp.approx`, sm_70."""
    if SIMULATED:
        return lambda x: np.float32(math.erfc(x))
    lines = [
        ".reg .f32 a, t, p;", ".reg .pred below;",
        "abs.f32 a, $1;", "fma.rn.f32 t, a, 0f3F07AE14, 0f3F800000;", "rcp.approx.ftz.f32 t, t;",
        "fma.rn.f32 p, t, 0fBE38702A, 0f3ECC3C66;", "fma.rn.f32 p, p, t, 0f3E2C7A37;", "fma.rn.f32 p, p, t, 0f3EA12E29;",
        "fma.rn.f32 p, p, t, 0f3E989200;", "mul.f32 p, p, t;",
        "mul.f32 a, a, a;", "mul.f32 a, a, 0fBFB8AA3B;",  # -1 / log(2)
        "ex2.approx.ftz.f32 a, a;", "mul.f32 p, p, a;",
        "sub.f32 t, 0f40000000, p;", "setp.lt.f32 below, $1, 0f00000000;", "selp.f32 $0, t, p, below;",
    ]  # fmt: skip
    return instruction("{\n" + "\n".join(lines) + "\n}", types.float32, result=types.float32, effects=False)


@deferred
def optimization_barrier() -> Any:
    """`optimization_barrier(x)`: x, an f32, computed by now: the compiler would put it off until it is needed, and hold all that it is made of.
    `mov.b32`, sm_70."""
    return instruction("mov.b32 $0, $1;", types.float32, result=types.float32)


@deferred
def opaque() -> Any:
    """`opaque(x)`: x, of which the compiler knows nothing: what is computed of it is computed here, and not kept in registers
    from where the same was computed before. `mov.b32`, sm_70."""
    return instruction("mov.b32 $0, $1;", types.int32, result=types.int32)
