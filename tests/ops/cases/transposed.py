from . import f16, f32


def _conv(message, x=None, w=None, **attrs):
    return [x or f32(2, 4, 5, 6), w or f32(4, 6, 3, 3)], attrs, message


NEGATIVE = {
    ("convolution_transposed", "C1"): [
        *[
            _conv(rf"x has rank {rank}, expected \(N, C, …\) with one to three spatial axes", f32(*[2] * rank))
            for rank in (2, 6)
        ],
        _conv("w has rank 3, x has rank 4", w=f32(4, 6, 3)),
    ],
    ("convolution_transposed", "C2"): [
        _conv(rf"{name} is {said}, expected 2 integers from 1 on", **{name: entries})
        for name in ("strides", "dilation")
        for entries, said in (((1,), r"\(1,\)"), ((1, 0), r"\(1, 0\)"), ((1, 1.0), r"\(1, 1\.0\)"))
    ],
    ("convolution_transposed", "C3"): [
        _conv(rf"{name} is {said}, expected 2 integers", **{name: entries})
        for name in ("low", "high")
        for entries, said in (((1,), r"\(1,\)"), ((1, 0.5), r"\(1, 0\.5\)"))
    ],
    ("convolution_transposed", "C4"): [
        _conv("groups is 0, expected 1 or more", groups=0),
        _conv("groups is 3, which doesn't divide the 4 channels of x", groups=3),
    ],
    ("convolution_transposed", "C5"): _conv("w has 6 kernels, x has 4 channels", w=f32(6, 4, 3, 3)),
    ("convolution_transposed", "C6"): _conv(r"the kernel is empty: w has shape \(4, 6, 0, 3\)", w=f32(4, 6, 0, 3)),
    ("convolution_transposed", "C7"): _conv(r"low \(4, 0\) and high \(4, 0\) leave \(-1, 8\) elements", low=(4, 0), high=(4, 0)),
}  # fmt: skip
EXACT = {
    "convolution_transposed": [
        ([f16(2, 4, 9), f16(4, 3, 2)], {"groups": 2, "strides": (2,), "low": (1,)}, [f16(2, 6, 17)]),
        ([f32(1, 3, 4, 5), f32(3, 2, 3, 3)], {"dilation": (1, 2), "high": (0, -1)}, [f32(1, 2, 6, 10)]),
    ]
}
