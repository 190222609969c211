"""One form for each region (A4), also where only rings of shared operands tell regions apart: against brute force."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pace import least_seconds

from aicf.rows import RegionOp, RegionSpec
from aicf.types import AttrPack, OpKind, TensorDesc, TensorSpec
from examples import examples

X = TensorDesc.dense(TensorSpec((4,)))
Edges = list[tuple[int, int]]


def region_of(edges: Edges, rng=None, tail: bool = False) -> RegionSpec:
    """add(i, j) for every edge, over shared operands; each with a relu after it if there is a tail. Shuffled by `rng`."""
    names = sorted({t for edge in edges for t in edge})
    calls = [("add", edge, ("sum", n)) for n, edge in enumerate(edges)]
    if tail:
        calls += [("relu", (("sum", n),), ("relu", n)) for n in range(len(edges))]
    if rng is not None:
        rng.shuffle(names)
        rng.shuffle(calls)
        made = {call[2] for call in calls}
        calls.sort(key=lambda call: any(t in made for t in call[1]))  # sums first; stable
    number = {t: n for n, t in enumerate([*names, *(call[2] for call in calls)])}
    ops = tuple(
        RegionOp(OpKind(kind), AttrPack(), tuple(number[t] for t in ins), (number[out],))
        for kind, ins, out in calls
    )
    kept = sorted(number[out] for kind, _, out in calls if kind == "relu" or not tail)
    return RegionSpec(ops, (X,) * len(number), tuple(range(len(names))), tuple(kept))


def rings(*lengths: int) -> Edges:
    """Each operand is the first of one sum and the second of another."""
    edges, first = [], 0
    for length in lengths:
        edges += [(first + n, first + (n + 1) % length) for n in range(length)]
        first += length
    return edges


def alike(one: Edges, other: Edges) -> bool:
    """By brute force: whether some renaming of operands makes the one the other."""
    names, others = (sorted({t for edge in edges for t in edge}) for edges in (one, other))
    if len(names) != len(others) or len(one) != len(other):
        return False
    target = sorted(other)
    return any(
        sorted((to[a], to[b]) for a, b in one) == target
        for to in (dict(zip(names, p)) for p in permutations(others))
    )


@pytest.mark.spec("A4")
@examples(60)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4).filter(lambda n: sum(n) <= 8), st.booleans(),
       st.randoms(use_true_random=False))  # fmt: skip
def test_rings_have_one_form_however_they_are_written(lengths, tail, rng):
    plain, shuffled = (region_of(rings(*lengths), r, tail) for r in (None, rng))
    assert shuffled.key == plain.key
    assert shuffled.canonical.canonical == plain.canonical


@pytest.mark.spec("A4")
@pytest.mark.parametrize("tail", [False, True])
def test_rings_of_other_lengths_have_other_forms(tail):
    parted = [(8,), (7, 1), (6, 2), (5, 3), (4, 4), (5, 2, 1), (4, 2, 2), (3, 3, 2), (2, 2, 2, 2), (1,) * 8]
    assert len({region_of(rings(*lengths), None, tail).key for lengths in parted}) == len(parted)


@pytest.mark.spec("A4")
@examples(150)
@given(
    *[st.lists(st.tuples(*[st.integers(0, 4)] * 2), min_size=1, max_size=8)] * 2,
    st.randoms(use_true_random=False),
)
def test_two_regions_have_one_form_exactly_if_they_are_alike(one, other, rng):
    forms = region_of(one, rng).canonical, region_of(other, rng).canonical
    assert (forms[0] == forms[1]) == alike(one, other)
    assert region_of(one, rng).canonical == forms[0]


@pytest.mark.spec("A4")
@pytest.mark.parametrize(
    "edges",
    [
        rings(16),
        rings(7, 9),
        rings(4, 4, 4, 4),
        rings(*[2] * 8),
        [(a, 4 + b) for a in range(4) for b in range(4)],  # all of four with all of four
        [(2 * n, 2 * n + 1) for n in range(16)],  # no two share anything
        [(a, b) for a in range(4) for b in range(4) if a != b],
    ],
    ids=["one ring", "two", "four", "eight", "each with each", "apart", "all pairs"],
)
def test_no_symmetry_takes_long(edges, rng=None):
    """Exchangeable ops are not all tried: 16 of them have 2e13 orders."""
    assert least_seconds(lambda: region_of(edges).canonical, 1) < 1
