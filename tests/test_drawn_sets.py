"""Parameter sets are drawn before their tests are created: as many as the mark says, the same for a seed, and none that the user names is missing."""

from __future__ import annotations

import random

import drawn_sets
import numpy as np
import pytest

MODULE = """
import pytest

@pytest.mark.sample({some})
@pytest.mark.parametrize("b", range(7))
@pytest.mark.parametrize("a", "xyz")
def test_some(a, b): ...

@pytest.mark.sample({each}, each="a")
@pytest.mark.parametrize("b", range(7))
@pytest.mark.parametrize("a", "xyz")
def test_each(a, b): ...

@pytest.mark.sample(1, always=lambda a: a % 5 == 0)
@pytest.mark.parametrize("a", range(20))
def test_always(a): ...

@pytest.mark.parametrize("a", range(3))
def test_all(a): ...

class TestOfPool:
    @pytest.mark.sample(2, pool="simulated", always=lambda a: a == 4)
    @pytest.mark.parametrize("a", range(5))
    def test_one(self, a): ...

    @pytest.mark.sample(2, pool="simulated", always=lambda a: a == 4)
    @pytest.mark.parametrize("a", range(5))
    def test_two(self, a): ...

@pytest.mark.gpu
@pytest.mark.sample({each}, each=lambda a: a % 3, gpu=True)
@pytest.mark.parametrize("a", range(30))
def test_gpu_each(a): ...

@pytest.mark.gpu
@pytest.mark.sample({some}, like="it", gpu=True)
@pytest.mark.parametrize("a", range(30))
def test_gpu_like(a): ...

@pytest.mark.gpu
@pytest.mark.sample({some}, like="it", gpu=True)
@pytest.mark.parametrize("a", [*range(29, 3, -1)])
def test_gpu_like_it(a): ...

@pytest.mark.sample(1)
@pytest.mark.parametrize("a", [0, 1, pytest.param(2, marks=pytest.mark.gpu), pytest.param(3, marks=pytest.mark.gpu)])
def test_on_both(a): ...
"""
POOL = "TestOfPool::"


@pytest.fixture
def collected(tmp_path, monkeypatch):
    """What a run with a seed and these arguments collects, as names; `created`: how many items there were before any was left out."""
    rng = np.random.default_rng(int.from_bytes(drawn_sets.run_seed().encode(), "little"))
    some, each = (int(n) for n in rng.integers(1, 5, 2))
    (tmp_path / "test_it.py").write_text(MODULE.format(some=some, each=each))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def collect(seed: str, *args: str) -> list[str]:
        class Recorder:
            @pytest.hookimpl(tryfirst=True)
            def pytest_collection_modifyitems(self, items):
                collect.created = len(items)

            def pytest_collection_finish(self, session):
                self.names = [item.nodeid.partition("::")[2] for item in session.items]

        monkeypatch.setattr(drawn_sets, "run_seed", lambda: seed)
        recorder, common = Recorder(), ["--collect-only", "--rootdir=.", "-p", "no:terminal"]
        common += ["-p", "no:cacheprovider", "-p", "no:unraisableexception", "--import-mode=importlib"]
        plugins = [drawn_sets.SampledSets(collect.no_gpu), recorder]
        assert pytest.main([*common, *(args or ["."])], plugins=plugins) == 0
        return recorder.names

    collect.some, collect.each, collect.no_gpu = some, each, False
    return collect


def of(test: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{test}[")]


def test_as_many_run_as_the_mark_says_and_no_others_are_created(collected):
    names = collected("one")
    assert len(of("test_some", names)) == collected.some
    per_value = [sum(f"[{a}-" in name for name in of("test_each", names)) for a in "xyz"]
    assert per_value == [collected.each] * 3
    assert {f"test_always[{a}]" for a in (0, 5, 10, 15)} <= set(names) and len(of("test_always", names)) <= 5
    assert len(of("test_all", names)) == 3
    ones, twos = (of(f"{POOL}test_{which}", names) for which in ("one", "two"))
    undrawn, drawn = sorted((ones, twos), key=len)
    assert undrawn == [undrawn[0].partition("[")[0] + "[4]"], (
        "its pool draws another test; what always runs, runs"
    )
    assert len(drawn) in (2, 3)
    assert collected.created <= len(names) + 2, "at most the drawn sets of the test that its pool leaves out"


def test_a_seed_draws_the_same_again_and_others_draw_others(collected):
    assert collected("one") == collected("one")
    assert len({tuple(collected(seed)) for seed in "abc"}) > 1


def test_what_the_user_names_runs(collected):
    seed = drawn_sets.run_seed()
    for name in ("test_some[x-0]", "test_always[13]", f"{POOL}test_one[1]"):
        assert collected(seed, f"test_it.py::{name}") == [name]
    assert collected(seed, "-k", "test_always and 13") == ["test_always[13]"]
    assert len(collected(seed, "-k", "test_some")) == collected.some
    assert len({name.partition("[")[0] for name in collected(seed, "test_it.py") if POOL in name}) == 2


def test_generators_without_a_seed_draw_the_same_again():
    """conftest.py seeds `random` for each test, by the run's seed and the test's name; NumPy's generators follow."""

    def drawn(seed: str) -> list[int]:
        random.seed(seed)
        return [random.randrange(2**32), *(int(np.random.default_rng().integers(2**40)) for _ in range(2))]

    assert drawn("one") == drawn("one") != drawn("other")
    assert len(set(drawn("one"))) == 3
    assert np.random.default_rng(7).integers(2**40) == np.random.default_rng(7).integers(2**40)


def test_of_those_for_a_gpu_some_run_there_and_tests_that_are_alike_draw_alike(collected):
    """`-m gpu` draws as a run of all does, and creates one item of a test that has nothing for a GPU."""
    for seed in ("one", "two", drawn_sets.run_seed()):
        everything, names = collected(seed), collected(seed, "-m", "gpu")
        assert names == [n for n in everything if "gpu" in n or n in ("test_on_both[2]", "test_on_both[3]")]
        assert collected.created == len(names) + 6, "the tests that have nothing for a GPU"
        numbers = [int(n.partition("[")[2][:-1]) for n in of("test_gpu_each", names)]
        assert [sum(n % 3 == part for n in numbers) for part in range(3)] == [collected.each] * 3
        alike, other = (
            {n.partition("[")[2] for n in of(test, names)} for test in ("test_gpu_like", "test_gpu_like_it")
        )
        assert len(alike) == len(other) == collected.some
        assert alike - {f"{n}]" for n in range(4)} <= other, "a set that both have is drawn of both"


def test_without_a_gpu_a_test_of_both_devices_has_one_skip(collected):
    with_gpu, collected.no_gpu = collected("one"), True
    assert set(with_gpu) - set(collected("one")) == {"test_on_both[3]"}
