"""Random numbers: bits of a counter, and distributions that are maps of these bits.

A draw is a function of a random state, of the number of the draw in its program (`layer`), and of an element's place. In a graph the state
is the model's own, `rng`, which goes on by itself after each run: `ctx.random_normal(shape=(4, 7))`. Callers of `op_call` bring one: (key, step).
"""

from __future__ import annotations

import math
from math import prod

import numpy as np

from ..types import BASIC, DType, Shape, TensorSpec
from .constraints import RANDOM, TypeConstraint
from .dropout import philox4x32, random_words
from .error_function import erf_inv
from .row_steps import along
from .schema import Access, Float, op, require

_WORD, _ONE, _TWO, _ZERO = np.uint64(32), np.int64(1), np.int64(2), np.int64(0)
_FLOATS = BASIC & {DType.f32, DType.f16, DType.bf16}
_INTEGERS = {t for t in DType if t.kind == "int"}
_HALF_STEP = 2.0**-23
_FLIPPED = np.uint32(1 << 31)


def _check_draw(rng: TensorSpec, shape: tuple, layer: int) -> None:
    require(rng.shape == (2,), "C1", f"rng has shape {rng.shape}, expected (2,): a key and a step")
    require(all(n >= 0 for n in shape), "C2", f"shape is {shape}, expected sizes from 0 on")
    require(0 <= layer < 2**32, "C3", f"layer is {layer}, expected 0 to 2^32 - 1")


def _check_float(dtype: DType, constraint: str) -> None:
    require(dtype in _FLOATS, constraint, f"dtype is {dtype}, expected f32, f16 or bf16")


# --- bits ---------------------------------------------------------------------------------------------------------------


@op("random_bits", flops=30)
def random_bits(rng: RANDOM, *, shape: Shape, layer: int = 0):
    """32 random bits for each element of a shape, as i32.

    rng is (key, step). Element i (row-major) is word i % 4 of Philox4x32-10 at the counter (i / 4, upper 32 bits of i / 4, step, layer), its
    highest bit flipped; layer tells the draws of one program apart. Steps repeat after 2^32.

    C1  rng has shape (2,)
    C2  shape is of sizes from 0 on
    C3  0 <= layer < 2^32
    """
    _check_draw(rng, shape, layer)
    return TensorSpec(shape, DType.i32, rng.device)


def _points(rng, shape, **_):
    return Access(None, tuple(range(len(shape)))), Access(0, (-1,)), Access(0, (-1,), starts=(1,))


@random_bits.maps(_points, lambda attrs: {"layer": np.uint32(attrs["layer"])}, continuous=True)
def _(i, key, step, *, layer):
    """Element i alone, as of a dropout: words are picked two by two, so that no compiler makes a switch of it."""
    group, key = np.uint64(i >> _TWO), np.uint64(key)
    w0, w1, w2, w3 = philox4x32(
        np.uint32(group),
        np.uint32(group >> _WORD),
        np.uint32(step),
        layer,
        np.uint32(key),
        np.uint32(key >> _WORD),
    )
    odd = i & _ONE != _ZERO
    low, high = w1 if odd else w0, w3 if odd else w2
    word = high if i & _TWO != _ZERO else low
    return np.int64(word) - np.int64(1 << 31)


@random_bits.reference
def _(rng, shape, layer):
    many = prod(shape)
    words = random_words(np.arange(-(-many // 4)), rng[0], rng[1], layer)
    flat = np.stack(words, -1).reshape(-1)[:many]
    return (flat ^ _FLIPPED).view(np.int32).reshape(shape)


# --- of which all others are made: in f32, whatever type they are stored in ------------------------------------------


def _unit(emit, rng, shape, layer):
    """From 0 on and under 1, in steps of 2^-24."""
    bits = emit.random_bits(rng, shape=shape, layer=layer)
    return emit.scale(emit.convert(emit.shift_right_logical(bits, 8), dtype=DType.f32), factor=2.0**-24)


def _between(emit, rng, shape, layer):
    """From -1 to 1, neither of which is one of them: odd multiples of 2^-23, which f32 has all."""
    bits = emit.random_bits(rng, shape=shape, layer=layer)
    whole = emit.convert(emit.shift_right_arithmetic(bits, 8), dtype=DType.f32)  # -2^23 to 2^23 - 1
    return emit.scale(emit.add(whole, 0.5), factor=_HALF_STEP)


def _typed(emit, y, dtype):
    return y if dtype is DType.f32 else emit.convert(y, dtype=dtype)


def _unit_in_numpy(rng, shape, layer):
    bits = random_bits.reference_fn(rng, shape, layer).view(np.uint32)
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _between_in_numpy(rng, shape, layer):
    bits = random_bits.reference_fn(rng, shape, layer)
    return ((bits >> 8).astype(np.float32) + np.float32(0.5)) * np.float32(_HALF_STEP)


@op("random_uniform")
def random_uniform(
    rng: RANDOM, *, shape: Shape, low: float = 0.0, high: float = 1.0, dtype: DType = DType.f32, layer: int = 0
):  # fmt: skip
    """Numbers from low on and under high, all as likely: low + (high - low) * k / 2^24 for a random k of 24 bits.

    They are made in f32; where that or dtype is coarser than the steps, a number may be rounded to high.

    C1  rng has shape (2,)
    C2  shape is of sizes from 0 on
    C3  0 <= layer < 2^32
    C4  low <= high, both finite
    C5  dtype is f32, f16 or bf16
    """
    _check_draw(rng, shape, layer)
    require(
        math.isfinite(low) and math.isfinite(high) and low <= high,
        "C4",
        f"low is {low}, high is {high}, expected finite numbers, low <= high",
    )
    _check_float(dtype, "C5")
    return TensorSpec(shape, dtype, rng.device)


@random_uniform.replaced_by
def _(emit, rng, shape, low, high, dtype, layer):
    y = _unit(emit, rng, shape, layer)
    return _typed(
        emit, y if (low, high) == (0, 1) else emit.add(emit.scale(y, factor=high - low), low), dtype
    )


@random_uniform.reference
def _(rng, shape, low, high, dtype, layer):
    return _unit_in_numpy(rng, shape, layer) * np.float32(high - low) + np.float32(low)


@op("random_normal")
def random_normal(
    rng: RANDOM, *, shape: Shape, mean: float = 0.0, std: float = 1.0, dtype: DType = DType.f32, layer: int = 0
):  # fmt: skip
    """Numbers of the normal distribution: mean + std * sqrt(2) * erf_inv(u) with u between -1 and 1. None is over 5.42 std from the mean.

    They are made in f32, of 24 random bits each.

    C1  rng has shape (2,)
    C2  shape is of sizes from 0 on
    C3  0 <= layer < 2^32
    C4  std is 0 or more, and finite as the mean is
    C5  dtype is f32, f16 or bf16
    """
    _check_draw(rng, shape, layer)
    require(
        math.isfinite(mean) and math.isfinite(std) and std >= 0,
        "C4",
        f"mean is {mean}, std is {std}, expected finite numbers, std >= 0",
    )
    _check_float(dtype, "C5")
    return TensorSpec(shape, dtype, rng.device)


def _moved(emit, z, mean, std, dtype):
    y = z if std == 1 else emit.scale(z, factor=std)
    return _typed(emit, y if mean == 0 else emit.add(y, mean), dtype)


@random_normal.replaced_by
def _(emit, rng, shape, mean, std, dtype, layer):
    z = emit.scale(emit.erf_inv(_between(emit, rng, shape, layer)), factor=math.sqrt(2))
    return _moved(emit, z, mean, std, dtype)


@random_normal.reference
def _(rng, shape, mean, std, dtype, layer):
    z = erf_inv.reference_fn(_between_in_numpy(rng, shape, layer)) * np.float32(math.sqrt(2))
    return z * np.float32(std) + np.float32(mean)


@op("random_truncated_normal")
def random_truncated_normal(
    rng: RANDOM, *, shape: Shape, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0,
    dtype: DType = DType.f32, layer: int = 0,
):  # fmt: skip
    """Numbers of the normal distribution, of those only that lie from mean + low * std to mean + high * std.

    C1  rng has shape (2,)
    C2  shape is of sizes from 0 on
    C3  0 <= layer < 2^32
    C4  std is 0 or more, and finite as the mean is
    C5  dtype is f32, f16 or bf16
    C6  low < high, and some of the distribution's mass is between them in f32
    """
    random_normal.rule(rng, shape=shape, mean=mean, std=std, dtype=dtype, layer=layer)
    some = low < high and np.float32(math.erf(low / math.sqrt(2))) < np.float32(math.erf(high / math.sqrt(2)))
    require(bool(some), "C6", f"low is {low}, high is {high}: nothing lies between them")
    return TensorSpec(shape, dtype, rng.device)


def _mass(low, high):
    """Where erf_inv is to be read: its middle, and half of its width."""
    a, b = math.erf(low / math.sqrt(2)), math.erf(high / math.sqrt(2))
    return (a + b) / 2, (b - a) / 2


@random_truncated_normal.replaced_by
def _(emit, rng, shape, mean, std, low, high, dtype, layer):
    middle, half = _mass(low, high)
    u = emit.scale(_between(emit, rng, shape, layer), factor=half)
    z = emit.scale(emit.erf_inv(u if middle == 0 else emit.add(u, middle)), factor=math.sqrt(2))
    return _moved(emit, emit.clamp(low, z, high), mean, std, dtype)


@random_truncated_normal.reference
def _(rng, shape, mean, std, low, high, dtype, layer):
    middle, half = _mass(low, high)
    u = _between_in_numpy(rng, shape, layer) * np.float32(half) + np.float32(middle)
    z = np.clip(erf_inv.reference_fn(u) * np.float32(math.sqrt(2)), np.float32(low), np.float32(high))
    return z * np.float32(std) + np.float32(mean)


@op("random_integers")
def random_integers(
    rng: RANDOM, *, shape: Shape, low: int = 0, high: int, dtype: DType = DType.i32, layer: int = 0
):
    """Integers from low on and under high, all as likely but for one part in 2^32 / (high - low).

    C1  rng has shape (2,)
    C2  shape is of sizes from 0 on
    C3  0 <= layer < 2^32
    C4  high - low is from 1 to 2^31
    C5  dtype is an integer type that has low and high - 1
    """
    _check_draw(rng, shape, layer)
    require(
        1 <= high - low <= 2**31, "C4", f"low is {low}, high is {high}, expected high - low from 1 to 2^31"
    )
    require(dtype in _INTEGERS, "C5", f"dtype is {dtype}, expected an integer type")
    held = np.iinfo(dtype.numpy)
    require(
        held.min <= low and high - 1 <= held.max,
        "C5",
        f"low is {low}, high is {high}, beyond {dtype}, which has {held.min} to {held.max}",
    )
    return TensorSpec(shape, dtype, rng.device)


@random_integers.replaced_by
def _(emit, rng, shape, low, high, dtype, layer):
    bits = emit.convert(emit.random_bits(rng, shape=shape, layer=layer), dtype=DType.i64)
    high_word = emit.shift_right_arithmetic(emit.mul(emit.add(bits, 2**31), high - low), 32)
    y = emit.add(high_word, low)
    return y if dtype is DType.i64 else emit.convert(y, dtype=dtype)


@random_integers.reference
def _(rng, shape, low, high, dtype, layer):
    bits = random_bits.reference_fn(rng, shape, layer).astype(np.int64) + 2**31
    return ((bits * (high - low)) >> 32) + low


_Probability = TypeConstraint("float", frozenset(_FLOATS))


@op("random_bernoulli")
def random_bernoulli(p: _Probability, rng: RANDOM, *, dtype: DType | None = None, layer: int = 0):
    """1 with the probability p of each element, else 0; of p's type unless dtype is another one. Where p is NaN, 0.

    C1  rng has shape (2,)
    C2  0 <= layer < 2^32
    """
    require(rng.shape == (2,), "C1", f"rng has shape {rng.shape}, expected (2,): a key and a step")
    require(0 <= layer < 2**32, "C2", f"layer is {layer}, expected 0 to 2^32 - 1")
    return TensorSpec(p.shape, dtype or p.dtype, p.device)


@random_bernoulli.replaced_by
def _(emit, p, rng, dtype, layer):
    p32 = p if p.dtype is DType.f32 else emit.convert(p, dtype=DType.f32)
    return emit.convert(emit.less(_unit(emit, rng, p.shape, layer), p32), dtype=dtype or p.dtype)


@random_bernoulli.reference
def _(p, rng, dtype, layer):
    return (_unit_in_numpy(rng, p.shape, layer) < p).astype(dtype.numpy if dtype else p.dtype)


@op("random_categorical")
def random_categorical(logits: Float, rng: RANDOM, *, axis: int = -1, layer: int = 0):
    """A class of each row of logits along an axis, as i64: class c with the probability softmax(logits)[c].

    It is where logits + noise are greatest, with noise of -log(-log(u)) (Gumbel). Shapes: the result has that of the logits without the axis.
    For more draws of a row, broadcast it.

    C1  axis is in [-rank(logits), rank(logits))
    C2  rng has shape (2,)
    C3  0 <= layer < 2^32
    C4  there is at least one class
    """
    require(
        -logits.rank <= axis < logits.rank, "C1", f"axis {axis} is not in [-{logits.rank}, {logits.rank})"
    )
    require(rng.shape == (2,), "C2", f"rng has shape {rng.shape}, expected (2,): a key and a step")
    require(0 <= layer < 2**32, "C3", f"layer is {layer}, expected 0 to 2^32 - 1")
    at = axis % logits.rank
    require(logits.shape[at] > 0, "C4", f"axis {axis} of {logits.shape} has no element")
    return TensorSpec((*logits.shape[:at], *logits.shape[at + 1 :]), DType.i64, logits.device)


random_categorical.normalizer(along)


@random_categorical.replaced_by
def _(emit, logits, rng, axis, layer):
    u = emit.add(emit.scale(_between(emit, rng, logits.shape, layer), factor=0.5), 0.5)
    noise = emit.neg(emit.log(emit.neg(emit.log(u))))
    wide = logits if logits.dtype is DType.f32 else emit.convert(logits, dtype=DType.f32)
    return emit.argmax(emit.add(wide, noise), axis=axis, keepdims=False)


@random_categorical.reference
def _(logits, rng, axis, layer):
    u = _between_in_numpy(rng, logits.shape, layer) * np.float32(0.5) + np.float32(0.5)
    return np.argmax(logits - np.log(-np.log(u)), axis)


@op("random_permutation")
def random_permutation(rng: RANDOM, *, size: int, dtype: DType = DType.i64, layer: int = 0):
    """The numbers from 0 to size - 1 in a random order: `ctx.gather(x, ctx.random_permutation(size=n))` shuffles.

    They are sorted by 32 random bits each; two that have the same ones, which is one pair in 2^32, stay in their order.

    C1  rng has shape (2,)
    C2  size is from 0 to 2^31 - 1
    C3  0 <= layer < 2^32
    C4  dtype is i32 or i64
    """
    require(rng.shape == (2,), "C1", f"rng has shape {rng.shape}, expected (2,): a key and a step")
    require(0 <= size < 2**31, "C2", f"size is {size}, expected 0 to 2^31 - 1")
    require(0 <= layer < 2**32, "C3", f"layer is {layer}, expected 0 to 2^32 - 1")
    require(dtype in (DType.i32, DType.i64), "C4", f"dtype is {dtype}, expected i32 or i64")
    return TensorSpec((size,), dtype, rng.device)


@random_permutation.replaced_by
def _(emit, rng, size, dtype, layer):
    order = emit.argsort(emit.random_bits(rng, shape=(size,), layer=layer), axis=0)
    return order if dtype is DType.i64 else emit.convert(order, dtype=dtype)


@random_permutation.reference
def _(rng, size, dtype, layer):
    return np.argsort(random_bits.reference_fn(rng, (size,), layer), kind="stable").astype(dtype.numpy)


# --- samples ------------------------------------------------------------------------------------------------------------


def _random_state(rng, shape, shapes):
    return [rng.integers(2**63), rng.integers(2**31)]


def _positive(rng, shape, shapes):
    return rng.uniform(0, 1, shape)


_OF_A_SHAPE = [(random_bits, {}), (random_uniform, {"low": -1.5, "high": 2.0}), (random_normal, {"mean": 0.5, "std": 2.0}),
               (random_truncated_normal, {"low": -1.0, "high": 2.5}), (random_integers, {"low": -3, "high": 17})]  # fmt: skip
for _schema, _attrs in _OF_A_SHAPE:
    _schema.draws(rng=_random_state)
    for _shape in ((4, 7), (2, 3, 5), (1025,), (0, 3), (1,)):
        _schema.samples((2,), shape=_shape, layer=3, **_attrs)
for _schema, _operand in ((random_bernoulli, "p"), (random_categorical, "logits")):
    _schema.draws(rng=_random_state, **({"p": _positive} if _operand == "p" else {}))
    _schema.samples((4, 7), (2,), layer=1)
random_bernoulli.samples((0, 3), (2,), layer=1)
random_bernoulli.samples((1025,), (2,), dtype=DType.i32)
random_categorical.samples((2, 3, 5), (2,), axis=1)
random_categorical.samples((3,), (2,), axis=0)
random_categorical.samples((0, 3), (2,))
random_permutation.draws(rng=_random_state)
for _size in (1, 0, 7, 1025):
    random_permutation.samples((2,), size=_size, layer=2)
