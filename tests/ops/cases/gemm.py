from aicf.types import DType

from . import bf16, f16, f32, i32, of

f8, i8, u8 = of(DType.f8e4m3), of(DType.i8), of(DType.u8)

NEGATIVE = {
    ("gemm", "C1"): [
        ([f32(4), f32(4, 5)], {}, r"a has rank 1, expected 2 or more"),
        ([f32(4, 5), f32(5)], {}, r"b has rank 1, expected 2 or more"),
    ],
    ("gemm", "C2"): ([f32(4, 7), f32(6, 5)], {}, r"op\(a\) is \(4, 7\) and op\(b\) is \(6, 5\): 7 meets 6"),
    ("gemm", "C3"): ([f32(4, 7), f32(7, 5), f32(4, 1)], {}, r"c has shape \(4, 1\), the product is \(4, 5\)"),
    ("gemm", "C4"): [
        (
            [f32(4, 7), f32(7, 5), None, f32(7)], {},
            r"bias has length 7; expected 1 \(Scalar\), N = 5 \(PerN\) or M = 4 \(PerM\)",
        ),
        ([f32(4, 7), f32(7, 5), None, f32(5, 1)], {}, r"bias has rank 2, expected 1"),
    ],
    ("gemm", "C6"): ([f32(4, 7), f32(7, 5)], {"beta": 0.5}, r"beta is 0\.5 but there is no c"),
    ("gemm", "C7"): (
        [f32(2, 4, 7), f32(3, 7, 5)], {}, r"the batch of a is \(2,\), of b \(3,\); needs equal ones",
    ),
    ("gemm", "C8"): [
        ([a(4, 7), b(7, 5)], {"out_dtype": out}, rf"b is {b().dtype} but a is {a().dtype}; operands never promote, convert one of them")
        for a, b, out in ((f16, bf16, 0), (f8, f16, DType.f32), (f32, f8, DType.f32), (i8, f16, 0), (f16, u8, 0))
    ],
    ("gemm", "C10"): [
        ([i8(4, 7), u8(7, 5), *more], attrs, rf"a is i8, and there is {what}; scale the i32 result")
        for more, attrs, what in (
            ([f32(4, 5)], {}, "c"), ([None, f32(5)], {}, "bias"), ([], {"alpha": 0.5}, r"alpha 0\.5"), ([], {"act": 1}, "act"),
            ([], {"save_preact": True}, "save_preact"),
        )
    ],
    ("gemm", "C9"): [
        (
            [f16(4, 7), f16(7, 5), None, f16(5)], {"out_dtype": DType.f32},
            r"bias is f16, expected f32, as the results, or f32",
        ),
        ([f16(4, 7), f16(7, 5), bf16(4, 5)], {}, r"c is bf16, expected f16, as the results, or f32"),
    ],
    ("gemm", "C5"): [
        (
            [f16(4, 7), f16(7, 5)], {"out_dtype": DType.i32},
            r"out_dtype is i32, expected one of f32, f16, bf16, None",
        ),
        ([i8(2, 2), i8(2, 2)], {"out_dtype": DType.f32}, r"out_dtype is f32, expected one of i32, None"),
        ([f8(2, 2), f8(2, 2)], {}, r"out_dtype is None, expected one of f32, f16, bf16"),
        ([f8(2, 2), f8(2, 2)], {"out_dtype": DType.f8e4m3}, r"out_dtype is None, expected one of .*"),  # as it would be anyway
        ([f8(2, 2), f8(2, 2)], {"out_dtype": DType.f8e5m2}, r"out_dtype is f8e5m2, expected one of .*"),
    ],
    ("bias_add", "C1"): ([f32(4), f32(4)], {}, r"x has rank 1, expected 2 or more"),
    ("bias_add", "C2"): [
        (
            [f32(4, 7), f32(3)], {},
            r"bias has length 3; expected 1 \(Scalar\), N = 7 \(PerN\) or M = 4 \(PerM\)",
        ),
        ([f32(4, 7), f32(7, 1)], {}, r"bias has rank 2, expected 1"),
    ],
    ("bias_add", "C3"): ([f16(4, 7), bf16(7)], {}, r"bias is bf16, expected f16, as x, or f32"),
}  # fmt: skip

EXACT = {
    "gemm": [
        (
            [f16(7, 4), f16(5, 7), None, f16(4)], {"trans_a": True, "trans_b": True, "save_preact": True},
            [f16(4, 5), f16(4, 5)],
        ),
        ([f16(2, 3), f16(3, 4), f32(2, 4)], {"out_dtype": DType.f32}, [f32(2, 4)]),
        ([f8(2, 3), f8(3, 4)], {"out_dtype": DType.f16}, [f16(2, 4)]),
        ([i8(2, 3), i8(3, 4)], {}, [i32(2, 4)]),
        ([u8(5, 2, 3), i8(4, 3)], {"trans_b": True, "out_dtype": DType.i32}, [i32(5, 2, 4)]),
        ([f8(2, 3), of(DType.f8e5m2)(3, 4), None, bf16(4)], {"out_dtype": DType.bf16}, [bf16(2, 4)]),
        ([of(DType.f8e5m2)(2, 3), f8(3, 4), f32(2, 4)], {"out_dtype": DType.bf16}, [bf16(2, 4)]),
    ],
    "bias_add": [
        ([bf16(4, 7), bf16(4)], {}, [bf16(4, 7)]),
        ([f16(4, 7), f32(7)], {}, [f16(4, 7)]),
    ],
}  # fmt: skip
