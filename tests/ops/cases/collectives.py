"""What ranks do together."""

from . import f32, i32

NEGATIVE = {
    ("all_reduce", "C1"): ([f32(3)], {"ranks": 0}, "ranks is 0, expected 1 or more"),
    ("broadcast_from", "C1"): ([f32(3)], {"ranks": 0}, "ranks is 0, expected 1 or more"),
    ("broadcast_from", "C2"): [
        ([f32(3)], {"ranks": 2, "root": 2}, "root is 2, expected one of 2 ranks, from 0 on"),
        ([f32(3)], {"ranks": 2, "root": -1}, "root is -1, expected one of 2 ranks, from 0 on"),
    ],
}
EXACT = {
    "all_reduce": [
        ([f32(4, 7)], {"ranks": 8, "mean": True, "bucket": 2}, [f32(4, 7)]),
        ([i32()], {}, [i32()]),
    ],
    "broadcast_from": [([f32(0, 3)], {"ranks": 2, "root": 1}, [f32(0, 3)])],
}
