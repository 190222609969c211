from . import boolean, f32, i32, i64

AXIS = [
    ([f32(2, 3), i64(4)], {"axis": axis}, rf"axis is {told}, expected 0 to 1")
    for axis, told in ((2, 2), (-3, -1))
]


def _scatter(message, updates, indices, **attrs):
    return [updates, indices], {"size": 4, **attrs}, message


NEGATIVE = {
    ("gather", "C1"): [*AXIS, ([f32(), i64(4)], {}, "a number has no axis")],
    ("take_along_axis", "C1"): [
        ([f32(2, 3), i64(2, 3)], {"axis": axis}, rf"axis is {told}, expected 0 to 1") for axis, told in ((2, 2), (-3, -1))
    ],
    ("take_along_axis", "C2"): [
        ([f32(2, 3), i64(2)], {"axis": 1}, r"indices have shape \(2,\), x has \(2, 3\): they may differ along axis 1 alone"),
        ([f32(2, 3), i64(3)], {"axis": 0}, r"indices have shape \(3,\), x has \(2, 3\): they may differ along axis 0 alone"),
        ([f32(2, 3), i64(4, 2)], {"axis": 0}, r"indices have shape \(4, 2\), x has \(2, 3\): they may differ along axis 0 alone"),
    ],
    ("scatter_add", "C1"): [
        _scatter("axis is 1, expected 0 to 0", f32(3), i64(3), axis=1),
        _scatter("axis is -1, expected 0 to 1", f32(3, 2), i64(3), axis=-3),
        _scatter("axis is 1, expected 0 to 0", f32(3), i64(3), axis=1, along=True),
        _scatter("a number has no axis", f32(), i64(3)),
    ],
    ("scatter_add", "C2"): _scatter("size is -1, expected at least 0", f32(3), i64(3), size=-1),
    ("scatter_add", "C3"): [
        _scatter(r"updates have shape \(3, 2\), with \(3,\) from axis 0 on; indices have \(2,\)", f32(3, 2), i64(2)),
    ],
    ("scatter_add", "C4"): _scatter(r"indices have shape \(3,\), updates \(3, 2\)", f32(3, 2), i64(3), along=True),
    ("check_indices", "C1"): ([i64(3), i64(4)], {"size": 2}, r"fault has shape \(4,\), expected \(5,\)"),
    ("check_indices", "C2"): ([i64(3), i64(5)], {"size": -1}, r"size is -1, expected at least 0"),
}  # fmt: skip

EXACT = {
    "check_indices": ([i32(2, 3), i64(5)], {"size": 4}, [boolean(), i64(5)]),
    "gather": ([i32(5, 7), i32(2, 3)], {"axis": -1}, [i32(5, 2, 3)]),
    "take_along_axis": ([f32(5, 7), i32(5, 2)], {"axis": -1}, [f32(5, 2)]),
    "scatter_add": [
        ([f32(5, 2, 3), i64(2, 3)], {"size": 0, "axis": -1}, [f32(5, 0)]),
        ([i32(5, 2), i64(5, 2)], {"size": 9, "axis": -2, "along": True}, [i32(9, 2)]),
    ],
}
