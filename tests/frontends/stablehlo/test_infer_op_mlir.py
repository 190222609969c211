"""`infer_op` against StableHLO's own inference and verification, on random instances of every op: the same accepted, with the same types."""

import os
import re

import pytest

pytest.importorskip("jaxlib")

from aicf.errors import TypeInferenceError
from aicf.frontends.stablehlo import infer_op

from .instances import MAKERS, instances
from .mlir_worker import Answer, Instance, ask

COUNT = 20_000 if os.environ.get("AICF_TEST_ALL") else 2_000
# Where aicf answers otherwise, and why: (ours, MLIR's) -> whether it is one of these.
KNOWN = {
    "MLIR multiplies sizes in 64 bits without looking at what does not fit": lambda ours, theirs: (
        "64 bits" in ours.error and theirs.accepted
    ),
    "MLIR's inference reads what is not there and ends the process": lambda ours, theirs: theirs.aborted,
    "MLIR splits operands in two halves and leaves one over unread where they are odd": lambda ours, theirs: (
        re.search(r"operands: takes (inputs|init_values).*; got", ours.error) is not None and theirs.accepted
    ),
    "MLIR's gather gives a scalar the bounds of its indices, a type that MLIR itself can't read": lambda ours, theirs: (
        ours.accepted
        and theirs.accepted
        and re.fullmatch(r"tensor<[^?x]*, #stablehlo.bounds<[\d?]+>>", theirs.types[0])
    ),
}


def answer(given: Instance) -> Answer:
    try:
        return Answer(
            True, infer_op(given.name, given.operands, given.attributes, given.results, given.bodies)
        )
    except TypeInferenceError as refused:
        assert refused.op and refused.constraint and refused.message, (given, refused)
        return Answer(False, None, str(refused))


@pytest.mark.spec("E1")
@pytest.mark.spec("E6")
def test_the_same_is_accepted_with_the_same_types():
    given = instances(COUNT, seed=20261126)
    theirs = ask(given)
    ours = [answer(each) for each in given]
    differ = [
        (each, mine, other)
        for each, mine, other in zip(given, ours, theirs)
        if (mine.accepted, mine.types) != (other.accepted, other.types)
        and not any(known(mine, other) for known in KNOWN.values())
    ]
    assert not differ, "\n".join(
        f"{each}\n  ours   {mine}\n  MLIR's {other}" for each, mine, other in differ[:5]
    )
    accepted = [each.accepted for each in theirs]
    assert 0.3 < sum(accepted) / len(accepted) < 0.9  # both answers are common
    assert sum(each.aborted for each in theirs) <= COUNT / 200
    assert {each.name for each, yes in zip(given, accepted) if yes} == set(MAKERS)
    assert len({each.name for each, yes in zip(given, accepted) if not yes}) > 0.8 * len(MAKERS)


def test_a_difference_would_be_seen():
    (theirs,) = ask([Instance("add", ["tensor<2xf32>", "tensor<3xf32>"])])
    assert not theirs.accepted and "Mismatched" in theirs.error
    (theirs,) = ask([Instance("reshape", ["tensor<4xf32>"], {}, ["tensor<2x2xf32>"])])
    assert theirs.accepted and theirs.types == ["tensor<2x2xf32>"]
