"""Dropout's numbers: Philox as published, masks with the right odds, and one mask for all who ask the same."""

import numpy as np
import pytest

from aicf.ops.dropout import kept, philox4x32, random_words
from aicf.ops.schema import schema_of

KNOWN = [  # Random123's kat_vectors: counter, key, result
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [np.uint32(int(word, 16)) for word in text.split()]


@pytest.mark.spec("C15")
@pytest.mark.parametrize("counter, key, result", KNOWN)
@pytest.mark.parametrize("as_arrays", [False, True])
def test_philox_gives_the_published_numbers(counter, key, result, as_arrays):
    given = [np.full(3, w) if as_arrays else w for w in [*words(counter), *words(key)]]
    with np.errstate(all="raise"):
        got = philox4x32(*given)
    assert all(g.dtype == np.uint32 and np.all(g == w) for g, w in zip(got, words(result)))


@pytest.mark.spec("C15")
@pytest.mark.parametrize("counter, key, result", KNOWN)
def test_compiled_for_the_host_it_gives_the_same(counter, key, result):
    import numba

    assert list(numba.njit(philox4x32)(*words(counter), *words(key))) == words(result)


def test_great_steps_keys_and_places_are_cut_to_words():
    """A place beyond 2^34 uses the second word; of a step only the lower word counts."""
    key, step, group = 2**63 - 1, 2**32 + 5, 2**33 + 1
    got = random_words(group, np.int64(key), np.int64(step), 7)
    assert got == philox4x32(*map(np.uint32, (1, 2, 5, 7, 2**32 - 1, 2**31 - 1)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_odds_are_the_rate(rate):
    n = 200_000
    dropped = n - kept(n, np.array([12345, 0]), rate, 0).sum()
    assert abs(dropped - n * rate) < 5 * np.sqrt(n * rate * (1 - rate))  # five standard deviations


def test_steps_layers_and_keys_draw_apart():
    masks = [kept(4096, np.array([k, s]), 0.5, n) for k in (1, 2) for s in (0, 1) for n in (0, 1)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs((a == b).mean() - 0.5) < 0.05
    assert np.array_equal(kept(1000, np.array([1, 0]), 0.5, 0), masks[0][:1000])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rates_of_nothing_and_everything(dtype):
    x, rng = np.array([1.5, np.nan, -np.inf, 0.0, 3.0], dtype), np.array([1, 2])
    (all_of_it,) = schema_of("dropout").call_reference([x, rng], {"rate": 0.0, "layer": 0})
    assert all_of_it.tobytes() == x.tobytes()
    (none_of_it,) = schema_of("dropout").call_reference([x, rng], {"rate": 1.0, "layer": 0})
    assert none_of_it.dtype == dtype and np.array_equal(none_of_it, np.zeros(5))


def test_what_is_kept_is_scaled():
    x, rng = np.arange(1, 1001, dtype=np.float32), np.array([3, 4])
    (y,) = schema_of("dropout").call_reference([x, rng], {"rate": 0.25, "layer": 2})
    mask = kept(1000, rng, 0.25, 2)
    np.testing.assert_array_equal(y, np.where(mask, x * np.float32(1 / 0.75), 0))
