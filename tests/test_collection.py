"""Garbage collection is put off within a block, and goes on behind it, whatever happens there."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from aicf.collection import uncollected


@pytest.fixture(autouse=True)
def enabled():
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_within_blocks_and_on_behind_the_outermost():
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error():
    with pytest.raises(ZeroDivisionError), uncollected():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off():
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_the_last_of_several_threads_switches_it_on():
    inside, leave = threading.Event(), threading.Event()

    def work():
        with uncollected():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(60)
    with uncollected():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_collects():
    with uncollected():
        child = os.fork()
        if not child:
            enabled = gc.isenabled()
        else:
            _, status = os.waitpid(child, 0)
    if not child:  # which leaves the block that it was made in, and goes into another
        with uncollected():
            enabled = enabled and not gc.isenabled()
        os._exit(0 if enabled and gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(status) == 0
    assert gc.isenabled()
