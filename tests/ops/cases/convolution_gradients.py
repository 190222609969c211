from . import bf16, f16, f32

_DW, _DX = (f"convolution_{of}_gradient_channels_last" for of in ("weight", "data"))
_RANKS = (2, 6)


def _dw(message, x=None, dy=None, **attrs):
    return [x or f32(2, 5, 6, 4), dy or f32(2, 3, 4, 6)], {"kernel": (3, 3), **attrs}, message


def _dx(message, dy=None, w=None, **attrs):
    return [dy or f32(2, 3, 4, 6), w or f32(6, 3, 3, 4)], {"sizes": (5, 6), **attrs}, message


def _steps(make):
    return [
        make(message, **{name: entries})
        for name in ("strides", "dilation", "input_dilation")
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


def _sizes(make, name, least):
    expected = f"expected 2 integers from {least} on"
    return [
        make(rf"{name} is \(3,\), {expected}", **{name: (3,)}),
        make(rf"{name} is \(3, {least - 1}\), {expected}", **{name: (3, least - 1)}),
        make(rf"{name} is \(3, 2\.5\), {expected}", **{name: (3, 2.5)}),
    ]


NEGATIVE = {
    (_DW, "C1"): [
        *(_dw(rf"x has rank {n}, expected \(N, …, C\) with one to three spatial axes", f32(*[2] * n)) for n in _RANKS),
        _dw("dy has rank 3, x has rank 4", dy=f32(2, 3, 6)),
    ],
    (_DW, "C2"): _steps(_dw),
    (_DW, "C3"): _amounts(_dw),
    (_DW, "C4"): [
        _dw("groups is 0, expected 1 or more", groups=0),
        _dw("groups is 3, which doesn't divide the 4 channels of x", groups=3),
        _dw("groups is 4, which doesn't divide the 6 channels of dy", groups=4),
    ],
    (_DW, "C5"): _sizes(_dw, "kernel", 1),
    (_DW, "C6"): [
        _dw(r"dy has windows \(3, 3, 4\), x has \(2, 3, 4\), of a kernel of \(3, 3\)", dy=f32(3, 3, 4, 6)),
        _dw(r"dy has windows \(2, 3, 5\), x has \(2, 3, 4\), of a kernel of \(3, 3\)", dy=f32(2, 3, 5, 6)),
    ],
    (_DX, "C1"): [
        *(_dx(rf"dy has rank {n}, expected \(N, …, C\) with one to three spatial axes", f32(*[2] * n)) for n in _RANKS),
        _dx("w has rank 3, dy has rank 4", w=f32(6, 3, 4)),
    ],
    (_DX, "C2"): _steps(_dx),
    (_DX, "C3"): _amounts(_dx),
    (_DX, "C4"): [
        _dx("w is of 8 channels of y, dy has 6", w=f32(8, 3, 3, 4)),
        _dx("groups is 0, expected 1 or more", groups=0),
        _dx("groups is 4, which doesn't divide the 6 channels of dy", groups=4),
    ],
    (_DX, "C5"): _sizes(_dx, "sizes", 0),
    (_DX, "C6"): _dx(r"the kernel is empty: w has shape \(6, 0, 3, 4\)", w=f32(6, 0, 3, 4)),
    (_DX, "C7"): _dx(
        r"dy has windows \(3, 5\), a tensor of \(5, 6\) has \(3, 4\), of a kernel of \(3, 3\)", dy=f32(2, 3, 5, 6)
    ),
}  # fmt: skip
EXACT = {
    _DW: [
        ([f16(2, 9, 4), f16(2, 4, 6)], {"kernel": (3,), "groups": 2, "strides": (2,), "low": (1,)}, [f16(6, 3, 2)]),
        ([f32(2, 4, 5, 3), f32(2, 5, 5, 6)], {"kernel": (3, 3), "input_dilation": (2, 2), "dilation": (1, 2)}, [f32(6, 3, 3, 3)]),
        ([f32(2, 2, 3), f32(2, 0, 6)], {"kernel": (3,)}, [f32(6, 3, 3)]),
    ],
    _DX: [
        ([bf16(2, 4, 6), bf16(6, 3, 2)], {"sizes": (9,), "groups": 2, "strides": (2,), "low": (1,)}, [bf16(2, 9, 4)]),
        ([f32(2, 5, 5, 6), f32(6, 3, 3, 3)], {"sizes": (4, 5), "input_dilation": (2, 2), "dilation": (1, 2)}, [f32(2, 4, 5, 3)]),
        ([f32(2, 0, 6), f32(6, 3, 3)], {"sizes": (2,)}, [f32(2, 2, 3)]),
    ],
}  # fmt: skip
