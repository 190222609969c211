"""Turns that data count."""

from aicf.ops.scan import drawn

from . import boolean, f16, f32, i32

LESS = drawn(3, lambda emit, n, x, edge: [emit.less(n, edge)])
TURN = drawn(3, lambda emit, n, x, edge: [emit.add(n, n), emit.mul(x, n)])
FOUR = [f32(), f32(4, 2), f32()]


def turns(condition=LESS, body=TURN, carried=2):
    return {"condition": condition, "body": body, "carried": carried}


def returns(*results):
    return drawn(3, lambda emit, *xs: [xs[n] for n in results])


EXACT = {
    "while_loop": [
        (FOUR, turns(), [f32(), f32(4, 2)]),
        ([i32(), i32(0, 3), i32()], turns(), [i32(), i32(0, 3)]),
        ([f16(), boolean(), i32(5)], turns(returns(1), returns(0), 1), [f16()]),
    ]
}
NEGATIVE = {
    ("while_loop", "C1"): [
        (FOUR, turns(carried=0), "0 carried operands of 3"),
        (FOUR, turns(carried=4), "4 carried operands of 3"),
    ],
    ("while_loop", "C2"): [
        (FOUR[:2], turns(), "the condition takes 3 operands and the op has 2"),
        (FOUR, turns(body=drawn(2, lambda emit, x, y: [x, y])), "the body takes 2 operands and the op has 3"),
    ],
    ("while_loop", "C3"): [
        (
            [f32(2), f32(4, 3), f32(5)],
            turns(),
            r"in the condition less C1: shapes do not broadcast: a \(2,\), b \(5,\); .*",
        ),
        ([f32(2), f32(4, 3), f32(2)], turns(returns(0)), r"in the body mul C1: shapes do not broadcast: .*"),
    ],
    ("while_loop", "C4"): [
        ([f32(2), f32(2), f32(2)], turns(), r"the condition returns tensor<2xbool>"),
        (FOUR, turns(returns(0)), r"the condition returns tensor<f32>"),
        (FOUR, turns(returns()), "the condition returns nothing"),
        (
            [boolean(), f32(2), f32()],
            turns(returns(0, 0), returns(0, 1)),
            "the condition returns tensor<bool>, tensor<bool>",
        ),
    ],
    ("while_loop", "C5"): [
        (FOUR, turns(body=returns(0)), "the body returns 1 values, and 2 are carried"),
        (
            FOUR,
            turns(body=returns(1, 1)),
            r"xs\[0\] is tensor<f32>, and the body makes tensor<4x2xf32> of it",
        ),
        (
            FOUR,
            turns(body=returns(0, 2)),
            r"xs\[1\] is tensor<4x2xf32>, and the body makes tensor<f32> of it",
        ),
    ],
}
