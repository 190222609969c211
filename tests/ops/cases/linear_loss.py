from . import bf16, f16, f32, i32, i64


def _gradient(operands):
    """linear_cross_entropy_grad's operands beside those of linear_cross_entropy, of shapes that would be right."""
    x, weight, labels = operands
    return [f32(*labels.shape), x, weight, labels, f32(*labels.shape)]


X, W, L = f32(4, 5), f32(7, 5), i64(4)
_SHARED = {
    "C1": [([f32(), W, i64()], {}, r"x has rank 0, expected 1 or more")],
    "C2": [([X, f32(5), L], {}, r"weight has rank 1, expected 2: \(classes, K\)")],
    "C3": [([X, f32(5, 7), L], {}, r"rows of weight have length 7, those of x 5")],
    "C4": [([X, W, i64(4, 5)], {}, r"labels have shape \(4, 5\), expected \(4,\), one per row")],
    "C5": [
        ([X, W, L], {"label_smoothing": s}, rf"label_smoothing is {s}, expected 0 to 1")
        for s in (-0.5, 1.5, float("nan"))
    ],
    "C6": [
        ([X, W, L], {"z_loss": z}, rf"z_loss is {z}, expected a finite number, 0 or more")
        for z in (-0.1, float("inf"), float("nan"))
    ],
}
NEGATIVE = {
    **{("linear_cross_entropy", c): cases for c, cases in _SHARED.items()},
    **{
        ("linear_cross_entropy_grad", c): [(_gradient(operands), attrs, said) for operands, attrs, said in cases]
        for c, cases in _SHARED.items()
    },
    ("linear_cross_entropy_grad", "C7"): [
        (
            [f32(*[4] * (n != "dloss")), X, W, L, f32(*[4] * (n != "lse"))], {},
            rf"{n} has shape \(\), expected \(4,\)",
        )
        for n in ("dloss", "lse")
    ],
}  # fmt: skip

EXACT = {
    "linear_cross_entropy": [
        ([X, W, L], {}, [f32(4)] * 2),
        ([f16(2, 3, 5), f16(7, 5), i32(2, 3)], {"z_loss": 1e-4}, [f32(2, 3)] * 2),
        ([bf16(5), bf16(0, 5), i64()], {"label_smoothing": 1.0}, [f32()] * 2),
    ],
    "linear_cross_entropy_grad": [
        (_gradient([X, W, L]), {}, [X, W]),
        (_gradient([bf16(2, 3, 5), bf16(7, 5), i32(2, 3)]), {"ignore_index": 0}, [bf16(2, 3, 5), bf16(7, 5)]),
    ],
}
