from . import boolean, f32, i32, i64


def _pad(message, x=None, **attrs):
    return [x or f32(2, 3)], attrs, message


NEGATIVE = {
    ("pad", "C1"): [
        _pad(r"low \(1,\) has 1 entries, x has rank 2", low=(1,)),
        _pad(r"high \(1, 2, 3\) has 3 entries, x has rank 2", high=(1, 2, 3)),
        _pad(r"interior \(1,\) has 1 entries, x has rank 2", interior=(1,)),
        _pad(r"low \(1, 1\.0\) is not of integers", low=(1, 1.0)),
        _pad(r"high \(1, True\) is not of integers", high=(1, True)),
    ],
    ("pad", "C2"): _pad(r"interior \(1, -1\) has one under 0", interior=(1, -1)),
    ("pad", "C3"): [
        _pad(r"axis 1 of size 3 with -2 before, 0 between and -2 behind has -1 elements", low=(0, -2), high=(0, -2)),
        _pad(r"axis 0 of size 0 with 0 before, 3 between and -1 behind has -1 elements", f32(0), high=(-1,), interior=(3,)),
    ],
    ("pad", "C4"): [
        _pad(r"value is 0\.5, x is i32: i32 is a type of integers", i32(2), value=0.5),
        _pad(r"value is 2, x is bool: a bool is True or False", boolean(2), value=2.0),
    ],
    ("pad", "C5"): [
        _pad(rf"value is {sign}9007199254740994, beyond 2\^53; select chooses between a pad and a constant of i64",
             i64(2), value=float(f"{sign}9007199254740994"))
        for sign in ("", "-")
    ],
    ("concatenate", "C1"): [
        ([f32(2, 3), f32(2, 3)], {"axis": 2}, "axis is 2, expected 0 to 1"),
        ([f32(2, 3)], {"axis": -3}, "axis is -1, expected 0 to 1"),
        ([f32(), f32()], {}, "a number has no axis"),
    ],
    ("concatenate", "C2"): [
        ([f32(2, 3), f32(2, 3), f32(2, 4)], {}, r"xs\[2\] has shape \(2, 4\), xs\[0\] \(2, 3\): they may differ along axis 0 alone"),
        ([f32(2, 3), f32(2)], {"axis": 1}, r"xs\[1\] has shape \(2,\), xs\[0\] \(2, 3\): they may differ along axis 1 alone"),
        ([f32(2, 3), f32(3)], {}, r"xs\[1\] has shape \(3,\), xs\[0\] \(2, 3\): they may differ along axis 0 alone"),
    ],
}  # fmt: skip

EXACT = {
    "concatenate": ([i64(2, 3), i64(2, 0), i64(2, 4)], {"axis": -1}, [i64(2, 7)]),
    "pad": [
        ([f32(2, 3)], {"low": (1, -1), "high": (0, 2), "interior": (2, 0)}, [f32(5, 4)]),
        ([i64(2)], {"value": 2.0**53, "low": (1,)}, [i64(3)]),
        ([f32(2)], {"value": 2.0**60, "low": (-2,)}, [f32(0)]),
    ],
}
