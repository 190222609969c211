from aicf.types import DType

from . import boolean, f16, f32, i32, i64


def _axes(name, given):
    """What is said of axes that are none of a matrix'."""
    return [
        ([f32(2, 2)], {**given, name: entries}, message)
        for entries, message in [
            ((2, 0), rf"{name} has 2, expected integers in \[0, 2\)"), ((1, -1), rf"{name} has -1, expected integers in \[0, 2\)"),
            ((0, 1.0), rf"{name} has 1\.0, expected integers in \[0, 2\)"), ((0, 0), rf"{name} \(0, 0\) names an axis twice"),
        ]
    ]  # fmt: skip


def _amounts():
    """low or high of a pad, the other of which is fine."""
    made = []
    for name in ("low", "high"):
        fine = {"low": (0, 0), "high": (0, 0)}
        made += [
            ([f32(2, 3)], {**fine, name: (1,)}, rf"{name} \(1,\) has 1 entries, x has rank 2"),
            ([f32(2, 3)], {**fine, name: (1, -1)}, rf"{name} \(1, -1\) is not of integers from 0 on"),
            ([f32(2, 3)], {**fine, name: (1.0, 1)}, rf"{name} \(1\.0, 1\) is not of integers from 0 on"),
        ]
    return made


_REPEATS = [
    ([f32(2, 3)], {"repeats": (1,)}, r"repeats \(1,\) has 1 entries, x has rank 2"),
    ([f32(2, 3)], {"repeats": (1, -1)}, r"repeats \(1, -1\) is not of integers from 0 on"),
    ([f32(2, 3)], {"repeats": (1, 1.0)}, r"repeats \(1, 1\.0\) is not of integers from 0 on"),
]
_START = ([f32(2, 3), i32(3)], r"starts have shape \(3,\), expected \(2,\), one for each axis of x")

_SCATTERED = r"updates have shape \({}\), indices \({}\), x \(2, 3\)"

NEGATIVE = {
    **{
        (op, "C1"): [
            ([f32(2, 3)], {**more, "axis": 2}, r"axis 2 is not in \[-2, 2\)"), ([f32(2, 3)], {**more, "axis": -3}, r"axis -3 is not in \[-2, 2\)"),
        ]
        for op in ("cumsum", "cumprod", "cummax", "cummin", "sort", "argsort", "top_k")
        for more in [{"k": 0} if op == "top_k" else {}]
    },
    ("top_k", "C2"): [
        ([f32(2, 3)], {"k": 4}, "k is 4, expected 0 to 3, the size of axis -?1"), ([f32(2, 3)], {"k": -1}, "k is -1, expected 0 to 3, the size of axis -?1"),
    ],
    ("scatter", "C1"): [
        ([f32(2, 3), i32(2), f32(2, 2)], {"axis": 2}, "axis is 2, x has rank 2"), ([f32(2, 3), i32(2), f32(2, 2)], {"axis": -3}, "axis is -1, x has rank 2"),
    ],
    ("scatter", "C2"): ([f32(2, 3), i32(4), f32(4, 2)], {}, r"updates have shape \(4, 2\), expected \(4, 3\)"),
    ("scatter", "C3"): [
        ([f32(2, 3), i32(4), f32(4)], {"along": True}, _SCATTERED.format("4,", "4,")),
        ([f32(2, 3), i32(4, 2), f32(4, 2)], {"along": True}, _SCATTERED.format("4, 2", "4, 2")),
        ([f32(2, 3), i32(2), f32(2)], {"along": True, "axis": 1}, _SCATTERED.format("2,", "2,")),
        ([f32(2, 3), i32(4, 3), f32(5, 3)], {"along": True}, _SCATTERED.format("5, 3", "4, 3")),
    ],
    ("tril", "C1"): ([f32(3)], {}, "x has rank 1, expected 2 or more"),
    ("triu", "C1"): ([f32(3)], {}, "x has rank 1, expected 2 or more"),
    ("eye", "C1"): [
        ([], {"rows": -1, "columns": 3}, r"rows is -1, expected 0 to 2\^31 - 1"),
        ([], {"rows": 3, "columns": 2**31}, r"columns is 2147483648, expected 0 to 2\^31 - 1"),
    ],
    ("eye", "C2"): [
        ([], {"rows": 3, "columns": 2, "diagonal": 3}, "diagonal is 3, expected -3 to 2"),
        ([], {"rows": 3, "columns": 2, "diagonal": -4}, "diagonal is -4, expected -3 to 2"),
    ],
    ("one_hot", "C1"): [
        ([i32(3)], {"classes": 2, "axis": 2}, r"axis 2 is not in \[-2, 2\)"),
        ([i32(3)], {"classes": 2, "axis": -3}, r"axis -3 is not in \[-2, 2\)"),
    ],
    ("one_hot", "C2"): [
        ([i32(3)], {"classes": -1}, r"classes is -1, expected 0 to 2\^31 - 1"),
        ([i32(3)], {"classes": 2**31}, r"classes is 2147483648, expected 0 to 2\^31 - 1"),
    ],
    ("roll", "C1"): _axes("axes", {"shifts": (1, 1)}),
    ("roll", "C2"): [
        ([f32(2, 3)], {"shifts": (1,), "axes": (0, 1)}, r"shifts \(1,\) has 1 entries, axes \(0, 1\) has 2"),
        ([f32(2, 3)], {"shifts": (1, 0.5), "axes": (0, 1)}, r"shifts \(1, 0\.5\) is not of integers"),
    ],
    ("tile", "C1"): _REPEATS,
    ("repeat", "C1"): _REPEATS,
    ("pad_reflect", "C1"): _amounts(),
    ("pad_edge", "C1"): _amounts(),
    ("pad_reflect", "C2"): [
        ([f32(2, 3)], {"low": (2, 0), "high": (0, 0)}, r"low \(2, 0\) is not less than the shape \(2, 3\) everywhere"),
        ([f32(2, 3)], {"low": (0, 0), "high": (0, 3)}, r"high \(0, 3\) is not less than the shape \(2, 3\) everywhere"),
    ],
    ("pad_edge", "C2"): [
        ([f32(2, 0)], {"low": given, "high": (0, 1 - given[1])}, r"axis 1 of \(2, 0\) is empty, so it has no element to repeat")
        for given in ((0, 1), (0, 0))
    ] + [([f32(0, 2)], {"low": (1, 0), "high": (0, 0)}, r"axis 0 of \(0, 2\) is empty, so it has no element to repeat")],
    ("dynamic_slice", "C1"): (_START[0], {"sizes": (1, 1)}, _START[1]),
    ("dynamic_slice", "C2"): [
        ([f32(2, 3), i32(2)], {"sizes": (1,)}, r"sizes \(1,\) has 1 entries, x has rank 2"),
        ([f32(2, 3), i32(2)], {"sizes": (1, 4)}, r"sizes \(1, 4\) do not fit into the shape \(2, 3\)"),
        ([f32(2, 3), i32(2)], {"sizes": (-1, 3)}, r"sizes \(-1, 3\) do not fit into the shape \(2, 3\)"),
    ],
    ("dynamic_update_slice", "C1"): ([f32(2, 3), f32(1, 1), i32(3)], {}, _START[1]),
    ("dynamic_update_slice", "C2"): [
        ([f32(2, 3), f32(1), i32(2)], {}, "the update has rank 1, x has rank 2"),
        ([f32(2, 3), f32(1, 4), i32(2)], {}, r"the update has shape \(1, 4\), which does not fit into \(2, 3\)"),
    ],
}  # fmt: skip
EXACT = {
    "tril": ([f16(2, 3, 5)], {"diagonal": 1}, [f16(2, 3, 5)]),
    "triu": ([boolean(3, 5)], {}, [boolean(3, 5)]),
    "eye": ([], {"rows": 3, "columns": 2, "dtype": DType.i64}, [i64(3, 2)]),
    "one_hot": ([i32(2, 3)], {"classes": 7, "axis": 1}, [f32(2, 7, 3)]),
    "roll": ([i32(2, 3)], {"shifts": (1,), "axes": (1,)}, [i32(2, 3)]),
    "tile": ([f32(2, 3)], {"repeats": (2, 1)}, [f32(4, 3)]),
    "repeat": ([f32(2, 3)], {"repeats": (1, 4)}, [f32(2, 12)]),
    "pad_reflect": ([f32(2, 3)], {"low": (1, 0), "high": (0, 2)}, [f32(3, 5)]),
    "pad_edge": ([i64(2, 3)], {"low": (4, 0), "high": (0, 2)}, [i64(6, 5)]),
    "dynamic_slice": ([f16(2, 3), i64(2)], {"sizes": (1, 3)}, [f16(1, 3)]),
    "cumsum": ([f16(2, 3)], {"axis": 0, "exclusive": True}, [f16(2, 3)]),
    "cumprod": ([i32(2, 3)], {"reverse": True}, [i32(2, 3)]),
    "cummax": ([i64(2, 3)], {}, [i64(2, 3)]),
    "cummin": ([f32(2, 3)], {"axis": 0}, [f32(2, 3)]),
    "sort": ([f16(2, 3)], {"descending": True}, [f16(2, 3)]),
    "argsort": ([f16(2, 3)], {"axis": 0}, [i64(2, 3)]),
    "top_k": ([f16(2, 3, 4)], {"k": 2, "axis": 1}, [f16(2, 2, 4), i64(2, 2, 4)]),
    "scatter": ([i64(2, 3), i32(4, 5), i64(2, 4, 5)], {"axis": 1}, [i64(2, 3)]),
    "dynamic_update_slice": ([f16(2, 3), f16(2, 1), i64(2)], {}, [f16(2, 3)]),
}
