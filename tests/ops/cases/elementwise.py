"""Activations, arithmetic, conversion."""

import numpy as np

from . import f32


def away_from_zero(rng, shape, shapes):
    return rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)


VALUES = {
    ("div", "b"): away_from_zero,
    ("log", "x"): (0.1, 3),
    ("sqrt", "x"): (0.1, 3),
    ("relu_grad", "y"): lambda rng, shape, shapes: np.maximum(rng.normal(size=shape), 0),
    ("sigmoid_grad", "y"): (0, 1),
    ("tanh_grad", "y"): (-1, 1),
}

NEGATIVE = {
    ("convert", "C1"): (
        [f32(2)], {"dtype": 9},
        r"dtype is 9, expected 1 \(f32\), 2 \(f16\), 3 \(bf16\), 4 \(i32\), 5 \(i64\), 6 \(bool\)",
    ),
}  # fmt: skip
