from . import boolean, f32, i32

TWICE = r"(perm|dims) \(0, 0\) names an axis twice"


def _axes(name, rank, *, more=()):
    return [
        ([f32(*[2] * rank)], {name: entries}, rf"{name} has {seen}, expected integers in \[0, {rank}\)")
        for entries, seen in [
            ((rank, *range(1, rank)), rank), ((*range(rank - 1), -1), -1), ((*range(rank - 1), 1.0), r"1\.0"), *more,
        ]
    ] + [([f32(2, 2)], {name: (0, 0)}, TWICE)]  # fmt: skip


def _slice(message, start=(0, 0), limit=(2, 3), step=(1, 1)):
    return [f32(2, 3)], {"start": start, "limit": limit, "step": step}, message


NEGATIVE = {
    ("transpose", "C1"): _axes("perm", 2),
    ("transpose", "C2"): ([f32(2, 3, 4)], {"perm": (1, 0)}, r"perm \(1, 0\) has 2 entries, x has rank 3"),
    ("slice", "C1"): [
        _slice(r"start \(0,\) has 1 entries, x has rank 2", start=(0,)),
        _slice(r"limit \(2, 3, 1\) has 3 entries, x has rank 2", limit=(2, 3, 1)),
        _slice(r"step \(1,\) has 1 entries, x has rank 2", step=(1,)),
        _slice(r"start \(0, 0\.0\) is not of integers", start=(0, 0.0)),
        _slice(r"limit \(2, 3\.0\) is not of integers", limit=(2, 3.0)),
        _slice(r"step \(1, True\) is not of integers", step=(1, True)),
    ],
    ("slice", "C2"): [
        _slice(r"axis 1 is taken from -1 to 3, expected 0 <= start <= limit <= 3", start=(0, -1)),
        _slice(r"axis 0 is taken from 2 to 1, expected 0 <= start <= limit <= 2", start=(2, 0), limit=(1, 3)),
        _slice(r"axis 1 is taken from 0 to 4, expected 0 <= start <= limit <= 3", limit=(2, 4)),
    ],
    ("slice", "C3"): [
        _slice(r"step \(1, 0\) has one under 1", step=(1, 0)),
        _slice(r"step \(-1, 1\) has one under 1", step=(-1, 1)),
    ],
    ("reverse", "C1"): _axes("dims", 2),
}

EXACT = {
    "transpose": ([i32(2, 3, 5)], {"perm": (1, 2, 0)}, [i32(3, 5, 2)]),
    "slice": [
        ([f32(4, 9)], {"start": (1, 0), "limit": (3, 9), "step": (1, 4)}, [f32(2, 3)]),
        ([f32(4, 9)], {"start": (1, 0), "limit": (3, 9)}, [f32(2, 9)]),
        ([f32(4, 9)], {"start": (4, 2), "limit": (4, 7), "step": (5, 5)}, [f32(0, 1)]),
    ],
    "reverse": ([boolean(2, 3)], {"dims": (1, 0)}, [boolean(2, 3)]),
}
