from . import bf16, boolean, f16, f32, i32


def _gradient(operands):
    """attention_grad's operands beside those of attention, of shapes that would be right."""
    q, k, v, *mask = operands
    out = f32(*q.shape[:-1], *v.shape[-1:])
    return [out, q, k, v, out, f32(*q.shape[:-1]), *mask]


Q = f32(2, 4, 3, 8)
K = f32(2, 2, 5, 8)
V = f32(2, 2, 5, 6)
_SHARED = {
    "C1": [([f32(3, 8)] * 3, {}, r"q has rank 2, expected 3 or more: \(\.\.\., heads, queries, d\)")],
    "C2": [
        ([Q, f32(2, 5, 8), V], {}, r"k has rank 3, q has 4"),
        ([Q, K, f32(2, 5, 6)], {}, r"v has rank 3, q has 4"),
    ],
    "C3": [
        ([Q, f32(1, 2, 5, 8), V], {}, r"the batch of k is \(1,\), of q \(2,\)"),
        ([Q, K, f32(3, 2, 5, 6)], {}, r"the batch of v is \(3,\), of q \(2,\)"),
    ],
    "C4": [([Q, f32(2, 2, 5, 7), V], {}, r"rows of k have length 7, those of q 8")],
    "C5": [
        ([Q, K, f32(2, 1, 5, 6)], {}, r"v has 1 heads of 5 keys, k has 2 of 5"),
        ([Q, K, f32(2, 2, 6, 6)], {}, r"v has 2 heads of 6 keys, k has 2 of 5"),
    ],
    "C6": [
        ([Q, f32(2, 3, 5, 8), f32(2, 3, 5, 6)], {}, r"q has 4 heads, expected a multiple of the 3 of k"),
        ([Q, f32(2, 0, 5, 8), f32(2, 0, 5, 6)], {}, r"q has 4 heads, expected a multiple of the 0 of k"),
    ],
    "C7": [
        ([Q, K, V, boolean(*shape)], {}, rf"mask has shape {told}, which does not broadcast to \(2, 4, 3, 5\)")
        for shape, told in [((2, 2, 3, 5), r"\(2, 2, 3, 5\)"), ((1, 2, 4, 3, 5), r"\(1, 2, 4, 3, 5\)"), ((5, 3), r"\(5, 3\)")]
    ],
    "C8": [([Q, K, V], {"scale": s}, rf"scale is {s}, expected a finite number") for s in map(float, ("nan", "inf"))],
    "C9": [([Q, K, V], {"window": -1}, r"window is -1, expected 0 or more")],
    "C10": [
        ([Q, K, V], {"softcap": c}, rf"softcap is {c}, expected a finite number, 0 or more")
        for c in (-1.0, float("inf"), float("nan"))
    ],
}  # fmt: skip


def _of_bias(operands):
    """attention_bias_grad's: of a bias for every score, behind attention_grad's first six."""
    q, k, v, *others = operands
    return [*_gradient([q, k, v]), f32(q.shape[-2], k.shape[-2]), *others]


_LENGTHS = [([Q, K, V, None, i32(3)], {}, r"lengths has shape \(3,\), expected that of q's batch, \(2,\)")]
_BIASES = [
    ([Q, K, V, None, None, f32(2, 2, 3, 5)], {}, r"bias has shape \(2, 2, 3, 5\), which does not broadcast to \(2, 4, 3, 5\)"),
    ([Q, K, V, None, None, f32(5, 3)], {}, r"bias has shape \(5, 3\), which does not broadcast to \(2, 4, 3, 5\)"),
]  # fmt: skip
_LATE = {
    "C11": [
        (
            [f32(2, 4, 3, 6 + (n == "dout")), Q, K, V, f32(2, 4, 3, 6 + (n == "out")), f32(2, 4, 3)], {},
            rf"{n} has shape \(2, 4, 3, 7\), expected \(2, 4, 3, 6\)",
        )
        for n in ("dout", "out")
    ],
    "C12": [
        ([f32(2, 4, 3, 6), Q, K, V, f32(2, 4, 3, 6), f32(2, 4, 3, 1)], {}, r"lse has shape \(2, 4, 3, 1\), expected \(2, 4, 3\)")
    ],
}  # fmt: skip
NEGATIVE = {
    ("attention", "C11"): _LENGTHS,
    ("attention", "C12"): _BIASES,
    ("attention_grad", "C14"): [(_gradient(operands), attrs, said) for operands, attrs, said in _BIASES],
    **{("attention_grad", c): cases for c, cases in _LATE.items()},
    **{
        ("attention_bias_grad", c): [([*operands, f32(3, 5)], attrs, said) for operands, attrs, said in cases]
        for c, cases in _LATE.items()
    },
    **{
        ("attention_bias_grad", c): [(_of_bias(operands), attrs, said) for operands, attrs, said in cases]
        for c, cases in (_SHARED | {"C13": _LENGTHS}).items()
    },
    ("attention_bias_grad", "C14"): [
        ([*_gradient([Q, K, V]), operands[-1]], attrs, said) for operands, attrs, said in _BIASES
    ],
    ("attention_bias_grad", "C15"): [
        ([*_gradient([Q, K, V]), bias], {}, rf"bias has shape {told}, expected \(\.\.\., 3, 5\)")
        for bias, told in ((f32(4, 1, 5), r"\(4, 1, 5\)"), (f32(5), r"\(5,\)"))
    ],
    ("attention_grad", "C13"): [(_gradient(operands), attrs, said) for operands, attrs, said in _LENGTHS],
    **{("attention", c): cases for c, cases in _SHARED.items()},
    **{
        ("attention_grad", c): [(_gradient(operands), attrs, said) for operands, attrs, said in cases]
        for c, cases in _SHARED.items()
    },
}  # fmt: skip

EXACT = {
    "attention_bias_grad": [
        ([*_gradient([Q, K, V]), x, None, i32(2)], {"causal": True, "scale": 0.5}, [x])
        for x in (f32(3, 5), bf16(4, 3, 5), f16(2, 1, 3, 5))
    ],
    "attention": [
        ([bf16(4, 3, 8), bf16(2, 5, 8), bf16(2, 5, 8), None, None, f32(4, 1, 5)], {}, [bf16(4, 3, 8), f32(4, 3)]),
        ([Q, K, V], {}, [f32(2, 4, 3, 6), f32(2, 4, 3)]),
        ([Q, K, V, None, i32(2)], {}, [f32(2, 4, 3, 6), f32(2, 4, 3)]),
        ([f16(4, 0, 8), f16(1, 5, 8), f16(1, 5, 8), boolean(5)], {"scale": 2.0}, [f16(4, 0, 8), f32(4, 0)]),
        ([bf16(0, 3, 8), bf16(0, 5, 8), bf16(0, 5, 2)], {"softcap": 30.0, "window": 2}, [bf16(0, 3, 2), f32(0, 3)]),
    ],
    "attention_grad": [
        (_gradient([Q, K, V, boolean(2, 1, 1, 5)]), {"causal": True, "scale": 0.0}, [Q, K, V]),
        (_gradient([Q, K, V, None, i32(2)]), {"causal": True}, [Q, K, V]),
        (
            [f16(4, 3, 2), f16(4, 3, 8), f16(1, 5, 8), f16(1, 5, 2), f16(4, 3, 2), f32(4, 3)], {},
            [f16(4, 3, 8), f16(1, 5, 8), f16(1, 5, 2)],
        ),
    ],
}  # fmt: skip
