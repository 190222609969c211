from . import bf16, f16, f32


def _axes(*operands):
    return [(list(operands), {"axis": axis}, rf"axis {axis} is not in \[-2, 2\)") for axis in (2, -3)] + [
        ([f32(), *operands[1:]], {"axis": 0}, r"axis 0 is not in \[-0, 0\)")
    ]


def _affine(message, **given):
    vectors = {"centre": f32(3), "scale": f32(3), "bias": f32(3)} | given
    return [f32(2, 3, 4), *vectors.values()], {}, message


NEGATIVE = {
    ("moments", "C1"): _axes(f32(4, 7)),
    ("channel_affine", "C1"): _axes(f32(4, 7), f32(7), f32(7), f32(7)),
    **{
        ("channel_affine", constraint): [
            _affine(rf"{name} has shape \(4,\), expected \(3,\)", **{name: f32(4)}),
            _affine(rf"{name} has shape \(3, 1\), expected \(3,\)", **{name: f32(3, 1)}),
        ]
        for constraint, name in (("C2", "centre"), ("C3", "scale"), ("C4", "bias"))
    },
}
EXACT = {
    "stop_gradient": ([f16(2, 3)], {}, [f16(2, 3)]),
    "moments": [
        ([f16(2, 3, 5)], {}, [f32(3), f32(3)]),
        ([f32(2, 3, 5)], {"axis": -1}, [f32(5), f32(5)]),
        ([f32(0, 3)], {}, [f32(3), f32(3)]),
    ],
    "channel_affine": ([bf16(2, 5, 5, 3), f32(3), f32(3), f32(3)], {"axis": -1}, [bf16(2, 5, 5, 3)]),
}
