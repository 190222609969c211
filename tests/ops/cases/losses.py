from . import bf16, boolean, f16, f32, i32, i64

NEGATIVE = {
    ("softmax_cross_entropy", "C1"): ([f32(4), i64(4)], {}, r"logits have rank 1, expected 2"),
    ("softmax_cross_entropy", "C2"): (
        [f32(4, 7), i64(7)], {}, r"labels have shape \(7,\), expected \(4,\), one per row",
    ),
    ("softmax_cross_entropy_grad", "C1"): ([f32(4), i64(4), f32(4)], {}, r"logits have rank 1, expected 2"),
    ("softmax_cross_entropy_grad", "C2"): (
        [f32(4, 7), i64(4, 1), f32(4)], {}, r"labels have shape \(4, 1\), expected \(4,\), one per row",
    ),
    ("softmax_cross_entropy_grad", "C3"): (
        [f32(4, 7), i64(4), f32()], {}, r"dloss has shape \(\), expected \(4,\)",
    ),
    ("check_labels", "C1"): ([i64(4, 1), i64(5)], {"classes": 3}, r"labels have rank 2, expected 1"),
    ("check_labels", "C2"): ([i64(4), i64(4)], {"classes": 3}, r"fault has shape \(4,\), expected \(5,\)"),
    ("check_labels", "C3"): ([i64(4), i64(5)], {"classes": -1}, r"classes is -1, expected at least 0"),
}  # fmt: skip

EXACT = {
    "check_labels": ([i32(4), i64(5)], {"classes": 3}, [f32(), boolean(), i64(5)]),
    "softmax_cross_entropy": ([bf16(4, 7), i32(4)], {}, [f32(4)]),
    "softmax_cross_entropy_grad": ([f16(4, 7), i64(4), f32(4)], {}, [f16(4, 7)]),
}
