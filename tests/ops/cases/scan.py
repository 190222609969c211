"""Ops with bodies."""

from aicf.ir import Subgraph
from aicf.ir.body import BodyOp
from aicf.ops.scan import drawn
from aicf.types import AttrPack

from . import f16, f32, i32

NEXT = drawn(3, lambda emit, before, x, same: [emit.add(emit.mul(before, same), x), before])
TWO = drawn(3, lambda emit, before, x, y: [emit.add(emit.mul(before, y), x)])
BOTH = drawn(2, lambda emit, one, other: [one, emit.reduce_sum(other, axes=(0,), keepdims=False)])
SUM = drawn(2, lambda emit, before, x: [emit.reduce_sum(x, axes=(0,), keepdims=False), x])
NOBODY_KNOWS = Subgraph(3, (BodyOp("unheard_of", AttrPack(), (0,), (3,)),), (3, 0))
EMPTY = drawn(1, lambda emit, x: [])


def steps(body=NEXT, carried=1, stacked=1, length=4, **more):
    return {"body": body, "carried": carried, "stacked": stacked, "length": length, **more}


THREE = [f32(2), f32(4, 2), f32(2)]

EXACT = {
    "scan": [
        (THREE, steps(), [f32(2), f32(4, 2)]),
        ([f32(), f32(0, 3)], steps(SUM, length=0, reverse=True), [f32(), f32(0, 3)]),
        ([f16(4, 3)], steps(drawn(1, lambda emit, x: [x, emit.tanh(x)]), 0, 1), [f16(4, 3), f16(4, 3)]),
    ]
}
NEGATIVE = {
    ("scan", "C1"): [
        (THREE, steps(length=-1), "length is -1"),
        (THREE, steps(carried=-1), "carried is -1"),
        (THREE, steps(stacked=-1), "stacked is -1"),
        (THREE, steps(carried=3), "3 carried and 1 stacked operands of 3"),
    ],
    ("scan", "C2"): (THREE[:2], steps(), "the body takes 3 operands and the op has 2"),
    ("scan", "C3"): [
        (THREE, steps(length=3), r"xs\[1\] has 4 rows along its first axis, of 3 steps"),
        (
            [f32(2), f32(4, 2), f32(3, 2)],
            steps(TWO, stacked=2),
            r"xs\[2\] has 3 rows along its first axis, of 4 steps",
        ),
        ([f32(), f32(), f32()], steps(), r"xs\[1\] has no rows along its first axis, of 4 steps"),
    ],
    ("scan", "C4"): [
        (
            [f32(2), f32(4, 3), f32(2)],
            steps(),
            r"in the body add C1: shapes do not broadcast: a \(2,\), b \(3,\); a: tensor<2xf32>; b: tensor<3xf32>",
        ),
        (THREE, steps(NOBODY_KNOWS), "in the body no op is called 'unheard_of'"),
        ([i32(2), f32(4, 2), i32(2)], steps(), r"in the body add types: b is f32 but a is i32; .*"),
    ],
    ("scan", "C5"): [
        (
            THREE,
            steps(carried=2, stacked=0, body=drawn(3, lambda emit, x, y, z: [x])),
            "the body returns 1 values, and 2 are carried",
        ),
        ([f32(4)], steps(EMPTY, 0, 1), "the body returns 0 values, and 0 are carried"),
    ],
    ("scan", "C6"): [
        ([f32(3), f32(4, 2)], steps(SUM), r"xs\[0\] is tensor<3xf32>, and the body makes tensor<f32> of it"),
        (
            [f32(3), f32(3)],
            steps(BOTH, carried=2, stacked=0),
            r"xs\[1\] is tensor<3xf32>, and the body makes tensor<f32> of it",
        ),
        ([f16(), f32(4, 2)], steps(SUM), r"xs\[0\] is tensor<f16>, and the body makes tensor<f32> of it"),
    ],
}
