from . import boolean, f32, i32, i64

SIZES = [
    ((2, -1), r"size -1 of shape \(2, -1\) is negative"),
    ((-1, 2), r"size -1 of shape \(-1, 2\) is negative"),
]
NEGATIVE = {
    ("fill", "C1"): [
        ([], {"shape": shape, "value": 0.0, "dtype": 1}, message) for shape, message in SIZES
    ],
    ("fill", "C2"): ([], {"shape": (2,), "value": 2.5, "dtype": 4}, r"value is 2\.5: i32 is a type of integers"),
    ("fill", "C3"): (
        [], {"shape": (2,), "value": 2.0**53 + 2, "dtype": 5},
        r"value is 9007199254740994, beyond 2\^53; broadcast_in_dim repeats a constant of i64",
    ),
    ("reshape", "C1"): [
        ([f32(6)], {"shape": (2, -3)}, r"size -3 of shape \(2, -3\) is negative"),
        ([f32(6)], {"shape": (-2, 3)}, r"size -2 of shape \(-2, 3\) is negative"),
        ([f32(6)], {"shape": (-1, 2, -1)}, r"shape \(-1, 2, -1\) has -1 2 times, expected once"),
    ],
    ("reshape", "C2"): [
        ([f32(4, 7)], {"shape": (4, 6)}, r"shape \(4, 6\) has 24 elements, x has 28"),
        ([f32(4, 7)], {"shape": (-1, 6)}, r"the 28 elements of x leave no one size for -1 beside 6 in shape \(-1, 6\)"),
        ([f32(0, 7)], {"shape": (0, -1)}, r"the 0 elements of x leave no one size for -1 beside 0 in shape \(0, -1\)"),
    ],
    ("broadcast_in_dim", "C1"): [
        ([f32()], {"shape": shape, "dims": ()}, message) for shape, message in SIZES
    ],
    ("broadcast_in_dim", "C2"): (
        [f32(2, 3)], {"shape": (2, 3), "dims": (0,)}, r"dims \(0,\) has 1 entries, x has rank 2",
    ),
    ("broadcast_in_dim", "C3"): [
        ([f32(2)], {"shape": (3, 2), "dims": (2,)}, r"dim 2 is not an integer in \[0, 2\)"),
        ([f32(2)], {"shape": (3, 2), "dims": (-1,)}, r"dim -1 is not an integer in \[0, 2\)"),
        ([f32(2, 2)], {"shape": (2, 2), "dims": (0, 1.0)}, r"dim 1\.0 is not an integer in \[0, 2\)"),
    ],
    ("broadcast_in_dim", "C4"): (
        [f32(2, 3)], {"shape": (3, 2), "dims": (1, 0)}, r"dims \(1, 0\) do not ascend",
    ),
    ("broadcast_in_dim", "C5"): [
        ([f32(2)], {"shape": (2, 3), "dims": (1,)}, r"axis 0 of x has size 2, axis 1 of the result 3"),
        ([f32(2, 2)], {"shape": (2, 3), "dims": (0, 1)}, r"axis 1 of x has size 2, axis 1 of the result 3"),
    ],
    ("iota", "C1"): [([], {"shape": shape}, message) for shape, message in SIZES],
    ("iota", "C2"): [
        ([], {"shape": shape, "axis": axis}, rf"axis {axis} is not in \[-{len(shape)}, {len(shape)}\)")
        for shape, axis in (((4, 7), 2), ((4, 7), -3), ((), -1))
    ],
    ("iota", "C3"): [
        ([], {"shape": (2,), "dtype": 6}, r"dtype is bool, expected an integer type or f32"),
        ([], {"shape": (2,), "dtype": 3}, r"dtype is bf16, expected an integer type or f32"),
    ],
    ("iota", "C4"): (
        [], {"shape": (2**31 + 1,), "dtype": 4},
        r"the last index is 2147483648: i32 reaches from -2147483648 to 2147483647",
    ),
}  # fmt: skip

EXACT = {
    "iota": [
        ([], {"shape": (2, 0, 3), "axis": -2}, [i32(2, 0, 3)]),
        ([], {"shape": (2**31,), "axis": 0}, [i32(2**31)]),
        ([], {"shape": (2**31 + 1, 1), "axis": 0, "dtype": 5}, [i64(2**31 + 1, 1)]),
    ],
    "fill": [
        ([], {"shape": (2, 0), "value": 1.0, "dtype": 6}, [boolean(2, 0)]),
        ([], {"shape": (2,), "value": 2.0**60, "dtype": 1}, [f32(2)]),
    ],
    "reshape": [
        ([i32(2, 3, 5)], {"shape": (6, 5)}, [i32(6, 5)]),
        ([i32(2, 3, 5)], {"shape": (-1, 5)}, [i32(6, 5)]),
        ([i32(2, 3, 5)], {"shape": [5, 6, -1]}, [i32(5, 6, 1)]),
        ([i32(0, 3)], {"shape": (-1, 3)}, [i32(0, 3)]),
    ],
    "broadcast_in_dim": ([f32(4, 1)], {"shape": (2, 4, 9), "dims": (1, 2)}, [f32(2, 4, 9)]),
}
