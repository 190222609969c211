"""Dropout, and the random state that its masks come from: counter-based, so that a mask is computed, never stored.

The state is two i64: a key, and the number of the step. A mask is a function of them, of the op's own number and of an
element's place, so the gradient, or a replay on another device, forms the same one again. `rng_advance` goes on to the
next step, in place and after all readers.
"""

from __future__ import annotations

import numpy as np

from ..types import TensorSpec
from .schema import I64, Access, Float, Valid, op, require

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_WORD = np.uint64(32)  # bits
_ZERO, _ONE, _TWO = map(np.int64, range(3))
_NOTHING = np.float32(0)


def philox4x32(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers, SC11): four random uint32 of a counter and a key.

    Arguments and results are uint32: scalars, or NumPy arrays of one shape. The kernels of all devices compile this.
    """
    for _ in range(10):
        p0, p1 = _MULTIPLIER_0 * np.uint64(c0), _MULTIPLIER_1 * np.uint64(c2)
        c0, c2 = np.uint32(np.uint32(p1 >> _WORD) ^ c1 ^ k0), np.uint32(np.uint32(p0 >> _WORD) ^ c3 ^ k1)
        c1, c3 = np.uint32(p1), np.uint32(p0)
        k0, k1 = np.uint32(np.uint64(k0) + _WEYL_0), np.uint32(np.uint64(k1) + _WEYL_1)
    return c0, c1, c2, c3


def random_words(group, key, step, layer):
    """The four words of elements 4 * group to 4 * group + 3. Integers, of 64 bits where they may be that long."""
    group, key = np.uint64(group), np.uint64(key)
    return philox4x32(
        np.uint32(group), np.uint32(group >> _WORD), np.uint32(step), np.uint32(layer),
        np.uint32(key), np.uint32(key >> _WORD),
    )  # fmt: skip


def dropout_numbers(rate: float) -> tuple[int, float]:
    """(threshold, scale): a word under the threshold drops its element; what is kept is scaled."""
    return round(rate * 2**32), 1.0 / (1.0 - rate) if rate < 1.0 else 0.0


def kept(n: int, rng: np.ndarray, rate: float, layer: int) -> np.ndarray:
    """Which of n elements dropout keeps."""
    key, step = rng
    words = random_words(np.arange(-(-n // 4)), key, step, layer)
    return np.stack(words, -1).reshape(-1)[:n].astype(np.int64) >= dropout_numbers(rate)[0]


def _check_state(rng: TensorSpec, constraint: str) -> None:
    require(rng.shape == (2,), constraint, f"rng has shape {rng.shape}, expected (2,): a key and a step")


@op("dropout", alias={0: (0, "may")}, flops=30)
def dropout(x: Float, rng: I64, *, rate: float, layer: int):
    """x with each element dropped, that is 0, with probability rate, and those kept scaled by 1 / (1 - rate).

    rng is (key, step). Element i (row-major) is dropped where word i % 4 of Philox4x32-10 at the counter
    (i / 4, upper 32 bits of i / 4, step, layer) is under rate * 2^32; layer tells the dropouts of one program apart.
    Steps repeat after 2^32. The gradient is dropout of dy, with the same mask. A NaN that is dropped is gone.

    C1  0 <= rate <= 1
    C2  rng has shape (2,)
    C3  0 <= layer < 2^32
    """
    require(0 <= rate <= 1, "C1", f"rate is {rate}, expected 0 to 1")
    _check_state(rng, "C2")
    require(0 <= layer < 2**32, "C3", f"layer is {layer}, expected 0 to 2^32 - 1")
    return x


def _dropout_access(x, rng, **_):
    axes = tuple(range(len(x)))
    return Access(0, axes), Access(None, axes), Access(1, (-1,)), Access(1, (-1,), starts=(1,))


def _dropout_constants(attrs):
    threshold, scale = dropout_numbers(attrs["rate"])
    return {"threshold": np.int64(threshold), "scale": np.float32(scale), "layer": np.uint32(attrs["layer"])}


@dropout.maps(_dropout_access, _dropout_constants, continuous=True)  # in x: random words are compared
def _(x, i, key, step, *, threshold, scale, layer):
    """Element i alone; kernels that hold four neighbours need one Philox counter for all of them."""
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
    low, high = w1 if odd else w0, w3 if odd else w2  # two by two, so that no compiler makes a switch of it
    word = high if i & _TWO != _ZERO else low
    return x * scale if np.int64(word) >= threshold else _NOTHING


@dropout.reference
def _(x, rng, rate, layer):
    scale = x.dtype.type(dropout_numbers(rate)[1])
    return np.where(kept(x.size, rng, rate, layer).reshape(x.shape), x * scale, x.dtype.type(0))


@dropout.gradient
def _(emit, dy, rng, rate, layer):
    return emit.dropout(dy, rng, rate=rate, layer=layer), None


def _random_state(rng, shape, shapes):
    return [rng.integers(2**63), rng.integers(2**31)]


dropout.draws(rng=_random_state)
for _shape in ((4, 7), (1025,), (0, 3), ()):
    dropout.samples(_shape, (2,), rate=0.3, layer=1)
dropout.samples((4, 7), (2,), rate=0.0, layer=0)
dropout.samples((4, 7), (2,), rate=1.0, layer=0)


@op("rng_advance", results=("next",), alias={0: (0, "must")}, version=2)
def rng_advance(rng: I64, valid: Valid):
    """The random state of the next step: the same key, and, if valid, one step more. Written in place.

    C1  rng has shape (2,)
    C2  valid has shape ()
    """
    _check_state(rng, "C1")
    require(valid.shape == (), "C2", f"valid has shape {valid.shape}, expected ()")
    return rng


@rng_advance.reference
def _(rng, valid):
    return rng + np.array([0, int(valid)], np.int64)


rng_advance.draws(rng=_random_state)
rng_advance.samples((2,), ())
