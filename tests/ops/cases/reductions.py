from . import bf16, boolean, f16, f32, i64

NEGATIVE = {
    (op, constraint): [
        ([boolean(4, 7) if op in ("reduce_any", "reduce_all") else f32(4, 7)], {"axes": axes}, message)
        for axes, message in cases
    ]
    for op in (
        "reduce_sum",
        "reduce_mean",
        "reduce_prod",
        "reduce_max",
        "reduce_min",
        "reduce_any",
        "reduce_all",
        "reduce_var",
        "reduce_std",
    )
    for constraint, cases in {
        "C1": [
            ((0, 2), r"axis 2 is not an integer in \[-2, 2\)"),
            ((-3, 0), r"axis -3 is not an integer in \[-2, 2\)"),
            ((0, 1.0), r"axis 1\.0 is not an integer in \[-2, 2\)"),
        ],
        "C2": [((1, -1), r"axes \(1, -1\) name an axis of 2 twice")],
    }.items()
}
for _op, _found in (("argmax", "greatest"), ("argmin", "least")):
    NEGATIVE[_op, "C1"] = [
        ([f32(4, 7)], {"axis": 2}, r"axis 2 is not in \[-2, 2\)"),
        ([f32(4, 7)], {"axis": -3}, r"axis -3 is not in \[-2, 2\)"),
        ([f32()], {}, r"axis -1 is not in \[-0, 0\)"),
    ]
    NEGATIVE[_op, "C2"] = [
        ([f32(4, 0)], {}, rf"axis 1 of \(4, 0\) is empty, so there is no {_found} element on it"),
        ([f32(0, 4)], {"axis": 0}, rf"axis 0 of \(0, 4\) is empty, so there is no {_found} element on it"),
    ]
    NEGATIVE[_op, "C3"] = ([f32(2**32 + 1)], {}, r"axis 0 has 4294967297 elements, expected 2\^32 at most")

EXACT = {
    "reduce_sum": ([i64(2, 3, 5)], {"axes": (-1, 0)}, [i64(3)]),
    "reduce_mean": ([bf16(2, 3, 5)], {"axes": (1,), "keepdims": True}, [bf16(2, 1, 5)]),
    "reduce_prod": ([i64(2, 3, 5)], {"axes": (1,)}, [i64(2, 5)]),
    "reduce_any": ([boolean(2, 3, 5)], {"axes": (-1, 0)}, [boolean(3)]),
    "reduce_all": ([boolean(2, 3)], {"axes": (0,), "keepdims": True}, [boolean(1, 3)]),
    "reduce_var": ([bf16(2, 3)], {"correction": 1.0}, [bf16()]),
    "reduce_std": ([f16(2, 3)], {"axes": (1,)}, [f16(2)]),
    "reduce_max": ([f16(2, 3)], {}, [f16()]),
    "reduce_min": ([bf16(2, 3)], {"axes": (0,)}, [bf16(3)]),
    "argmax": ([bf16(2, 3, 5)], {"axis": -2}, [i64(2, 5)]),
    "argmin": ([f16(2, 3)], {"keepdims": True}, [i64(2, 1)]),
}
