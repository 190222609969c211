"""What may make a jump of a rounding error is found in scalar functions, whatever it is written with (A15)."""

from __future__ import annotations

import math
from math import exp as power_of_e
from math import floor as down

import numpy as np
import pytest
import rounding_points

from aicf.ops.continuity import is_continuous, why_not
from aicf.ops.schema import DISCONTINUOUS, schemas

HALF, TABLE = 0.5, (1.0, 2.0)


def above(x):
    return 1.0 if x > HALF else 0.0


def twice_above(x):
    return above(x) + above(x)


def smooth(x, y):
    return x * math.tanh(y) + HALF


def steep(x):
    return smooth(x, x) / math.exp(-x)


def stepped(cut):
    return lambda x: cut(x) + 1.0


def recursive(x):
    return recursive(x) + x


def loop(x):
    for _ in range(3):
        x = x + x
    return x


def deferred(x):
    cut = math.floor
    return cut(x)


def given(x, cut=math.floor):
    return cut(x)


def unknown(x):
    return not_there(x)  # noqa: F821


JUMPS = {
    "compare": lambda x: x * (x > 0.0), "equal": lambda x: x == 1.0, "is": lambda x: x is None, "in": lambda x: x in TABLE,
    "conditional": lambda x, c: x if c else -x, "truth": lambda x: 1.0 if x else 0.0, "not": lambda x: not x,
    "and": lambda x, y: x and y, "or": lambda x, y: x or y, "bool": lambda x: float(bool(x)),
    "floor": lambda x: math.floor(x), "ceil": lambda x: math.ceil(x), "trunc": lambda x: math.trunc(x), "round": lambda x: round(x),
    "round to": lambda x: round(x, 2), "int": lambda x: x - int(x), "%": lambda x: x % 1.0, "//": lambda x: x // 2.0,
    "divmod": lambda x: divmod(x, 1.0)[0], "fmod": lambda x: math.fmod(x, 1.0), "remainder": lambda x: math.remainder(x, 1.0),
    "modf": lambda x: math.modf(x)[0], "copysign": lambda x: math.copysign(1.0, x), "isnan": lambda x: math.isnan(x),
    "atan2": lambda x, y: math.atan2(x, y), "shift": lambda x: x >> 1, "bits": lambda x: x & 1, "invert": lambda x: ~x,
    "np.floor": lambda x: np.floor(x), "np.int32": lambda x: np.int32(x) + 1, "np.sign": lambda x: np.sign(x),
    "from math": lambda x: down(x) + 0.5, "aliased": deferred, "default": given, "table": lambda x: TABLE[0] * x,
    "helper": lambda x: x + above(x), "helper of a helper": lambda x: twice_above(x), "closure": stepped(math.floor),
    "closure of a helper": stepped(above), "attribute": lambda x: x.real, "unknown": unknown, "loop": loop,
    "lambda": lambda x: (lambda y: y > x)(x), "import": lambda x: __import__("math").floor(x), "subclass": lambda x: str(x),
}  # fmt: skip
CONTINUOUS = {
    "arithmetic": lambda x, y: -x * y + x / y - 2.0 ** x, "math": lambda x: math.exp(x) + math.erf(x) * math.sqrt(math.pi),
    "from math": lambda x: power_of_e(x), "numpy": lambda x: np.tanh(x) * np.float32(2), "helper": lambda x, y: smooth(x, y),
    "helper of a helper": steep, "closure": stepped(math.tanh), "float": lambda x: float(x) * HALF, "min and max": lambda x: min(max(x, -1.0), 1.0),
    "abs": lambda x: abs(x) + math.fabs(x), "several": lambda x, y: (x + y, x * y), "pow": lambda x: math.pow(x, 2.0) + pow(x, 3),
    "recursive": recursive,
}  # fmt: skip


@pytest.mark.spec("A15")
@pytest.mark.parametrize("kind", JUMPS)
def test_a_jump_is_found(kind):
    assert not is_continuous(JUMPS[kind]) and why_not(JUMPS[kind])


@pytest.mark.spec("A15")
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_what_is_continuous_is_known_to_be(kind):
    assert why_not(CONTINUOUS[kind]) is None and is_continuous(CONTINUOUS[kind])


@pytest.mark.spec("A15")
def test_of_aicfs_own_ops_just_these_may_jump():
    found = {s.name for s in schemas() if DISCONTINUOUS in s.traits and s.origin == "aicf"}
    assert found == rounding_points.JUMPS


def test_what_has_no_bytecode_may_jump():
    assert not is_continuous(math.floor) and not is_continuous(print)
