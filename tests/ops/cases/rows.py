from aicf.types import DType

from . import bf16, f16, f32

SOFTMAXES = ("softmax", "log_softmax", "logsumexp")


def _axes(*operands):
    """An axis beyond either end."""
    return [(list(operands), {"axis": axis}, rf"axis {axis} is not in \[-2, 2\)") for axis in (2, -3)] + [
        ([f32()] * len(operands), {}, r"axis -1 is not in \[-0, 0\)")
    ]


def _eps(op):
    return [([f32(4, 7)], {"eps": eps}, rf"eps is {eps}, expected a finite number >= 0")
            for eps in (-0.5, float("inf"), float("nan"))]  # fmt: skip


NEGATIVE = {
    **{(op, "C1"): _axes(f32(4, 7)) for op in SOFTMAXES},
    **{(f"{op}_grad", "C1"): _axes(f32(4, 7), f32(4, 7)) for op in SOFTMAXES[:2]},
    **{
        (f"{op}_grad", "C2"): ([f32(4, 1), f32(4, 7)], {}, r"dy has shape \(4, 1\), y has \(4, 7\)")
        for op in SOFTMAXES[:2]
    },
    ("layer_norm", "C1"): ([f32()], {}, "x has rank 0, expected 1 or more"),
    ("layer_norm", "C2"): ([f32(4, 7), f32(4)], {}, r"weight has shape \(4,\), expected \(7,\)"),
    ("layer_norm", "C3"): ([f32(4, 7), None, f32(1, 7)], {}, r"bias has shape \(1, 7\), expected \(7,\)"),
    ("layer_norm", "C4"): _eps("layer_norm"),
    ("layer_norm_grad", "C1"): (
        [f32(7), f32(4, 7), f32(4, 1), f32(4, 1)], {}, r"dy has shape \(7,\), x has \(4, 7\)",
    ),
    ("layer_norm_grad", "C2"): (
        [f32(4, 7), f32(4, 7), f32(4), f32(4, 1)], {}, r"mean has shape \(4,\), expected \(4, 1\)",
    ),
    ("layer_norm_grad", "C3"): (
        [f32(4, 7), f32(4, 7), f32(4, 1), f32(4, 7)], {}, r"rstd has shape \(4, 7\), expected \(4, 1\)",
    ),
    ("layer_norm_grad", "C4"): (
        [f32(4, 7), f32(4, 7), f32(4, 1), f32(4, 1), f32(4)], {}, r"weight has shape \(4,\), expected \(7,\)",
    ),
    ("layer_norm_grad", "C5"): ([f32(), f32(), f32(1), f32(1)], {}, "x has rank 0, expected 1 or more"),
    ("rms_norm", "C1"): ([f32()], {}, "x has rank 0, expected 1 or more"),
    ("rms_norm", "C2"): ([f32(4, 7), f32(4)], {}, r"weight has shape \(4,\), expected \(7,\)"),
    ("rms_norm", "C3"): _eps("rms_norm"),
    ("rms_norm_grad", "C1"): ([f32(7), f32(4, 7), f32(4, 1)], {}, r"dy has shape \(7,\), x has \(4, 7\)"),
    ("rms_norm_grad", "C2"): ([f32(4, 7), f32(4, 7), f32(4)], {}, r"rstd has shape \(4,\), expected \(4, 1\)"),
    ("rms_norm_grad", "C3"): (
        [f32(4, 7), f32(4, 7), f32(4, 1), f32(4)], {}, r"weight has shape \(4,\), expected \(7,\)",
    ),
    ("rms_norm_grad", "C4"): ([f32(), f32(), f32(1)], {}, "x has rank 0, expected 1 or more"),
    ("l2_normalize", "C1"): _axes(f32(4, 7)),
    ("l2_normalize", "C2"): _eps("l2_normalize"),
    ("l2_normalize_grad", "C1"): [
        ([f32(*shape)] * 3, {"axis": axis}, rf"axis {axis} is not in \[-{len(shape)}, {len(shape)}\)")
        for shape, axis in (((4, 7), 2), ((4, 7), -3), ((), -1))
    ],
    ("l2_normalize_grad", "C2"): (
        [f32(7), f32(4, 7), f32(4, 1)], {}, r"dy has shape \(7,\), x has \(4, 7\)",
    ),
    ("l2_normalize_grad", "C3"): (
        [f32(4, 7), f32(4, 7), f32(4, 1)], {"axis": 0}, r"rnorm has shape \(4, 1\), expected \(1, 7\)",
    ),
    ("l2_normalize_grad", "C4"): [
        ([f32(4, 7), f32(4, 7), f32(4, 1)], {"eps": eps}, rf"eps is {eps}, expected a finite number >= 0")
        for eps in (-0.5, float("inf"), float("nan"))
    ],
}  # fmt: skip

EXACT = {
    "softmax": ([bf16(2, 3, 5)], {"axis": 1}, [bf16(2, 3, 5)]),
    "softmax_grad": ([f16(4, 7), f16(4, 7)], {"axis": -2}, [f16(4, 7)]),
    "log_softmax": ([f32(4, 7)], {}, [f32(4, 7)]),
    "log_softmax_grad": ([bf16(4, 7), bf16(4, 7)], {"axis": 0}, [bf16(4, 7)]),
    "logsumexp": [([bf16(2, 3, 5)], {"axis": -2}, [bf16(2, 1, 5)]), ([f32(7)], {}, [f32(1)])],
    "layer_norm": [
        ([bf16(2, 3, 5), f32(5), bf16(5)], {"eps": 0.0}, [bf16(2, 3, 5), f32(2, 3, 1), f32(2, 3, 1)]),
        ([f32(7), None, f32(7)], {}, [f32(7), f32(1), f32(1)]),
    ],
    "layer_norm_grad": ([f16(4, 7), f16(4, 7), f32(4, 1), f32(4, 1), f32(7)], {}, [f16(4, 7)]),
    "rms_norm": [([f16(4, 7)], {}, [f16(4, 7), f32(4, 1)]), ([bf16(7), f32(7)], {}, [bf16(7), f32(1)])],
    "rms_norm_grad": ([bf16(4, 7), bf16(4, 7), f32(4, 1), None], {}, [bf16(4, 7)]),
    "l2_normalize": ([bf16(2, 3, 5)], {"axis": -2}, [bf16(2, 3, 5), f32(2, 1, 5)]),
    "l2_normalize_grad": ([f16(4, 7), f16(4, 7), f32(4, 1)], {}, [f16(4, 7)]),
    "number": ([], {"value": 1.5, "dtype": DType.bf16}, [bf16()]),
}  # fmt: skip
