from . import f16, f32, i32

K, V = f32(2, 3, 7, 8), f32(2, 3, 7, 5)
NEW = f32(2, 3, 4, 8), f32(2, 3, 4, 5)

NEGATIVE = {
    ("cache_write", "C1"): (
        [f32(7, 8), f32(7, 8), f32(1, 8), f32(1, 8), i32()], {}, r"keys has rank 2, expected 3 or more: \(\.\.\., heads, places, d\)",
    ),
    ("cache_write", "C2"): ([K, f32(2, 3, 6, 5), *NEW, i32(2)], {}, r"values has shape \(2, 3, 6, 5\), keys \(2, 3, 7, 8\)"),
    ("cache_write", "C3"): [
        ([K, V, f32(2, 3, 4, 5), NEW[1], i32(2)], {}, r"what keys are given has shape \(2, 3, 4, 5\), expected \(2, 3, 4, 8\)"),
        ([K, V, NEW[0], f32(2, 1, 4, 5), i32(2)], {}, r"what values are given has shape \(2, 1, 4, 5\), expected \(2, 3, 4, 5\)"),
    ],
    ("cache_write", "C4"): ([K, V, NEW[0], f32(2, 3, 3, 5), i32(2)], {}, r"v has 3 rows of a head, k has 4"),
    ("cache_write", "C5"): ([K, V, *NEW, i32(3)], {}, r"starts has shape \(3,\), expected that of the batch, \(2,\)"),
}  # fmt: skip

EXACT = {
    "cache_write": [
        ([K, V, *NEW, i32(2)], {}, [K, V]),
        ([f16(3, 7, 8), f16(3, 7, 8), f16(3, 9, 8), f16(3, 9, 8), i32()], {}, [f16(3, 7, 8), f16(3, 7, 8)]),
    ]
}
