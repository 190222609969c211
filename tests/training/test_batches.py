"""Batches and Tokens: every row once an epoch, windows that fit, going on from any place, errors of the thread that is ahead."""

import threading
import time

import numpy as np
import pytest

from aicf.errors import FeedError
from aicf.training import Batches, Tokens


def test_every_row_once_an_epoch_in_an_order_of_its_own():
    x = np.arange(23)
    batches = Batches({"x": x, "y": x * 2}, 5, seed=3)
    epochs = [list(batches.at(n)) for n in range(2)]
    for epoch in epochs:
        assert [len(b["x"]) for b in epoch] == [5, 5, 5, 5, 3] and all(
            (b["y"] == 2 * b["x"]).all() for b in epoch
        )
        assert sorted(np.concatenate([b["x"] for b in epoch])) == list(x)
    assert any((a["x"] != b["x"]).any() for a, b in zip(*epochs))
    assert [b["x"].tolist() for b in batches.at(1, 3)] == [b["x"].tolist() for b in epochs[1][3:]]
    assert len(Batches({"x": x}, 5, drop_last=True)) == 4 == len(list(Batches({"x": x}, 5, drop_last=True)))
    assert np.concatenate([b["x"] for b in Batches({"x": x}, 5, shuffle=False)]).tolist() == x.tolist()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_tokens_are_windows_and_what_follows_them(tmp_path, shuffle, prefetch):
    for count in (4 * 6 + 1, 4 * 6 + 2, 211):
        tokens = np.arange(count, dtype=np.uint16)
        tokens.tofile(tmp_path / "t")
        batches = Tokens(tmp_path / "t", 6, 4, shuffle=shuffle, prefetch=prefetch)
        for epoch in range(3):
            feeds = list(batches.at(epoch))
            assert len(feeds) == len(batches) >= 1
            seen = np.concatenate([f["x"] for f in feeds])
            assert (
                seen.shape == (4 * len(feeds), 6)
                and seen.dtype == np.int32
                and feeds[0]["y"].dtype == np.int64
            )
            assert len(np.unique(seen)) == seen.size  # windows don't overlap
            assert all((f["y"] == f["x"] + 1).all() for f in feeds)
            again = list(batches.at(epoch, len(feeds) - 1))
            assert len(again) == 1 and (again[0]["x"] == feeds[-1]["x"]).all()


def test_a_part_of_the_tokens():
    tokens = np.arange(100)
    train, valid = Tokens(tokens, 4, 2, last=80), Tokens(tokens, 4, 2, first=80, shuffle=False)
    assert max(f["y"].max() for f in train) < 80 and next(iter(valid))["x"][0].tolist() == [80, 81, 82, 83]


@pytest.mark.parametrize(
    "make, what",
    [
        (lambda: Tokens(np.arange(24), 6, 4), "24 tokens make no batch of 4 sequences of 6"),
        (lambda: Tokens(np.ones(99), 6, 4), "one run of integers"),
        (lambda: Tokens(np.ones((9, 9), int), 6, 4), "one run of integers"),
        (lambda: Tokens("/no/such/file", 6, 4), "can't be read as tokens"),
        (lambda: Tokens(np.arange(99), 0, 4), "length can't be 0"),
        (lambda: Batches({"x": np.ones(3), "y": np.ones(4)}, 2), "differ in length"),
        (lambda: Batches({"x": np.array(3.0)}, 2), "differ in length"),
        (lambda: Batches({"x": np.ones(3)}, 0), "size can't be 0"),
    ],
)
def test_what_can_t_be(make, what):
    with pytest.raises(FeedError, match=what):
        make()


def test_what_the_thread_raises_is_raised_and_the_thread_ends():
    class Broken(Tokens):
        def _made(self, epoch, batch):
            yield {"x": np.zeros(1)}
            raise RuntimeError("the disk is gone")

    feeds = Broken(np.arange(99), 4, 2).at(0)
    next(feeds)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        next(feeds)
    left = Tokens(np.arange(9999), 4, 2, prefetch=1).at(0)
    next(left)
    left.close()
    until = time.monotonic() + 10
    while any(t.name == "aicf batches" for t in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(t.name == "aicf batches" for t in threading.enumerate())
