from aicf.types import DType

from . import bf16, f16, f32, of

i8, u8 = of(DType.i8), of(DType.u8)

NEGATIVE = {
    ("gemm_codes", "C1"): [
        ([f32(2, 8), u8(3, 8), f32(3, 1)], {}, "w is u8, expected i8, for codes of 8 bits"),
        ([f32(2, 8), i8(3, 8), f32(3, 1)], {"bits": 2}, "bits is 2, expected 8 or 4"),
    ],
    ("gemm_codes", "C2"): [
        ([f32(8), i8(3, 8), f32(3, 1)], {}, "x has rank 1, expected 2 or more"),
        ([f32(2, 8), i8(2, 3, 8), f32(3, 1)], {}, "w has rank 3, expected 2"),
    ],
    ("gemm_codes", "C3"): [
        ([f32(2, 7), i8(3, 8), f32(3, 1)], {}, "x has rows of 7, w of 8 codes"),
        ([f32(2, 8), u8(3, 8), f32(3, 1)], {"bits": 4}, "x has rows of 8, w of 16 codes"),
    ],
    ("gemm_codes", "C4"): [
        ([f32(2, 8), i8(3, 8), f32(3)], {}, r"scale has shape \(3,\), expected \(3, a divisor of 8\)"),
        ([f32(2, 8), i8(3, 8), f32(2, 1)], {}, r"scale has shape \(2, 1\), expected \(3, a divisor of 8\)"),
        ([f32(2, 8), i8(3, 8), f32(3, 0)], {}, r"scale has shape \(3, 0\), expected \(3, a divisor of 8\)"),
        ([f32(2, 8), i8(3, 8), f32(3, 3)], {}, r"scale has shape \(3, 3\), expected \(3, a divisor of 8\)"),
    ],
}
EXACT = {
    "gemm_codes": [
        ([bf16(2, 5, 8), i8(3, 8), f32(3, 2)], {}, [bf16(2, 5, 3)]), ([f16(4, 8), u8(3, 4), f16(3, 1)], {"bits": 4}, [f16(4, 3)]),
    ],
}  # fmt: skip
