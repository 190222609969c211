"""exp, exp2, log, tanh, erf and erfc of f32 as straight-line code that LLVM vectorises; the rest of `math` as it is.

libm's functions are calls, one element each, tens of times slower. These compute in f64, where a short series is exact to
f32's last digit and 2^n neither overflows nor becomes subnormal, and round once at the end.
"""

from __future__ import annotations

import numpy as np

from .wide_math import *  # noqa: F403

_LOG2_E, _LN_2 = 1.4426950408889634, 0.6931471805599453
_ROUND = 6755399441055744.0  # 1.5 * 2^52: what is added to it loses its fraction, and its integer is in the low bits
_BIAS, _FRACTION_BITS = np.int64(1023), np.int64(52)
_ONE_BITS, _ROOT_HALF_BITS = np.int64(0x3FF0000000000000), np.int64(0x3FE6A09E667F3BCD)
_FRACTION = np.int64(0x000FFFFFFFFFFFFF)


def _split(x):
    """(s, p): e^x is s * (1 + p), s a power of 2. x is an f64 of at most 700; p has f32's precision twice over."""
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = x - n * _LN_2
    p = 1.0 / 40320 * r + 1.0 / 5040
    p = p * r + 1.0 / 720
    p = p * r + 1.0 / 120
    p = p * r + 1.0 / 24
    p = p * r + 1.0 / 6
    p = p * r + 0.5
    p = p * r * r + r
    exponent = np.float64(shifted).view(np.int64) + _BIAS
    return np.int64(exponent << _FRACTION_BITS).view(np.float64), p


def exp(x):
    wide = np.float64(x)
    near = wide if abs(wide) < 150.0 else 150.0 if wide > 0.0 else -150.0  # beyond, f32 has only inf and 0
    s, p = _split(near)
    return np.float32(wide if wide != wide else s + s * p)


def exp2(x):
    wide = np.float64(x)
    near = wide if abs(wide) < 200.0 else 200.0 if wide > 0.0 else -200.0
    s, p = _split(near * _LN_2)
    return np.float32(wide if wide != wide else s + s * p)


def tanh(x):
    wide = np.float64(x)
    near = abs(wide) if abs(wide) < 20.0 else 20.0  # beyond, f32 has only 1
    s, p = _split(near + near)
    grown = s * p + (s - 1.0)  # e^2|x| - 1, as precise as x where x is small
    t = grown / (grown + 2.0)
    return np.float32(wide if wide != wide else -t if wide < 0.0 else t if wide > 0.0 else wide)


def log(x):
    wide = np.float64(x)
    bits = np.float64(wide).view(np.int64) - _ROOT_HALF_BITS
    n = np.float64(bits >> _FRACTION_BITS)
    f = (
        np.int64((bits & _FRACTION) + _ROOT_HALF_BITS).view(np.float64) - 1.0
    )  # from sqrt(1/2) - 1 to sqrt(2) - 1
    s = f / (f + 2.0)
    z = s * s
    p = 2.0 / 13 * z + 2.0 / 11
    p = p * z + 2.0 / 9
    p = p * z + 2.0 / 7
    p = p * z + 2.0 / 5
    p = p * z + 2.0 / 3
    finite = n * _LN_2 + (p * z * s + 2.0 * s)
    special = -np.inf if wide == 0.0 else wide if wide > 0.0 else np.nan
    return np.float32(finite if 0.0 < wide < np.inf else special)


def erf(x):
    """x * P(x^2) / Q(x^2), fitted to 3e-9 of erf."""
    wide = np.float64(x)
    near = wide if abs(wide) < 4.0 else 4.0 if wide > 0.0 else -4.0  # beyond, f32 has only 1 and -1
    z = near * near
    p = 6.791340327875414e-06 * z + 0.0004112774916241412
    p = p * z + 0.004226493029519573
    p = p * z + 0.055749549090156454
    p = p * z + 0.1928788789234363
    p = p * z + 1.1283791699699999
    q = 2.6048429187843523e-07 * z + 7.256372956019656e-05
    q = q * z + 0.0014212071515334248
    q = q * z + 0.01629514510520469
    q = q * z + 0.11749539950061232
    q = q * z + 0.5042678896811528
    q = q * z + 1.0
    return np.float32(wide if wide != wide else near * p / q)


def erfc(x):
    """e^(-x^2) times a polynomial in (|x| - 3.1) / (|x| + 3.1), fitted to 2e-9 of erfc."""
    wide = np.float64(x)
    near = abs(wide) if abs(wide) < 10.5 else 10.5  # beyond, f32 has only 0 and 2
    t = (near - 3.1) / (near + 3.1)
    p = 6.50395425797079e-05 * t + 0.00012349595118524555
    p = p * t - 0.0006485740478923799
    p = p * t + 0.0001006907390497453
    p = p * t + 0.006499669987720093
    p = p * t - 0.028739519581821717
    p = p * t + 0.07695070349330821
    p = p * t - 0.15326007782053913
    p = p * t + 0.24342413242561092
    p = p * t - 0.3182152088916316
    p = p * t + 0.17371840831463048
    s, e = _split(-near * near)
    small = (s + s * e) * p
    return np.float32(wide if wide != wide else 2.0 - small if wide < 0.0 else small)
