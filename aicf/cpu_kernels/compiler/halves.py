"""f16, bf16 and fp8 as bits, for a host that computes with none: branch-free integer code that LLVM vectorises.

Rounding is to nearest, ties to even; NaN stays NaN. What is too large becomes infinite, in fp8 the greatest number.
"""

from __future__ import annotations

import numpy as np

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


def _float(bits):
    return np.uint32(bits).view(np.float32)


def _bits(x):
    return np.float32(x).view(np.uint32)


def widen_bf16(bits):
    return _float(_u(bits) << _SHIFT)


def narrow_bf16(x):
    bits = _bits(x)
    even = _u(bits + _HALF + _u(_u(bits >> _SHIFT) & _ONE))
    return np.uint16(_u(bits | _NAN_BIT if x != x else even) >> _SHIFT)


def widen_e5m2(bits):
    """The upper byte of an f16."""
    return widen_f16(_u(bits) << _u(8))


_E4M3_REBIAS = np.float32(2.0**120)  # biases of 127 and 7


def widen_e4m3(bits):
    sign, rest = _u(bits) & _u(0x80), _u(bits) & _u(0x7F)
    finite = _bits(_float(_u(rest << _u(20))) * _E4M3_REBIAS)
    whole = _u(0x7FC00000) if rest == _u(0x7F) else finite
    return _float(whole | _u(sign << _u(24)))


def widen_f16(bits):
    sign, rest = _u(bits) & _SIGN, _u(bits) & _REST
    shifted = _u(rest << _F16_SHIFT)
    finite = _bits(_float(shifted) * _REBIAS)
    whole = _u(shifted | _INFINITE) if rest >= _F16_INFINITE else finite
    return _float(whole | _u(sign << _SHIFT))


def narrow_f16(x):
    bits = _bits(x)
    sign, rest = _u(bits >> _SHIFT) & _SIGN, _u(bits & _u(0x7FFFFFFF))
    special = _F16_NAN if rest > _INFINITE else _F16_INFINITE
    tiny = _u(_bits(_float(rest) + _float(_MAGIC)) - _MAGIC)
    even = _u(_u(rest - _EXPONENTS + _F16_HALF + _u(_u(rest >> _F16_SHIFT) & _ONE)) >> _F16_SHIFT)
    whole = special if rest >= _F16_TOO_LARGE else tiny if rest < _F16_NORMAL else even
    return np.uint16(_u(whole | sign))


def _narrow_fp8(mantissa, bias, greatest, infinite):
    """Saturates; an infinity stays one in a type that has it, of the bits `infinite`, or becomes the greatest number."""
    shift, most = _u(23 - mantissa), _u(np.float32(greatest).view(np.uint32))
    half, exponents, normal = _u((1 << (22 - mantissa)) - 1), _u((127 - bias) << 23), _u((128 - bias) << 23)
    magic = _u((127 - bias + 23 - mantissa + 1) << 23)  # as for f16
    endless = _u(infinite)

    def narrow(x):
        bits = _bits(x)
        rest = _u(bits & _u(0x7FFFFFFF))
        bounded = min(rest, most)
        tiny = _u(_bits(_float(bounded) + _float(magic)) - magic)
        even = _u(_u(bounded - exponents + half + _u(_u(bounded >> shift) & _ONE)) >> shift)
        finite = tiny if bounded < normal else even
        whole = _u(0x7F) if rest > _INFINITE else endless if rest == _INFINITE else finite
        return np.uint8(_u(whole | _u(_u(bits >> _u(24)) & _u(0x80))))

    return narrow


narrow_e4m3 = _narrow_fp8(3, 7, 448.0, 0x7E)
narrow_e5m2 = _narrow_fp8(2, 15, 57344.0, 0x7C)
