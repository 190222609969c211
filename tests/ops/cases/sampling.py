from . import boolean, f16, f32, i32, i64

ROW = [i64(3), i32(3), f32(), f32(), f32(), f32()]

NEGATIVE = {
    ("sample_tokens", "C1"): [
        ([f32(7), boolean(7), *ROW], {}, r"logits has shape \(7,\), expected \(B, W\) with W from 1 to 1048576"),
        *(
            ([f32(3, n), boolean(3, n), *ROW], {}, rf"logits has shape \(3, {n}\), expected \(B, W\) with W from 1 to 1048576")
            for n in (0, 2**20 + 1)
        ),
    ],
    ("sample_tokens", "C2"): ([f32(3, 7), boolean(3, 6), *ROW], {}, r"seen has shape \(3, 6\), logits \(3, 7\)"),
    ("sample_tokens", "C3"): [
        ([f32(3, 7), boolean(3, 7), i64(2), *ROW[1:]], {}, r"seeds has shape \(2,\), expected \(3,\)"),
        ([f32(3, 7), boolean(3, 7), i64(3), i32(1), *ROW[2:]], {}, r"places has shape \(1,\), expected \(3,\)"),
    ],
    ("sample_tokens", "C4"): [
        (
            [f32(3, 7), boolean(3, 7), *ROW[:2], *(f32(*[3] * (m == n)) for m in range(4))], {},
            rf"{name} has shape \(3,\), expected \(\)",
        )
        for n, name in enumerate(("temperature", "top_k", "top_p", "penalty"))
    ],
    ("mark_tokens", "C1"): ([boolean(7), i32(3, 2), i32(3), i32(3)], {}, r"seen has rank 1, expected 2"),
    ("mark_tokens", "C2"): [([boolean(3, 7), i32(2, 2), i32(3), i32(3)], {}, r"tokens has shape \(2, 2\), expected \(3, T\)"),
        ([boolean(3, 7), i32(3), i32(3), i32(3)], {}, r"tokens has shape \(3,\), expected \(3, T\)")],
    ("mark_tokens", "C3"): [
        ([boolean(3, 7), i32(3, 2), i32(3), i32(2)], {}, r"counts has shape \(2,\), expected \(3,\)"),
        ([boolean(3, 7), i32(3, 2), i32(1), i32(3)], {}, r"starts has shape \(1,\), expected \(3,\)"),
    ],
}  # fmt: skip

EXACT = {
    "sample_tokens": [
        ([f32(3, 7), boolean(3, 7), *ROW], {}, [i32(3)]),
        ([f16(3, 7), boolean(3, 7), *ROW], {}, [i32(3)]),
    ],
    "mark_tokens": [([boolean(3, 7), i32(3, 2), i32(3), i32(3)], {}, [boolean(3, 7)])],
}
