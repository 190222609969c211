"""Activations, arithmetic, conversion."""

from . import f32

NEGATIVE = {
    ("convert", "C1"): (
        [f32(2)], {"dtype": 9},
        r"dtype is 9, expected 1 \(f32\), 2 \(f16\), 3 \(bf16\), 4 \(i32\), 5 \(i64\), 6 \(bool\), 7 \(f8e4m3\), 8 \(f8e5m2\)",
    ),
}  # fmt: skip
