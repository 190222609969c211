"""Threads that take turns: they meet, what they raise comes out, and who waits in vain is told, also from under compiled code."""

from __future__ import annotations

import ctypes

import pytest

from machines.fibers import Fiber, Meeting, Stuck, getcurrent, take_turns


def test_who_meets_goes_on_together_and_meets_again():
    meeting, seen = Meeting(3), []

    def run(name):
        for turn in range(2):
            seen.append((turn, name))
            meeting.wait()

    take_turns([Fiber(lambda name=name: run(name)) for name in "abc"])
    assert [turn for turn, _ in seen] == [0, 0, 0, 1, 1, 1] and set(seen[:3]) == {(0, name) for name in "abc"}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_meeting_that_lacks_somebody_is_told_before_the_others_go_on(compiled):
    meeting, seen = Meeting(3), []
    wait = ctypes.CFUNCTYPE(None)(meeting.wait) if compiled else meeting.wait

    def run():
        wait()
        seen.append(len(told))

    told = []
    with pytest.raises(Stuck, match="2 of 2 threads wait"):
        take_turns([Fiber(run), Fiber(run)], told.append)
    assert seen == [1, 1]


def test_what_one_raises_comes_out():
    def run():
        getcurrent().wait(lambda: True)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        take_turns([Fiber(run), Fiber(run)])
