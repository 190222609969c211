"""Graphs that nearly are what is recognised: whatever recognition does with them, their results stay. Recognisers enrol by `RECOGNISERS`."""

import numpy as np
import pytest
from draws import near_misses
from draws.near_misses import NearMiss, Slip
from draws.seeds import rng, seeded

from aicf.graph.recognise.run import RECOGNISERS
from examples import EVERYTHING

DRAWS, SPELLINGS = 20 if EVERYTHING else 5, 6


def test_every_form_has_spellings():
    assert set(near_misses.SPELLINGS) == set(RECOGNISERS), (
        "write spellings of the form in tests/draws/near_misses.py"
    )


@pytest.mark.spec("A12", "A15")
@pytest.mark.parametrize("form", RECOGNISERS)
def test_near_misses_keep_their_results(form, request):
    draw = rng(request.node.nodeid)
    for case in [case for _ in range(DRAWS) if (case := near_misses.draw(draw, form=form))]:
        assert (said := near_misses.check(case)) is None, f"{said}\n{near_misses.script(case)}"


@pytest.mark.parametrize("form", RECOGNISERS)
def test_spellings_without_a_slip_are_recognised(form, request):
    draw = rng(request.node.nodeid)
    for _ in range(SPELLINGS):
        case = NearMiss(form, int(draw.integers(2**31)), form == "gradient of a norm")
        said, found = near_misses.recognised(case)
        assert not said and form in found, f"{case}: {said or found}"


KNOWN = {
    "the gradient of a label that is left out": NearMiss("cross entropy", 4, True),
    "a floor under log probabilities": NearMiss("cross entropy", 2, False, Slip("a floor", 4, 0, -30.0)),
    "one label for another": NearMiss("cross entropy", 1863455861, False, Slip("one for another", 3, 0, 1.1)),
    "the label of a row of the same number": NearMiss(
        "cross entropy", 5, False, Slip("the row's number", 1, 0, 0.0)
    ),
    "a floor under a variance": NearMiss("gradient of a norm", 3, True, Slip("a floor", 2, 0, 0.001)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_near_misses_that_were_taken_for_the_form(name):
    assert near_misses.check(KNOWN[name]) is None


def test_a_case_is_drawn_and_computed_again_from_its_words():
    one, other = (near_misses.draw(seeded("again"), form="attention") for _ in range(2))
    assert one == other and eval(repr(one), vars(near_misses)) == one
    s, results = near_misses.built(one)
    again, same = near_misses.built(other)
    for x, y in zip(near_misses.values(s, results), near_misses.values(again, same)):
        for a, b in zip(x, y):
            np.testing.assert_array_equal(a, b)
