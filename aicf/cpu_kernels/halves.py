"""f16 and bf16 as bits, for a host that computes with neither: branch-free integer code that LLVM vectorises.

Rounding is to nearest, ties to even; NaN stays NaN, and what is too large becomes infinite.
"""

from __future__ import annotations

import numba
import numpy as np

_jit = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
_u = np.uint32
_INFINITE, _NAN_BIT = _u(0x7F800000), _u(0x00400000)
_SIGN, _REST = _u(0x8000), _u(0x7FFF)
_SHIFT, _HALF, _ONE = _u(16), _u(0x7FFF), _u(1)
_F16_INFINITE, _F16_NAN, _F16_SHIFT, _F16_HALF = _u(0x7C00), _u(0x7E00), _u(13), _u(0xFFF)
_REBIAS = np.float32(2.0**112)  # between the exponents' biases, 127 and 15
_F16_TOO_LARGE, _F16_NORMAL = _u((127 + 16) << 23), _u((127 - 14) << 23)
_EXPONENTS = _u((127 - 15) << 23)
_MAGIC = _u(
    (127 - 15 + 23 - 10 + 1) << 23
)  # adding it as a float leaves a subnormal's digits at the right end


@_jit
def _float(bits):
    return np.uint32(bits).view(np.float32)


@_jit
def _bits(x):
    return np.float32(x).view(np.uint32)


@_jit
def widen_bf16(bits):
    return _float(_u(bits) << _SHIFT)


@_jit
def narrow_bf16(x):
    bits = _bits(x)
    even = _u(bits + _HALF + _u(_u(bits >> _SHIFT) & _ONE))
    return np.uint16(_u(bits | _NAN_BIT if x != x else even) >> _SHIFT)


@_jit
def widen_f16(bits):
    sign, rest = _u(bits) & _SIGN, _u(bits) & _REST
    shifted = _u(rest << _F16_SHIFT)
    finite = _bits(_float(shifted) * _REBIAS)
    whole = _u(shifted | _INFINITE) if rest >= _F16_INFINITE else finite
    return _float(whole | _u(sign << _SHIFT))


@_jit
def narrow_f16(x):
    bits = _bits(x)
    sign, rest = _u(bits >> _SHIFT) & _SIGN, _u(bits & _u(0x7FFFFFFF))
    special = _F16_NAN if rest > _INFINITE else _F16_INFINITE
    tiny = _u(_bits(_float(rest) + _float(_MAGIC)) - _MAGIC)
    even = _u(_u(rest - _EXPONENTS + _F16_HALF + _u(_u(rest >> _F16_SHIFT) & _ONE)) >> _F16_SHIFT)
    whole = special if rest >= _F16_TOO_LARGE else tiny if rest < _F16_NORMAL else even
    return np.uint16(_u(whole | sign))
