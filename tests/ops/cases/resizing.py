from . import bf16, f16, f32, i32, i64


def _resample(message, **given):
    operands = {
        "x": f32(2, 5), "indices": i32(2, 3), "weights": f32(2, 3), "back_indices": i32(4, 5), "back_weights": f32(4, 5),
    } | given  # fmt: skip
    return [*operands.values()], {"axis": 1}, message


def _resize(message, *shape, **attrs):
    return [f32(*shape or (2, 3, 4))], {"sizes": (2, 3, 8), **attrs}, message


NEGATIVE = {
    ("resample", "C1"): [
        ([f32(2, 5), i32(2, 3), f32(2, 3), i32(4, 5), f32(4, 5)], {"axis": axis}, rf"axis {axis} is not in \[-2, 2\)")
        for axis in (2, -3)
    ],
    ("resample", "C2"): [
        _resample(rf"indices has shape {said}, expected \(K, M\), K from 1 on", indices=i32(*shape))
        for shape, said in (((3,), r"\(3,\)"), ((0, 3), r"\(0, 3\)"), ((1, 2, 3), r"\(1, 2, 3\)"))
    ],
    ("resample", "C3"): _resample(r"weights has shape \(3, 2\), expected \(2, 3\)", weights=f32(3, 2)),
    ("resample", "C4"): [
        _resample(rf"back_indices has shape {said}, expected \(J, 5\), J from 1 on", back_indices=i64(*shape))
        for shape, said in (((4, 3), r"\(4, 3\)"), ((0, 5), r"\(0, 5\)"), ((5,), r"\(5,\)"))
    ],
    ("resample", "C5"): _resample(r"back_weights has shape \(5, 5\), expected \(4, 5\)", back_weights=f32(5, 5)),
    ("resize", "C1"): [
        _resize(rf"sizes is {said}, expected 3 integers from 0 on", sizes=sizes)
        for sizes, said in (((2, 3), r"\(2, 3\)"), ((2, 3, -1), r"\(2, 3, -1\)"), ((2, 3, 4.0), r"\(2, 3, 4\.0\)"))
    ],
    ("resize", "C2"): [
        _resize(rf"axis {axis} of x {said} is empty, and y has {size} elements there", *shape)
        for axis, said, size, shape in ((2, r"\(2, 3, 0\)", 8, (2, 3, 0)), (0, r"\(0, 3, 4\)", 2, (0, 3, 4)))
    ],
    ("resize", "C3"): [
        _resize(rf"scales is {said}, expected 3 finite numbers from 0 on", scales=scales)
        for scales, said in (((2.0,), r"\(2\.0,\)"), ((1.0, 1.0, -1.0), r"\(1\.0, 1\.0, -1\.0\)"), ((1.0, 1.0, float("inf")), r"\(1\.0, 1\.0, inf\)"))
    ],
    ("resize", "C4"): _resize("cubic is inf, expected a finite number", cubic=float("inf")),
}  # fmt: skip
EXACT = {
    "resample": ([f16(2, 5, 4), i64(2, 3), f32(2, 3), i64(4, 5), f32(4, 5)], {"axis": -2}, [f16(2, 3, 4)]),
    "resize": ([bf16(1, 3, 8, 8)], {"sizes": (1, 3, 16, 5)}, [bf16(1, 3, 16, 5)]),
}
