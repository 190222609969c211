"""Ops on drawn types, shapes, attributes, layouts and values: every kernel of the host that accepts them, against float64."""

from itertools import islice

import pytest
from draws import ops
from draws.seeds import rng

from aicf.ops.schema import schemas

DRAWS, TRIES = 3, 60  # the rules of products and loops refuse half of the draws or more


@pytest.mark.spec("A12", "A15")
@pytest.mark.sample(4)
@pytest.mark.parametrize("op", [s.name for s in ops.enrolled()])
def test_every_kernel_computes_what_the_reference_does(op, request):
    draw = rng(request.node.nodeid)
    cases = list(islice(filter(None, (ops.draw(draw, "cpu", op) for _ in range(TRIES))), DRAWS))
    assert cases, "no draw fits the op's rule"
    for case in cases:
        assert (said := ops.check(case, "cpu")) is None, f"{case}\n{said}"


def test_ops_with_a_body_alone_are_not_enrolled():
    left_out = {s.name for s in schemas() if s.origin == "aicf"} - {s.name for s in ops.enrolled()}
    assert all(not s.sample_specs or s.reference_fn is None for s in schemas() if s.name in left_out)
