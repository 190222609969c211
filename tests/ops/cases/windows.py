from . import f16, f32, i32


def _conv(message, x=None, w=None, **attrs):
    return [x or f32(2, 4, 5, 6), w or f32(6, 4, 3, 3)], attrs, message


def _last(message, x=None, w=None, **attrs):
    return [x or f32(2, 5, 6, 4), w or f32(6, 3, 3, 4)], attrs, message


def _pool(message, x=None, **attrs):
    return [x or f32(2, 4, 5, 6)], {"window": (2, 2), **attrs}, message


def _steps(make, *names):
    return [
        make(message, **{name: entries})
        for name in names
        for entries, message in [
            ((1,), rf"{name} is \(1,\), expected 2 integers from 1 on"),
            ((1, 0), rf"{name} is \(1, 0\), expected 2 integers from 1 on"),
            ((1, 1.0), rf"{name} is \(1, 1\.0\), expected 2 integers from 1 on"),
        ]
    ]


def _amounts(make):
    return [
        make(message, **{name: entries})
        for name in ("low", "high")
        for entries, message in [
            ((1,), rf"{name} is \(1,\), expected 2 integers"), ((1, 0.5), rf"{name} is \(1, 0\.5\), expected 2 integers"),
        ]
    ]  # fmt: skip


def _rank(make, layout=r"\(N, C, …\)", **more):
    return [
        make(
            rf"x has rank {rank}, expected {layout} with one to three spatial axes", f32(*[2] * rank), **more
        )
        for rank in (2, 6)
    ]


_BEYOND = [
    _pool(r"low is \(2, 0\), beyond a window of \(2, 2\)", low=(2, 0)),
    _pool(r"high is \(0, 2\), beyond a window of \(2, 2\)", high=(0, 2)),
    _pool(r"low is \(-1, 0\), beyond a window of \(2, 2\)", low=(-1, 0)),
]
NEGATIVE = {
    ("convolution", "C1"): [*_rank(_conv), _conv("w has rank 3, x has rank 4", w=f32(6, 4, 3))],
    ("convolution", "C2"): _steps(_conv, "strides", "dilation", "input_dilation"),
    ("convolution", "C3"): _amounts(_conv),
    ("convolution", "C4"): [
        _conv("groups is 0, expected 1 or more", groups=0),
        _conv("groups is 3, which doesn't divide the 4 channels of x", groups=3),
        _conv("groups is 4, which doesn't divide the 6 channels of y", w=f32(6, 1, 3, 3), groups=4),
    ],
    ("convolution", "C5"): _conv("w has 3 channels, x has 4 in 1 groups", w=f32(6, 3, 3, 3)),
    ("convolution", "C6"): _conv(r"the kernel is empty: w has shape \(6, 4, 0, 3\)", w=f32(6, 4, 0, 3)),
}
_OP = "convolution_channels_last"
NEGATIVE |= {
    (_OP, "C1"): [*_rank(_last, r"\(N, …, C\)"), _last("w has rank 3, x has rank 4", w=f32(6, 3, 4))],
    (_OP, "C2"): _steps(_last, "strides", "dilation", "input_dilation"),
    (_OP, "C3"): _amounts(_last),
    (_OP, "C4"): [
        _last("groups is 0, expected 1 or more", groups=0),
        _last("groups is 3, which doesn't divide the 4 channels of x", groups=3),
        _last("groups is 4, which doesn't divide the 6 channels of y", w=f32(6, 3, 3, 1), groups=4),
    ],
    (_OP, "C5"): _last("w has 3 channels, x has 4 in 1 groups", w=f32(6, 3, 3, 3)),
    (_OP, "C6"): _last(r"the kernel is empty: w has shape \(6, 4, 0, 3\)", w=f32(6, 0, 3, 4)),
}
for _op in ("max_pool", "avg_pool"):
    NEGATIVE[_op, "C1"] = _rank(_pool)
    NEGATIVE[_op, "C2"] = _steps(_pool, "window", "strides", "dilation")
    NEGATIVE[_op, "C3"] = _amounts(_pool)
    NEGATIVE[_op, "C4"] = _BEYOND
EXACT = {
    "convolution": [
        ([f16(2, 4, 9), f16(6, 2, 3)], {"groups": 2, "strides": (2,), "low": (1,)}, [f16(2, 6, 4)]),
        (
            [f32(2, 3, 4, 5), f32(6, 3, 3, 3)],
            {"input_dilation": (2, 2), "dilation": (1, 2)},
            [f32(2, 6, 5, 5)],
        ),
        ([f32(2, 3, 2), f32(6, 3, 3)], {}, [f32(2, 6, 0)]),
    ],
    "convolution_channels_last": [
        ([f16(2, 9, 4), f16(6, 3, 2)], {"groups": 2, "strides": (2,), "low": (1,)}, [f16(2, 4, 6)]),
        (
            [f32(2, 4, 5, 3), f32(6, 3, 3, 3)],
            {"input_dilation": (2, 2), "dilation": (1, 2)},
            [f32(2, 5, 5, 6)],
        ),
        ([f32(2, 2, 3), f32(6, 3, 3)], {}, [f32(2, 0, 6)]),
    ],
    "max_pool": ([i32(2, 3, 7)], {"window": (3,), "strides": (2,), "high": (2,)}, [i32(2, 3, 4)]),
    "avg_pool": ([f16(2, 3, 7, 5)], {"window": (3, 2), "dilation": (2, 1)}, [f16(2, 3, 3, 4)]),
}
