from aicf.types import DType

from . import bf16, f16, f32, i32, of

i8, u8, f8 = of(DType.i8), of(DType.u8), of(DType.f8e4m3)


def _cases(x, zero):
    """Of each op: x's type, and that of its zero points."""
    return {
        "C1": [
            ([x(4, 6, 2), f32(4, 6)], {}, r"scale has shape \(4, 6\), expected \(\), one axis, or rank 3"),
            ([x(4, 6), f32(4)], {"axis": 2}, r"axis 2 is outside \[-2, 2\)"),
            ([x(4, 6), f32(4)], {"axis": -3}, r"axis -3 is outside \[-2, 2\)"),
            ([x(4, 6), f32(4)], {"axis": 1}, r"scale has 4 along axis 1 of x, whose extent 6 is no multiple of that"),
            ([x(4, 6), f32(0, 1)], {}, r"scale has 0 along axis 0 of x, whose extent 4 is no multiple of that"),
        ],
        "C2": ([x(4, 6), f32(4), zero(4, 1)], {}, r"zero has shape \(4, 1\), scale \(4,\): needs equal ones"),
    }  # fmt: skip


_TARGET = "expected i8, u8, f8e4m3 or f8e5m2"
NEGATIVE = {
    **{("quantize", c): case for c, case in _cases(f32, i32).items()},
    **{("dequantize", c): case for c, case in _cases(i8, i8).items()},
    **{("fake_quantize", c): case for c, case in _cases(f16, f32).items()},
    ("quantize", "C3"): ([f32(4), f32(), i8()], {"dtype": DType.f8e5m2}, "codes of f8e5m2 have no zero point"),
    ("dequantize", "C3"): ([f8(4), f32(), i8()], {}, "codes of f8e4m3 have no zero point"),
    ("fake_quantize", "C3"): ([f32(4), f32(), f32()], {"dtype": DType.f8e4m3}, "codes of f8e4m3 have no zero point"),
    ("quantize", "C4"): ([f32(4), f32()], {"dtype": DType.i32}, f"dtype is i32, {_TARGET}"),
    ("dequantize", "C4"): ([i8(4), f32()], {"dtype": DType.i8}, "dtype is i8, expected f32, f16 or bf16"),
    ("fake_quantize", "C4"): ([f32(4), f32()], {"dtype": DType.f16}, f"dtype is f16, {_TARGET}"),
}  # fmt: skip

EXACT = {
    "quantize": [
        ([bf16(4, 6), f32(4, 2)], {}, [i8(4, 6)]), ([f16(4, 6), f16(6), u8(6)], {"dtype": DType.u8, "axis": -1}, [u8(4, 6)]),
        ([f32(3), f32()], {"dtype": DType.f8e4m3}, [f8(3)]),
    ],
    "dequantize": [([u8(4, 6), f16(2, 3), u8(2, 3)], {}, [f32(4, 6)]), ([f8(3), f32()], {"dtype": DType.bf16}, [bf16(3)])],
    "fake_quantize": [([bf16(4, 6), f32(4)], {}, [bf16(4, 6)])],
}  # fmt: skip
