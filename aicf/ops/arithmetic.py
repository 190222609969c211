"""Elementwise arithmetic, comparison, selection and conversion. Operands broadcast; their types never promote.

Integers wrap on overflow. Floats follow IEEE 754: a division by zero is an infinity or a NaN, never an error.
"""

from __future__ import annotations

import math

import numpy as np

from ..types import BASIC, DType, fewer_bits, fewer_bits_unsigned, odd_f32, rounded
from .schema import LINEAR, Any_, AnyOwn, Bool, Number, Real, elementwise, refuse_gradient


def unbroadcast(emit, g, like):
    """Sum g, a gradient of the broadcast shape, down to the shape of the operand `like`."""
    lead = g.rank - like.rank
    stretched = tuple(lead + i for i, d in enumerate(like.shape) if d == 1 and g.shape[lead + i] != 1)
    if lead == 0:
        return emit.reduce_sum(g, axes=stretched, keepdims=True) if stretched else g
    g = emit.reduce_sum(g, axes=(*range(lead), *stretched), keepdims=False)
    return emit.reshape(g, shape=like.shape) if stretched else g


def _enrol_binary(schema):
    schema.samples((4, 7), (4, 7))
    schema.samples((4, 7), (7,))
    schema.samples((4, 1), (3, 1, 7))
    schema.samples((), (5,))
    schema.samples((0, 3), (1, 3))
    schema.samples((1025,), (1025,))


def _enrol_unary(schema, **attrs):
    for shape in [(4, 7), (2, 3, 5), (0, 3), (), (1025,)]:
        schema.samples(shape, **attrs)


# --- binary -------------------------------------------------------------------------------------------------


@elementwise("add", types=Number, alias="a", traits=(LINEAR,))
def add(a, b):
    """a + b."""
    return a + b


add.reference(np.add)


@add.gradient
def _(emit, dy, a, b):
    return unbroadcast(emit, dy, a), unbroadcast(emit, dy, b)


@elementwise("sub", types=Number, alias="a", traits=(LINEAR,))
def sub(a, b):
    """a - b."""
    return a - b


sub.reference(np.subtract)


@sub.gradient
def _(emit, dy, a, b):
    return unbroadcast(emit, dy, a), unbroadcast(emit, emit.neg(dy), b)


@elementwise("mul", types=Number, alias="a")
def mul(a, b):
    """a * b."""
    return a * b


mul.reference(np.multiply)


@mul.gradient
def _(emit, dy, a, b):
    return unbroadcast(emit, emit.mul(dy, b), a), unbroadcast(emit, emit.mul(dy, a), b)


@elementwise("div", types=Real, alias="a")
def div(a, b):
    """a / b."""
    return a / b


div.reference(np.divide)


@div.gradient
def _(emit, dy, a, b, y):
    da = emit.div(dy, b)
    return unbroadcast(emit, da, a), unbroadcast(emit, emit.neg(emit.mul(da, y)), b)


@elementwise("power", types=Real, alias="a", continuous=True)
def power(a, b):
    """a to the power b; NaN where a is negative and b is no whole number. x to the power 0 is 1, NaN's too."""
    return math.pow(a, b)


power.reference(np.power)


@power.gradient
def _(emit, dy, a, b, y):
    """Of b at a = 0 it is 0, as log(a) has none there. Of a at b = 0 it is 0 as well, where a is 0 too: a ** 0 is 1 everywhere."""
    da = emit.select(emit.equal(b, 0), 0, emit.mul(emit.mul(dy, b), emit.power(a, emit.sub(b, 1))))
    db = emit.select(emit.equal(a, 0), 0, emit.mul(emit.mul(dy, y), emit.log(a)))
    return unbroadcast(emit, da, a), unbroadcast(emit, db, b)


@elementwise("maximum", types=Number, alias="a", continuous=True)
def maximum(a, b):
    """The greater of a and b; NaN if either is NaN. Where they are equal the gradient goes half to each."""
    return a if a >= b or a != a else b


maximum.reference(np.maximum)


@maximum.gradient
def _(emit, dy, a, b):
    return _larger_gradient(emit, dy, a, b, emit.greater)


@elementwise("minimum", types=Number, alias="a", continuous=True)
def minimum(a, b):
    """The less of a and b; NaN if either is NaN. Where they are equal the gradient goes half to each."""
    return a if a <= b or a != a else b


minimum.reference(np.minimum)


@minimum.gradient
def _(emit, dy, a, b):
    return _larger_gradient(emit, dy, a, b, emit.less)


def _larger_gradient(emit, dy, a, b, wins):
    half = emit.select(emit.equal(a, b), emit.scale(dy, factor=0.5), 0)
    da, db = emit.select(wins(a, b), dy, half), emit.select(wins(b, a), dy, half)
    return unbroadcast(emit, da, a), unbroadcast(emit, db, b)


def _away_from_zero(rng, shape, shapes):
    return rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)


div.draws(b=_away_from_zero)
power.draws(a=(0.2, 2), b=(-2, 3))
for _schema in (add, sub, mul, div, power, maximum, minimum):
    _enrol_binary(_schema)

# --- unary --------------------------------------------------------------------------------------------------


@elementwise("neg", types=Number, alias="x", traits=(LINEAR,))
def neg(x):
    """-x."""
    return -x


neg.reference(np.negative)


@neg.gradient
def _(emit, dy):
    return emit.neg(dy)


@elementwise("scale", types=Real, alias="x", traits=(LINEAR,))
def scale(x, *, factor: float):
    """factor * x, with the factor in the compute type: a constant that no operand's narrow type rounds."""
    return x * factor


@scale.reference
def _(x, factor):
    return x * x.dtype.type(factor)


@scale.gradient
def _(emit, dy, factor):
    return emit.scale(dy, factor=factor)


@elementwise("exp", types=Real, alias="x")
def exp(x):
    """e to the power x."""
    return math.exp(x)


exp.reference(np.exp)


@exp.gradient
def _(emit, dy, y):
    return emit.mul(dy, y)


@elementwise("log", types=Real, alias="x")
def log(x):
    """The natural logarithm: -inf at 0, NaN below."""
    return math.log(x)


log.reference(np.log)


@log.gradient
def _(emit, dy, x):
    return emit.div(dy, x)


@elementwise("sqrt", types=Real, alias="x")
def sqrt(x):
    """The square root; NaN below 0."""
    return math.sqrt(x)


sqrt.reference(np.sqrt)


@sqrt.gradient
def _(emit, dy, y):
    return emit.div(emit.scale(dy, factor=0.5), y)


@elementwise("square", types=Number, alias="x")
def square(x):
    """x * x."""
    return x * x


square.reference(np.square)


@square.gradient
def _(emit, dy, x):
    return emit.mul(emit.scale(dy, factor=2.0), x)


@elementwise("abs", types=Number, alias="x")
def abs_(x):
    """|x|. Its gradient at 0 is 0."""
    return abs(x)


abs_.reference(np.abs)


@abs_.gradient
def _(emit, dy, x):
    return emit.select(emit.greater(x, 0), dy, emit.select(emit.less(x, 0), emit.neg(dy), 0))


log.draws(x=(0.1, 3))
sqrt.draws(x=(0.1, 3))
for _schema in (neg, exp, log, sqrt, square, abs_):
    _enrol_unary(_schema)
_enrol_unary(scale, factor=-1.5)

# --- comparisons: NaN is unequal to all, itself included ----------------------------------------------------


@elementwise("equal", types=Any_, result=DType.bool)
def equal(a, b):
    """a == b."""
    return a == b


equal.reference(np.equal)


@elementwise("not_equal", types=Any_, result=DType.bool)
def not_equal(a, b):
    """a != b."""
    return a != b


not_equal.reference(np.not_equal)


@elementwise("greater", types=Number, result=DType.bool)
def greater(a, b):
    """a > b."""
    return a > b


greater.reference(np.greater)


@elementwise("greater_equal", types=Number, result=DType.bool)
def greater_equal(a, b):
    """a >= b."""
    return a >= b


greater_equal.reference(np.greater_equal)


@elementwise("less", types=Number, result=DType.bool)
def less(a, b):
    """a < b."""
    return a < b


less.reference(np.less)


@elementwise("less_equal", types=Number, result=DType.bool)
def less_equal(a, b):
    """a <= b."""
    return a <= b


less_equal.reference(np.less_equal)

for _schema in (equal, not_equal, greater, greater_equal, less, less_equal):
    _enrol_binary(_schema)

# --- selection and conversion -------------------------------------------------------------------------------


@elementwise("select", types=Any_, continuous=True)  # in a and b; c is exact
def select(c: Bool, a, b):
    """a where c is true, else b.

    StableHLO's select takes c of rank 0 or of the operands' shape; here all three broadcast.
    """
    return a if c else b


select.reference(np.where)


@select.gradient
def _(emit, dy, c, a, b):
    return (None, unbroadcast(emit, emit.select(c, dy, 0), a), unbroadcast(emit, emit.select(c, 0, dy), b))


select.samples((4, 7), (4, 7), (4, 7))
select.samples((4, 1), (7,), (4, 7))
select.samples((), (3, 5), (5,))
select.samples((0, 3), (0, 3), (3,))
select.samples((1025,), (1025,), ())

_BOOL = DType.bool.id  # a scalar function has an element type by its id


@elementwise("convert", dtype_attr="dtype", traits=(LINEAR,), continuous=True)
def convert(x: AnyOwn, *, dtype: DType):
    """x in another element type, rounded to nearest even; the gradient passes between floats and stops elsewhere.

    What is too large becomes infinite in f16 and bf16. fp8 saturates: a greater finite number becomes the greatest one, 448
    in f8e4m3 and 57344 in f8e5m2, and so does infinity in f8e4m3, which has none; NaN stays NaN. fp8 has no gradient.

    A float becomes an integer by truncation toward zero (NaN and what does not fit: unspecified, as in StableHLO), a
    bool by x != 0, and true is 1. StableHLO's C1, equal shapes, holds by construction.
    """
    return x != 0 if dtype == _BOOL else x


@convert.specialised
def _(operands, attrs):
    """f32 would round before a narrower float does: it gets a number that it has, and that rounds to the same one."""
    (given,), made = operands, attrs["dtype"]
    if made.kind != "float" or made.compute is made:
        return None
    if given is DType.f64:
        return odd_f32
    unsigned = given.numpy.kind == "u"
    return (
        None
        if made is not DType.bf16 or given.kind != "int"
        else fewer_bits_unsigned
        if unsigned
        else fewer_bits
    )


@convert.reference
def _(x, dtype):
    return rounded(x, dtype)


@convert.gradient
def _(emit, dy, x):
    if not x.dtype.kind == dy.dtype.kind == "float":
        return None
    refuse_gradient("convert", x=x.dtype, y=dy.dtype)
    return emit.convert(dy, dtype=x.dtype)


for _type in sorted(BASIC, key=lambda t: t.id):
    convert.samples((4, 7), dtype=_type)
convert.samples((0, 3), dtype=DType.f32)
convert.samples((), dtype=DType.f16)
