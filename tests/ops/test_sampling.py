"""Tokens that are drawn: how often each, against frequencies that NumPy computes; what a draw depends on; what was there."""

import numpy as np
import pytest

import aicf
from aicf.ops.sampling import multiply_high, share_of
from aicf.ops.schema import schema_of

LOGITS = np.log([0.4, 0.3, 0.2, 0.1])
DRAWS = 6000


def draw(
    logits, seen=None, temperature=1.0, top_k=0, top_p=1.0, penalty=1.0, seeds=None, places=None, draws=DRAWS
):
    logits = np.atleast_2d(np.asarray(logits, np.float32)).repeat(draws, 0)
    seen = (
        np.zeros(logits.shape, np.bool_)
        if seen is None
        else np.broadcast_to(np.asarray(seen, np.bool_), logits.shape)
    )
    rng = np.random.default_rng()
    seeds = rng.integers(2**63, size=len(logits)) if seeds is None else np.asarray(seeds)
    places = np.arange(len(logits), dtype=np.int32) if places is None else np.asarray(places, np.int32)
    numbers = [np.array(x, np.float32) for x in (temperature, top_k, top_p, penalty)]
    (token,) = schema_of("sample_tokens").call_reference([logits, seen, seeds, places, *numbers], {})
    return token


def frequencies(logits, draws=DRAWS, **how):
    return np.bincount(draw(logits, draws=draws, **how), minlength=len(logits)) / draws


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "how, want",
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, np.array([16, 9, 4, 1]) / 30),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_k": 99}, [0.4, 0.3, 0.2, 0.1]),
        ({"top_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.3}, [1, 0, 0, 0]),
        ({"top_p": 0.71}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"top_p": 1.0}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.5}, [1, 0, 0, 0]),
        ({"temperature": 0}, [1, 0, 0, 0]),
        ({"temperature": 1e-30}, [1, 0, 0, 0]),
        ({"temperature": 1e-45}, [1, 0, 0, 0]),
    ],
)
def test_how_often_each_token_is_drawn(how, want):
    found = frequencies(LOGITS, DRAWS if max(want) < 1 else 300, **how)
    assert (np.abs(found - want) < 0.03).all() and (found[np.array(want) == 0] == 0).all()


def test_equals_of_the_last_stay():
    logits = np.log([0.1, 0.3, 0.3, 0.3])
    for how in ({"top_k": 2}, {"top_p": 0.5}):
        assert (np.abs(frequencies(logits, **how) - np.array([0, 1, 1, 1]) / 3) < 0.03).all()
    assert (draw(logits, temperature=0, draws=300) == 1).all()  # the first of equals


def test_what_was_said_is_said_less():
    logits = np.array([2.0, 1.0, -1.0])
    found = frequencies(logits, seen=[True, False, True], penalty=2.0)
    want = np.exp([1.0, 1.0, -2.0])
    assert (np.abs(found - want / want.sum()) < 0.03).all()
    assert (draw(logits, seen=[True, False, False], temperature=0, penalty=3.0, draws=300) == 1).all()


def test_a_draw_follows_from_its_seed_and_its_place():
    logits = np.random.default_rng().normal(size=50)
    first = draw(logits, seeds=[5, 6, 5, 5], places=[0, 0, 1, 0], draws=4)
    assert first[0] == first[3]
    many = draw(logits, seeds=np.full(200, 7), places=np.arange(200), draws=200)
    assert len(set(many.tolist())) > 10
    np.testing.assert_array_equal(many, draw(logits, seeds=np.full(200, 7), places=np.arange(200), draws=200))


def test_a_greatest_that_is_no_finite_number_has_no_token():
    for bad in ([np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]):
        for temperature in (0.0, 1.0):
            assert (draw(bad, temperature=temperature, draws=2) == -1).all()
    assert (draw([-np.inf, 3.0], draws=9) == 1).all()


def test_products_and_shares_are_exact():
    rng = np.random.default_rng()
    for a, b in rng.integers(2**64, size=(200, 2), dtype=np.uint64):
        assert int(multiply_high(a, b)) == int(a) * int(b) >> 64
    for total in rng.integers(1, 2**50, size=100):
        for p in rng.random(2).astype(np.float32):
            part = int(p * np.float32(2**24))
            assert int(share_of(total, p)) == max(1, -(-int(total) * part // 2**24))
    assert int(share_of(np.int64(7), np.float32(1))) == 7


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_in_a_call(device):
    seen, made = np.zeros((2, 9), np.bool_), np.zeros((2, 9), np.bool_)
    if device == "cuda":
        pytest.importorskip("torch")
        import torch

        def to(x):
            return torch.from_numpy(np.asarray(x)).cuda()

        def back(x):
            return x.cpu().numpy()
    else:
        to = back = np.asarray
    seen[:, 3] = True
    out = to(made)
    aicf.op_call(
        "mark_tokens",
        [
            to(seen),
            to(np.array([[1, 8, 2]] * 2, np.int32)),
            to(np.array([0, 4], np.int32)),
            to(np.array([2, 3], np.int32)),
        ],
        [out],
    )
    assert [np.flatnonzero(row).tolist() for row in back(out)] == [[1, 8], [1, 2, 3, 8]]
    token = to(np.zeros(2, np.int32))
    scalars = [to(np.array(x, np.float32)) for x in (0.0, 0.0, 1.0, 9.0)]
    logits = to(np.arange(18, dtype=np.float32).reshape(2, 9))
    aicf.op_call(
        "sample_tokens",
        [logits, out, to(np.array([1, 2])), to(np.array([0, 0], np.int32)), *scalars],
        [token],
    )
    assert back(token).tolist() == [7, 7]
