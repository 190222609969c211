"""What any declaration is held to, once per trait."""

from aicf.types import DType, TensorSpec

from . import bf16, boolean, f16, f32, i32, i64, of

DECLARED = [
    ("add", [f32(2)], r"takes a, b; got 1 operands"),
    ("gemm", [f32(2, 2)] * 5, r"takes a, b, c\?, bias\?; got 5 operands"),
    ("add", [f32(2), None], r"b can't be left out"),
    ("exp", [i32(2)], r"x is i32; expected float \(bf16, f16, f32, f64\)"),
    ("increment", [f32(), boolean()], r"step is f32; expected int \(i32, i64\)"),
    (
        "add",
        [f32(2), boolean(2)],
        r"b is bool; expected number \(bf16, f16, f32, f64, i16, i32, i64, i8, u16, u32, u64, u8\)",
    ),
    ("cross_entropy", [f32(2, 3), f32(2)], r"labels is f32; expected index \(i32, i64\)"),
    ("select", [i32(2), f32(2), f32(2)], r"c is i32; expected bool \(bool\)"),
    ("clip_scale", [f16(), f32()], r"norm2 is f16; expected f32 \(f32\)"),
    (
        "relu",
        [of(DType.f8e4m3)(2)],
        r"x is f8e4m3; expected float \(bf16, f16, f32\); fp8 is for storage and products, convert it",
    ),
    (
        "reduce_sum",
        [of(DType.f8e5m2)(2)],
        r"x is f8e5m2; expected number .*; fp8 is for storage and products, convert it",
    ),
    ("gemm", [f32(2, 2), f32(2, 2), of(DType.f8e4m3)(2, 2)], r"c is f8e4m3; expected float .*, convert it"),
    ("add", [f16(2), bf16(2)], r"b is bf16 but a is f16; operands never promote, convert one of them"),
    ("select", [boolean(2), i32(2), i64(2)], r"b is i64 but a is i32; operands never .*"),
    ("add", [f32(2), TensorSpec((2,), DType.f32, "cuda")], r"operands live on cpu and cuda"),
]
