"""Tuning data (A7, B13): what selection makes of it, and how it is merged."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings

from aicf import default_registry
from aicf.errors import TuningError
from aicf.registry.measured import Measured, Timing
from aicf.registry.select import Selector, select
from aicf.registry.tuning import Tuning, tuning_of
from aicf.registry.tuning_file import text_of

from .synthetic import kernel, region, registry_of
from .tuning_cases import CPU, HEADER, PATIENT, REGIONS, one_of, tunings

# --- what selection makes of it -----------------------------------------------------------------------------------------


@pytest.mark.spec("A7", "B13")
def test_a_measured_time_overrides_the_prediction_and_both_are_told():
    r = region("relu", (4, 7))
    registry = registry_of(kernel("cpu.fast.v1", us=1.0), kernel("cpu.slow.v1", us=5.0))
    tuning = Tuning(HEADER, [Measured(r, {"cpu.fast.v1": Timing(9.0)})])
    assert select(r, CPU, registry).kernel_id == "cpu.fast.v1"
    selection = select(r, CPU, registry, tuning)
    assert selection.kernel_id == "cpu.slow.v1"
    assert selection.ranked[1].us == 9.0
    assert selection.to_json()["candidates"][1]["predicted_us"] == 1.0
    best = select(r, CPU, registry, one_of("cpu.fast.v1", us=3.0, r=r))
    assert "measured 3 (1 us predicted)" in str(best)


@pytest.mark.spec("B13")
def test_a_kernel_that_was_found_wrong_is_rejected_for_that_region_only():
    registry = registry_of(kernel("cpu.fast.v1", us=1.0), kernel("cpu.slow.v1", us=5.0))
    r, other = region("relu", (4, 7)), region("relu", (5, 7))
    tuning = Tuning(HEADER, [Measured(r, {}, {"cpu.fast.v1": "3 elements are wrong"})])
    assert len(tuning) == 0 and tuning, "refusals count"
    selection = select(r, CPU, registry, tuning)
    assert selection.kernel_id == "cpu.slow.v1"
    (rejection,) = selection.rejected
    assert str(rejection.reject) == "failed when it was tuned: 3 elements are wrong"
    assert select(other, CPU, registry, tuning).kernel_id == "cpu.fast.v1"


@pytest.mark.spec("A7", "B13")
def test_the_order_of_registration_and_of_entries_changes_no_choice():
    variants = [kernel(f"cpu.k{n}.v1", us=1.0 + n) for n in range(6)]
    entries = [Measured(r, {v.id: Timing(7.0) for v in variants[:4]}) for r in REGIONS]
    want = None
    for seed in range(5):
        random.Random(seed).shuffle(variants)
        random.Random(seed).shuffle(entries)
        shuffled = [
            Measured(m.region, dict(random.Random(seed).sample(list(m.timings.items()), 4))) for m in entries
        ]
        selector = Selector(registry_of(*variants), CPU, Tuning(HEADER, shuffled))
        got = [[(c.variant.id, c.us) for c in selector(r).ranked] for r in REGIONS]
        assert want is None or got == want
        want = got
    assert [id for id, _ in want[0]] == ["cpu.k4.v1", "cpu.k5.v1", *(f"cpu.k{n}.v1" for n in range(4))]


@pytest.mark.parametrize("us", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_are_refused(us):
    with pytest.raises(TuningError, match="more than 0 and finite"):
        one_of("cpu.a.v1", us=us)
    with pytest.raises(TuningError, match="more than 0 and finite"):
        tuning_of({("some region", "cpu.a.v1"): us}, CPU, default_registry())


def test_a_region_given_twice_is_refused():
    with pytest.raises(TuningError, match="a region twice"):
        Tuning(HEADER, [Measured(REGIONS[0], {}), Measured(REGIONS[0], {})])


# --- merging ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B13")
@settings(PATIENT)
@given(tunings(), tunings(), tunings())
def test_a_merge_is_the_same_in_any_order(a, b, c):
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c)) == a.merge(b, c)
    assert a.merge(a) == a
    assert text_of(a.merge(b)) == text_of(b.merge(a))


def test_of_two_times_the_one_of_more_runs_stays_then_the_calmer_then_the_faster():
    def merged(*timings):
        both = [Tuning(HEADER, [Measured(REGIONS[0], {"cpu.a.v1": t})]) for t in timings]
        return both[0].merge(both[1])[REGIONS[0].key, "cpu.a.v1"]

    assert merged(Timing(5.0, 0.5, 30), Timing(4.0, 0.1, 20)) == 5.0
    assert merged(Timing(5.0, 0.1, 30), Timing(4.0, 0.5, 30)) == 5.0
    assert merged(Timing(5.0, 0.1, 30), Timing(4.0, 0.1, 30)) == 4.0


def test_the_newest_header_stays():
    old = Tuning(replace(HEADER, date="2020-01-01T00:00:00+00:00", versions={"numba": "0.1"}))
    assert old.merge(one_of("cpu.a.v1")).header == one_of("cpu.a.v1").merge(old).header == HEADER


def test_a_refusal_outweighs_a_time():
    wrong = Tuning(HEADER, [Measured(REGIONS[0], {}, {"cpu.a.v1": "wrong"})])
    merged = one_of("cpu.a.v1", "cpu.b.v1").merge(wrong)
    assert list(merged) == [(REGIONS[0].key, "cpu.b.v1")]
    assert merged.refused(REGIONS[0].key, "cpu.a.v1") == "wrong"


def test_an_update_takes_the_place_of_whole_regions():
    old = one_of("cpu.a.v1", "cpu.b.v1").merge(one_of("cpu.a.v1", r=REGIONS[1]))
    new = old.updated(one_of("cpu.a.v1", us=7.0))
    assert dict(new) == {(REGIONS[0].key, "cpu.a.v1"): 7.0, (REGIONS[1].key, "cpu.a.v1"): 2.0}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"device": "h200"}, "different devices"),
        ({"sms": 9}, "different devices"),
        ({"kernels": {"cpu.a.v1": "0" * 12}}, "different kernels"),
        ({"ops": {"relu": "0" * 12}}, "different ops"),
    ],
)
def test_times_of_other_devices_or_kernels_are_not_merged(change, message):
    other = Tuning(replace(HEADER, **change))
    digests = {"kernels": {"cpu.a.v1": "1" * 12}, "ops": {"relu": "1" * 12, "add": "2" * 12}}
    one = Tuning(replace(HEADER, **digests), one_of("cpu.a.v1").regions.values())
    with pytest.raises(TuningError, match=message):
        one.merge(other)
    with pytest.raises(TuningError, match=message):
        one.updated(other)


def test_a_diff_has_what_changed_appeared_and_went():
    a = one_of("cpu.a.v1", "cpu.b.v1", us=1.0)
    b = one_of("cpu.a.v1", "cpu.c.v2", us=1.0).updated(one_of("cpu.a.v1", "cpu.c.v2", us=3.0))
    assert [(c.kernel_id, c.before, c.after) for c in a.diff(b)] == [
        ("cpu.a.v1", 1.0, 3.0), ("cpu.b.v1", 1.0, None), ("cpu.c.v2", None, 3.0),
    ]  # fmt: skip
    assert a.diff(a) == []
