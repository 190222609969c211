from . import bf16, f16, f32, i64

NEGATIVE = {
    (op, constraint): [([f32(4, 7)], {"axes": axes}, message) for axes, message in cases]
    for op in ("reduce_sum", "reduce_mean", "reduce_max")
    for constraint, cases in {
        "C1": [
            ((0, 2), r"axis 2 is not an integer in \[-2, 2\)"),
            ((-3, 0), r"axis -3 is not an integer in \[-2, 2\)"),
            ((0, 1.0), r"axis 1\.0 is not an integer in \[-2, 2\)"),
        ],
        "C2": [((1, -1), r"axes \(1, -1\) name an axis of 2 twice")],
    }.items()
}

EXACT = {
    "reduce_sum": ([i64(2, 3, 5)], {"axes": (-1, 0)}, [i64(3)]),
    "reduce_mean": ([bf16(2, 3, 5)], {"axes": (1,), "keepdims": True}, [bf16(2, 1, 5)]),
    "reduce_max": ([f16(2, 3)], {}, [f16()]),
}
