"""The next token: drawn from logits on the device, by numbers that follow from a seed and a place, and a record of those that were there.

A draw is by integers: weights are exp(logit) in units of 2^-32 of the greatest, their sums are exact, and a random number of 64 bits says
which token it is. So it does not depend on the order in which a kernel adds.
"""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec
from .dropout import random_words
from .schema import F32, I32, I64, Bool, Float, op, require

STREAM = 2**32 - 1  # of random words: no dropout layer's
ONE = np.float32(2**32)  # a weight of 1
_SHARE, _SHARES, _MOST = np.int64(24), np.float32(2**24), np.int64(2**24 - 1)  # of top_p
_HALF, _LOW = np.uint64(32), np.uint64(2**32 - 1)


def multiply_high(a, b):
    """The upper 64 bits of the product of two uint64: of scalars here and in kernels."""
    a1, a0, b1, b0 = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    middle = a1 * b0 + ((a0 * b0) >> _HALF)
    return a1 * b1 + (middle >> _HALF) + (((middle & _LOW) + a0 * b1) >> _HALF)


def random_word(seed, place):
    """64 random bits of a sequence and a place in it: scalars."""
    high, low, _, _ = random_words(place, seed, 0, STREAM)
    return (np.uint64(high) << _HALF) | np.uint64(low)


def share_of(total, top_p):
    """The least sum of weights that is top_p of the total, at least 1: i64, of scalars here and in kernels."""
    part = np.int64(top_p * _SHARES)
    high, low = total >> _SHARE, total & _MOST
    share = high * part + ((low * part + _MOST) >> _SHARE)
    return share if share > 1 else np.int64(1)


def _check_scalars(**numbers: TensorSpec) -> None:
    for name, spec in numbers.items():
        require(spec.shape == (), "C4", f"{name} has shape {spec.shape}, expected ()")


@op("sample_tokens", results=("token",), flops=64)
def sample_tokens(
    logits: Float, seen: Bool, seeds: I64, places: I32, temperature: F32, top_k: F32, top_p: F32, penalty: F32
):
    """A token of each row of logits, as i32; -1 where the greatest logit is no finite number, as it is with a NaN in the row.

    Shapes: logits and seen (B, W), seeds and places (B,), the others ().

    penalty      logits of tokens that were seen are divided by it where positive, multiplied where not (CTRL); 1 changes none
    temperature  logits are divided by it; 0 takes the greatest, the first of equals, and draws nothing
    top_k        only the so many greatest stay, and what equals the last of them; 0 keeps all
    top_p        only the fewest of the greatest stay whose probabilities make this much together, and what equals the last of them

    The draw is a function of its row, its seed and its place: 64 bits of Philox4x32-10 at the counter (place, 0, 2^32 - 1) and the
    key seed. Tokens under 2^-32 of the greatest's probability are never drawn.

    C1  logits has rank 2, and W is 1 to 2^20
    C2  seen has the shape of logits
    C3  seeds and places have shape (B,)
    C4  temperature, top_k, top_p and penalty have shape ()
    """
    require(
        logits.rank == 2 and 0 < logits.shape[1] <= 2**20,
        "C1",
        f"logits has shape {logits.shape}, expected (B, W) with W from 1 to {2**20}",
    )
    require(seen.shape == logits.shape, "C2", f"seen has shape {seen.shape}, logits {logits.shape}")
    for name, spec in (("seeds", seeds), ("places", places)):
        require(
            spec.shape == logits.shape[:1],
            "C3",
            f"{name} has shape {spec.shape}, expected {logits.shape[:1]}",
        )
    _check_scalars(temperature=temperature, top_k=top_k, top_p=top_p, penalty=penalty)
    return TensorSpec(logits.shape[:1], DType.i32, logits.device)


@sample_tokens.reference
def _(logits, seen, seeds, places, temperature, top_k, top_p, penalty):
    numbers = [np.float32(x) for x in (temperature, top_k, top_p, penalty)]
    rows = zip(logits.astype(np.float32), seen, seeds, places)
    return np.array([_token(*row, *numbers) for row in rows], np.int32)


def _token(x, seen, seed, place, temperature, top_k, top_p, penalty):
    if penalty != 1:
        x = np.where(seen, np.where(x > 0, x / penalty, x * penalty), x)
    peak = x.max()
    if not np.isfinite(peak):
        return -1
    if temperature == 0:
        return int(x.argmax())
    y = (x - peak) / temperature
    keep = np.ones(len(y), np.bool_)
    if 0 < top_k < len(y):
        keep = y >= np.partition(y, -int(top_k))[-int(top_k)]
    weights = np.where(keep, (np.exp(y) * ONE).astype(np.int64), 0)
    if top_p < 1:
        order = np.argsort(-y, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        last = np.flatnonzero(before < share_of(weights.sum(), top_p))[-1]
        weights = np.where(y >= y[order[last]], weights, 0)
    sums = np.cumsum(weights)
    drawn = multiply_high(random_word(seed, np.uint64(place)), np.uint64(sums[-1]))
    return int(np.searchsorted(sums, np.int64(drawn), side="right"))


@op("mark_tokens", results=("marked",), alias={0: (0, "must")}, flops=4)
def mark_tokens(seen: Bool, tokens: I32, starts: I32, counts: I32):
    """Which tokens a sequence has, in place: seen[b, tokens[b, t]] becomes true for t < counts[b].

    Where starts[b] is 0, all others of the row become false. What is no token, from 0 to W - 1, is left out.

    Shapes: seen (B, W), tokens (B, T), starts and counts (B,).

    C1  seen has rank 2
    C2  tokens has rank 2, and the B of seen
    C3  starts and counts have shape (B,)
    """
    require(seen.rank == 2, "C1", f"seen has rank {seen.rank}, expected 2")
    batch = seen.shape[:1]
    require(
        tokens.rank == 2 and tokens.shape[:1] == batch,
        "C2",
        f"tokens has shape {tokens.shape}, expected ({batch[0]}, T)",
    )
    for name, spec in (("starts", starts), ("counts", counts)):
        require(spec.shape == batch, "C3", f"{name} has shape {spec.shape}, expected {batch}")
    return seen


@mark_tokens.reference
def _(seen, tokens, starts, counts):
    seen = np.where((starts == 0)[:, None], False, seen)
    there = (np.arange(tokens.shape[1]) < counts[:, None]) & (tokens >= 0) & (tokens < seen.shape[1])
    row, column = np.nonzero(there)
    seen[row, tokens[row, column]] = True
    return seen


# --- samples ------------------------------------------------------------------------------------------------------------

sample_tokens.draws(
    seeds=lambda rng, shape, shapes: rng.integers(2**63, size=shape),
    places=lambda rng, shape, shapes: rng.integers(2**20, size=shape),
    temperature=(0.3, 1.5),
    top_k=lambda rng, shape, shapes: rng.integers(0, shapes[0][1] + 2, shape),
    top_p=(0.2, 1.1),
    penalty=(1.0, 1.5),
)
mark_tokens.draws(
    tokens=lambda rng, shape, shapes: rng.integers(-1, shapes[0][1] + 1, shape),
    starts=lambda rng, shape, shapes: rng.integers(0, 2, shape),
    counts=lambda rng, shape, shapes: rng.integers(0, shapes[1][1] + 1, shape),
)
for _rows, _words in ((3, 7), (1, 1), (2, 1025), (0, 4)):
    sample_tokens.samples((_rows, _words), (_rows, _words), (_rows,), (_rows,), (), (), (), ())
for _rows, _words, _new in ((3, 7, 4), (2, 1025, 1), (0, 4, 2), (2, 5, 0)):
    mark_tokens.samples((_rows, _words), (_rows, _new), (_rows,), (_rows,))
