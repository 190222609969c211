from . import bf16, boolean, f16, f32, i32

NEGATIVE = {
    ("loss_scale_step", "C3"): (
        [f32(), i32(), i32(), boolean(), boolean()], {"growth": 2.0, "backoff": 0.5, "interval": 0},
        r"interval is 0, expected at least 1",
    ),
}  # fmt: skip
EXACT = {
    "all_finite": [([f32(4, 7)], {}, [boolean()]), ([f32(4, 7), bf16(0), f16()], {}, [boolean()])],
    "sum_of_squares": [([f32(4, 7)], {}, [f32()]), ([f32(4, 7), bf16(0), f16()], {}, [f32()])],
}
