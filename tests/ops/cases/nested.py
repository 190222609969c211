import re

from . import f16, f32, i32, i64


def _windows(op, extra):
    whole = {"window": (2, 2)}
    given = [f32(4, 4), *extra]
    bad = [
        ("window", (2,)),
        ("window", (2, 0)),
        ("window", (2, 1.0)),
        ("strides", (1,)),
        ("strides", (0, 1)),
        ("strides", (1.0, 1)),
    ]
    if op == "reduce_window":
        bad += [("dilation", (1,)), ("dilation", (0, 1)), ("dilation", (1.0, 1))]

    def told(name, entries, least):
        return re.escape(f"{name} is {entries}, expected 2 integers from {least} on")

    return {
        (op, "C1"): [(given, {**whole, name: entries}, told(name, entries, 1)) for name, entries in bad],
        (op, "C2"): [
            (given, {**whole, name: entries}, told(name, entries, 0))
            for name in ("low", "high") for entries in ((1,), (-1, 0), (1.0, 0))
        ],
    }  # fmt: skip


_DEEP = r"indices have shape \({}\), expected a last axis of 1 to 2"
NEGATIVE = {
    **_windows("reduce_window", []),
    **_windows("select_and_scatter", [f32(3, 3)]),
    ("select_and_scatter", "C3"): ([f32(4, 4), f32(2, 3)], {"window": (2, 2)}, r"source has shape \(2, 3\), expected \(3, 3\)"),
    ("stack", "C1"): [
        ([f32(2, 3), f32(3)], {}, r"xs\[1\] has shape \(3,\), xs\[0\] \(2, 3\)"),
        ([f32(2, 3), f32(2, 3), f32(3)], {}, r"xs\[2\] has shape \(3,\), xs\[0\] \(2, 3\)"),
    ],
    ("stack", "C2"): [([f32(2, 3), f32(2, 3)], {"axis": n}, rf"axis {n} is not in \[-3, 3\)") for n in (3, -4)],
    ("outer", "C1"): [
        ([f32(2, 3), f32(3)], {}, "a has rank 2, expected 1"), ([f32(3), f32()], {}, "b has rank 0, expected 1"),
    ],
    ("gather_nd", "C1"): [
        ([f32(4, 5), i64()], {}, _DEEP.format("")), ([f32(4, 5), i64(3, 0)], {}, _DEEP.format("3, 0")), ([f32(4, 5), i64(3)], {}, _DEEP.format("3,")),
    ],
    ("scatter_nd", "C1"): [
        ([f32(4, 5), i64(), f32()], {}, _DEEP.format("")), ([f32(4, 5), i64(3, 0), f32(3)], {}, _DEEP.format("3, 0")),
        ([f32(4, 5), i64(3), f32()], {}, _DEEP.format("3,")),
    ],
    ("scatter_nd", "C2"): ([f32(4, 5), i64(3, 1), f32(3)], {}, r"updates have shape \(3,\), expected \(3, 5\)"),
}  # fmt: skip

EXACT = {
    "reduce_window": ([f16(4, 6)], {"window": (2, 3), "strides": (2, 1), "low": (1, 0), "high": (1, 0)}, [f16(3, 4)]),
    "select_and_scatter": ([f32(4, 4), f32(3, 3)], {"window": (2, 2)}, [f32(4, 4)]),
    "stack": ([f16(2, 3), f16(2, 3)], {"axis": 1}, [f16(2, 2, 3)]),
    "outer": ([i32(4), i32(7)], {}, [i32(4, 7)]),
    "gather_nd": ([f16(4, 5, 6), i32(2, 3, 2)], {}, [f16(2, 3, 6)]),
    "scatter_nd": ([f32(4, 5, 6), i64(3, 2), f32(3, 6)], {}, [f32(4, 5, 6)]),
}  # fmt: skip
