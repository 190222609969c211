"""Ops with bodies, without one: types that follow from operands alone are inferred; those that follow from the body are refused, by a message
that says so."""

from __future__ import annotations

import re
from collections import Counter

import pytest

pytest.importorskip("jaxlib")

from draws.seeds import rng

from aicf.errors import TypeInferenceError
from aicf.frontends.stablehlo import infer_op

from .instances.making import MAKERS, Maker

NEEDED = {"case", "if", "map"}  # the types of their results are those that the body returns
GIVEN = {"reduce_scatter"}  # its results are never inferred
TOLERANT = {"all_reduce", "reduce", "reduce_window", "scatter", "select_and_scatter", "sort", "while"}
DRAWS = 12


def shapes(types: list[str]) -> list[str]:
    """Without element types, which a reduction's body may widen."""
    return [re.sub(r"(complex<)?[a-z]\d?[a-z\d]*>*(?=[,>])", "", t, count=1) for t in types]


def drawn(name: str):
    """Valid instances with bodies, of the kind that tests against StableHLO's own draw."""
    for number in range(20 * DRAWS):
        seed = int(rng("bodies", name, number).integers(2**32))
        given = MAKERS[name](Maker(seed), name)
        if given.bodies:
            yield seed, given


def inferred(given, bodies):
    return infer_op(given.name, given.operands, given.attributes, None, bodies)


@pytest.mark.spec("E4")
@pytest.mark.parametrize("name", sorted(TOLERANT))
def test_where_types_do_not_need_the_body_an_empty_one_is_tolerated(name):
    """And the body's own checks are made of a body that is there."""
    seen = Counter()
    for seed, given in drawn(name):
        try:
            full = inferred(given, given.bodies)
        except TypeInferenceError as refused:
            assert refused.op, (seed, given)
            seen["refused for its body"] += 1
            continue
        for empty in (None, [""] * len(given.bodies), ["{}"] * len(given.bodies)):
            found = inferred(given, empty)
            assert shapes(found) == shapes(full), (seed, given, found, full)
        broken = ['^bb0(): "stablehlo.return"() : () -> ()'] * len(given.bodies)
        with pytest.raises(TypeInferenceError) as refused:
            inferred(given, broken)
        assert re.fullmatch(r"[CI]\d+|bodies", refused.value.constraint), (seed, refused.value)
        seen["inferred"] += 1
        if seen["inferred"] == DRAWS:
            return
    assert seen["inferred"] >= 3, seen


@pytest.mark.spec("E4")
@pytest.mark.parametrize("name", sorted(NEEDED))
def test_where_types_follow_from_the_body_an_empty_one_is_refused(name):
    for number, (seed, given) in enumerate(drawn(name)):
        inferred(given, given.bodies)
        for empty in (None, [""] * len(given.bodies), ["{}"] * len(given.bodies)):
            with pytest.raises(TypeInferenceError) as refused:
                inferred(given, empty)
            said = refused.value.message
            assert refused.value.op == name and re.search("empty|not given|at least one branch", said), (
                seed,
                said,
            )
        if number == DRAWS:
            return


def test_every_op_with_bodies_is_of_one_kind():
    kinds = {name for name in MAKERS if next(iter(drawn(name)), None) is not None}
    assert kinds == NEEDED | TOLERANT | GIVEN
