from . import bf16, boolean, f16, f32, i32, i64

_ROWS = r"labels have shape \(7,\), expected \(4,\), one per row"
NEGATIVE = {
    ("cross_entropy", "C1"): ([f32(), i64()], {}, r"logits have rank 0, expected 1 or more"),
    ("cross_entropy", "C2"): ([f32(4, 7), i64(7)], {}, _ROWS),
    ("cross_entropy", "C3"): [
        ([f32(4, 7), i64(4)], {"label_smoothing": s}, rf"label_smoothing is {s}, expected 0 to 1")
        for s in (-0.5, 1.5, float("nan"))
    ],
    ("cross_entropy_grad", "C1"): (
        [f32(), i64(), f32(), f32(), f32()], {}, r"logits have rank 0, expected 1 or more",
    ),
    ("cross_entropy_grad", "C2"): ([f32(4, 7), i64(7), f32(4), f32(4), f32(4)], {}, _ROWS),
    ("cross_entropy_grad", "C3"): [
        ([f32(4, 7), i64(4), *(f32() if n == name else f32(4) for n in ("dloss", "peak", "rsum"))], {},
         rf"{name} has shape \(\), expected \(4,\)")
        for name in ("dloss", "peak", "rsum")
    ],
    ("label_class", "C1"): [
        ([i64(4)], {"classes": n, "ignore_index": 0}, rf"classes is {n}, expected 0 or more, under 2\^31")
        for n in (-1, 2**31)
    ],
    ("check_labels", "C1"): ([i64(4), i64(4)], {"classes": 3}, r"fault has shape \(4,\), expected \(5,\)"),
    ("check_labels", "C2"): ([i64(4), i64(5)], {"classes": -1}, r"classes is -1, expected at least 0"),
}  # fmt: skip

EXACT = {
    "check_labels": [
        ([i32(4), i64(5)], {"classes": 3}, [f32(), boolean(), i64(5)]),
        ([i64(2, 3), i64(5)], {"classes": 3}, [f32(), boolean(), i64(5)]),
    ],
    "cross_entropy": [
        ([bf16(4, 7), i32(4)], {}, [f32(4)] * 3),
        ([f16(2, 3, 7), i64(2, 3)], {"label_smoothing": 1.0}, [f32(2, 3)] * 3),
        ([f32(7), i64()], {}, [f32()] * 3),
    ],
    "cross_entropy_grad": ([f16(4, 7), i64(4), f32(4), f32(4), f32(4)], {}, [f16(4, 7)]),
    "label_class": ([i64(2, 3)], {"classes": 2**31 - 1, "ignore_index": -(2**63)}, [i32(2, 3)]),
}
