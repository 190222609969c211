import math

from aicf.types import DType

from . import boolean, f16, f32, i32, i64

OF_A_SHAPE = "random_bits", "random_uniform", "random_normal", "random_truncated_normal", "random_integers"
_MORE = {"random_integers": {"high": 3}}
_LAYER = r"layer is {}, expected 0 to 2\^32 - 1"
_STATE = r"rng has shape \(3,\), expected \(2,\): a key and a step"


def _layers(operands, attrs):
    return [(operands, {**attrs, "layer": n}, _LAYER.format(n)) for n in (-1, 2**32)]


NEGATIVE = {
    **{(op, "C1"): ([i64(3)], {"shape": (4,), **_MORE.get(op, {})}, _STATE) for op in OF_A_SHAPE},
    **{
        (op, "C2"): ([i64(2)], {"shape": (4, -1), **_MORE.get(op, {})}, r"shape is \(4, -1\), expected sizes from 0 on")
        for op in OF_A_SHAPE
    },
    **{(op, "C3"): _layers([i64(2)], {"shape": (4,), **_MORE.get(op, {})}) for op in OF_A_SHAPE},
    ("random_uniform", "C4"): [
        ([i64(2)], {"shape": (4,), "low": low, "high": high}, rf"low is {low}, high is {high}, expected finite numbers, low <= high")
        for low, high in ((1.0, 0.5), (math.inf, math.inf), (0.0, math.inf), (-math.inf, 0.0), (math.nan, 1.0), (0.0, math.nan))
    ],
    **{
        (op, "C4"): [
            ([i64(2)], {"shape": (4,), "mean": mean, "std": std}, rf"mean is {mean}, std is {std}, expected finite numbers, std >= 0")
            for mean, std in ((0.0, -1.0), (math.nan, 1.0), (0.0, math.inf), (0.0, math.nan))
        ]
        for op in ("random_normal", "random_truncated_normal")
    },
    **{
        (op, "C5"): ([i64(2)], {"shape": (4,), "dtype": DType.i32}, "dtype is i32, expected f32, f16 or bf16")
        for op in ("random_uniform", "random_normal", "random_truncated_normal")
    },
    ("random_truncated_normal", "C6"): [
        ([i64(2)], {"shape": (4,), "low": low, "high": high}, rf"low is {low}, high is {high}: nothing lies between them")
        for low, high in ((1.0, 1.0), (2.0, 1.0), (9.0, 10.0), (math.nan, 1.0))
    ],
    ("random_integers", "C4"): [
        ([i64(2)], {"shape": (4,), "low": low, "high": high}, rf"low is {low}, high is {high}, expected high - low from 1 to 2\^31")
        for low, high in ((3, 3), (0, 2**31 + 1))
    ],
    ("random_integers", "C5"): [
        ([i64(2)], {"shape": (4,), "high": 3, "dtype": DType.f32}, "dtype is f32, expected an integer type"),
        ([i64(2)], {"shape": (4,), "high": 129, "dtype": DType.i8}, "low is 0, high is 129, beyond i8, which has -128 to 127"),
        ([i64(2)], {"shape": (4,), "low": -1, "high": 3, "dtype": DType.u8}, "low is -1, high is 3, beyond u8, which has 0 to 255"),
    ],
    ("random_bernoulli", "C1"): ([f32(4), i64(3)], {}, _STATE),
    ("random_bernoulli", "C2"): _layers([f32(4), i64(2)], {}),
    ("random_categorical", "C1"): [
        ([f32(4, 7), i64(2)], {"axis": n}, rf"axis {n} is not in \[-2, 2\)") for n in (2, -3)
    ],
    ("random_categorical", "C2"): ([f32(4, 7), i64(3)], {}, _STATE),
    ("random_categorical", "C3"): _layers([f32(4, 7), i64(2)], {}),
    ("random_categorical", "C4"): ([f32(4, 0), i64(2)], {}, r"axis -?1 of \(4, 0\) has no element"),
    ("random_permutation", "C1"): ([i64(3)], {"size": 4}, _STATE),
    ("random_permutation", "C2"): [
        ([i64(2)], {"size": n}, rf"size is {n}, expected 0 to 2\^31 - 1") for n in (-1, 2**31)
    ],
    ("random_permutation", "C3"): _layers([i64(2)], {"size": 4}),
    ("random_permutation", "C4"): ([i64(2)], {"size": 4, "dtype": DType.f32}, "dtype is f32, expected i32 or i64"),
}  # fmt: skip

EXACT = {
    "random_bits": [([i64(2)], {"shape": (4, 7)}, [i32(4, 7)]), ([i64(2)], {"shape": ()}, [i32()])],
    "random_uniform": ([i64(2)], {"shape": (4,), "dtype": DType.f16}, [f16(4)]),
    "random_normal": ([i64(2)], {"shape": (4,)}, [f32(4)]),
    "random_truncated_normal": ([i64(2)], {"shape": (4,)}, [f32(4)]),
    "random_integers": ([i64(2)], {"shape": (4,), "high": 2**31, "dtype": DType.i64}, [i64(4)]),
    "random_bernoulli": [
        ([f16(4, 7), i64(2)], {}, [f16(4, 7)]), ([f32(4), i64(2)], {"dtype": DType.bool}, [boolean(4)]),
    ],
    "random_categorical": ([f16(2, 3, 5), i64(2)], {"axis": 1}, [i64(2, 5)]),
    "random_permutation": ([i64(2)], {"size": 9, "dtype": DType.i32}, [i32(9)]),
}  # fmt: skip
