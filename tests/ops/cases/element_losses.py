from . import f16, f32, i32, i64

_OUTPUT = f32(9, 4, 5)
_GIVEN = [_OUTPUT, i64(4, 3), i64(4), i64(4)]
_BROKEN = {
    "C1": [([f32(9, 5), *_GIVEN[1:]], {}, r"log_probs have shape \(9, 5\), expected \(time, N, classes\)")],
    "C2": [
        ([_OUTPUT, i64(4), i64(4), i64(4)], {}, r"labels have shape \(4,\), expected \(4, length\)"),
        ([_OUTPUT, i64(3, 2), i64(4), i64(4)], {}, r"labels have shape \(3, 2\), expected \(4, length\)"),
    ],
    "C3": [
        ([_OUTPUT, i64(4, 3), i64(3), i64(4)], {}, r"input_lengths has shape \(3,\), expected \(4,\)"),
        ([_OUTPUT, i64(4, 3), i64(4), i64()], {}, r"target_lengths has shape \(\), expected \(4,\)"),
    ],
    "C4": [(_GIVEN, {"blank": n}, rf"blank is {n}, expected 0 to 4") for n in (-1, 5)],
}

NEGATIVE = {
    ("cosine_similarity", "C1"): [
        ([f32(4, 7), f32(4, 7)], {"axis": n}, rf"axis {n} is not in \[-2, 2\)") for n in (2, -3)
    ],
    ("cosine_similarity", "C2"): ([f32(4, 7), f32(7)], {}, r"a has shape \(4, 7\), b \(7,\)"),
    ("cosine_similarity", "C3"): ([f32(4, 7), f32(4, 7)], {"eps": 0.0}, "eps is 0.0, expected more than 0"),
    **{("ctc_loss", constraint): cases for constraint, cases in _BROKEN.items()},
    **{
        ("ctc_loss_grad", constraint): [([f32(4), *given, f32(4), f32(9, 4, 7)], attrs, text) for given, attrs, text in cases]
        for constraint, cases in _BROKEN.items()
    },
    ("ctc_loss_grad", "C5"): [
        ([f32(3), *_GIVEN, f32(4), f32(9, 4, 7)], {}, r"dloss has shape \(3,\), expected \(4,\)"),
        ([f32(4), *_GIVEN, f32(), f32(9, 4, 7)], {}, r"nll has shape \(\), expected \(4,\)"),
        ([f32(4), *_GIVEN, f32(4), f32(9, 4, 3)], {}, r"alpha has shape \(9, 4, 3\), expected \(9, 4, 7\)"),
    ],
}  # fmt: skip

EXACT = {
    "cosine_similarity": ([f16(2, 3, 5), f16(2, 3, 5)], {"axis": 1}, [f16(2, 5)]),
    "ctc_loss": ([_OUTPUT, i32(4, 3), i64(4), i32(4)], {"blank": 4}, [f32(4), f32(4), f32(9, 4, 7)]),
    "ctc_loss_grad": ([f32(4), *_GIVEN, f32(4), f32(9, 4, 7)], {}, [_OUTPUT]),
}
