"""A draw of parameter sets: which of those of a test that is marked `sample` run. docs/testing.md describes the mark and the pools."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from draws.seeds import run_seed

POOLS = {  # how many tests of each run
    "machine code": 1, "on the model": 3, "on the host": 2, "simulated": 1, "processes": 9,
    "models of PyTorch": 3, "mistakes": 3, "long graphs": 2,
}  # fmt: skip


def selects(config: pytest.Config) -> bool:
    """Whether the command line names tests, such that a draw comes after its selection: a set that it names runs."""
    return _names_tests(config) or (bool(config.option.markexpr) and not only_gpu(config))


def _names_tests(config: pytest.Config) -> bool:
    failed = getattr(config.option, "lf", False)
    return bool(config.option.keyword or failed or any("::" in arg for arg in config.args))


def only_gpu(config: pytest.Config) -> bool:
    """Whether all tests for a GPU are selected, `-m gpu`, and nothing else is: those are drawn of before they are created, too."""
    return config.option.markexpr.strip() == "gpu" and not _names_tests(config)


def names_files(config: pytest.Config) -> bool:
    """Whether the command line names files: all of their tests in pools run, each with its drawn sets."""
    return any(".py" in arg for arg in config.args)


def is_drawn(mark: pytest.Mark | None, on_gpu: bool) -> bool:
    """Tests for a GPU run all their sets there, except where their mark says `gpu=True`."""
    return mark is not None and bool(mark.kwargs.get("gpu") or not on_gpu)


def _always(mark: pytest.Mark) -> Callable[..., bool]:
    return mark.kwargs.get("always", lambda **params: False)


def drawn(mark: pytest.Mark, name: str, sets: Iterable[tuple[Any, dict[str, Any]]]) -> tuple[set, set]:
    """Of (key, parameters) of one test: the keys that are drawn, and those that always run. The seed of the run and the test's name
    decide, so that every process of a run draws the same."""
    sets = list(sets)
    draw, always, like = random.Random(f"{name} {run_seed()}"), _always(mark), mark.kwargs.get("like")
    parts: dict[Any, list[tuple[Any, dict[str, Any]]]] = {}
    for key, params in sets:
        parts.setdefault(_part(mark, params), []).append((key, params))
    chosen = set()
    for part in parts.values():
        n = min(mark.args[0], len(part))
        some = sorted(part, key=lambda s: _rank(like, s[1]))[:n] if like else draw.sample(part, n)
        chosen |= {key for key, _ in some}
    return chosen, {key for key, params in sets if always(**params)}


def _part(mark: pytest.Mark, params: dict[str, Any]) -> Any:
    """What the mark draws of for each: the value of a parameter, by name, or what a function returns for all parameters."""
    each = mark.kwargs.get("each")
    if each is None:
        return None
    return each(**params) if callable(each) else id(params[each])


def _rank(like: str, params: dict[str, Any]) -> bytes:
    """A random one, the same for equal sets of all tests that are drawn `like` each other."""
    words = " ".join([like, run_seed(), *map(str, params.values())])
    return hashlib.blake2b(words.encode(), digest_size=8).digest()


class Lazily:
    """Sets of parameters that a function builds when tests are created of them: one alone where tests for a GPU are skipped."""

    def __init__(self, build: Callable[[], Iterable[Any]]) -> None:
        self.build = build

    def __iter__(self) -> Iterator[Any]:
        return iter(self.build())


def _with_one(calls: list[Any], skipped: Callable[[Any], bool]) -> list[Any]:
    """Without those that are skipped, but for the first."""
    first = next(filter(skipped, calls), None)
    return [c for c in calls if c is first or not skipped(c)]


class SampledSets:
    """A plugin that leaves sets of parameters out: before items are created of them, where the command line selects no tests; else of the
    items that it selects."""

    def __init__(self, no_gpu: bool = False) -> None:
        self.no_gpu = no_gpu
        self.always: set[str] = set()  # ids of items that run although their pool's test is not drawn

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc):
        yield
        definition = metafunc.definition
        mark = definition.get_closest_marker("sample")
        calls, of_gpu = metafunc._calls, definition.get_closest_marker("gpu") is not None
        if only_gpu(metafunc.config) and not of_gpu:  # of no sets there is one item, which is not selected
            calls[:] = [c for c in calls if any(m.name == "gpu" for m in c.marks)]
        if not of_gpu and self.no_gpu:  # a test of both devices has one skip of the GPU, not one for each set
            calls[:] = _with_one(calls, lambda c: any(m.name == "gpu" for m in c.marks))
        if mark is None or selects(metafunc.config):
            return
        groups = [c for c in calls if is_drawn(mark, of_gpu or any(m.name == "gpu" for m in c.marks))]
        chosen, always = drawn(mark, definition.name, ((id(c), c.params) for c in groups))
        left_out = {id(c) for c in groups} - chosen - always
        self.always |= {f"{definition.nodeid}[{c.id}]" for c in groups if id(c) in always}
        calls[:] = [c for c in calls if id(c) not in left_out]

    @pytest.hookimpl(trylast=True)  # after -k and -m
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        groups: dict[str, list[pytest.Item]] = {}
        for item in items:
            if is_drawn(item.get_closest_marker("sample"), "gpu" in item.keywords):
                groups.setdefault(item.nodeid.partition("[")[0], []).append(item)
        left_out: set[str] = set()
        if selects(config):
            for group in groups.values():
                left_out |= self._beyond_draw(group)
        if not names_files(config):
            left_out |= self._beyond_pools(groups)
        if left_out:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
            items[:] = [item for item in items if item.nodeid not in left_out]

    def _beyond_draw(self, group: list[pytest.Item]) -> set[str]:
        """Of selected items of one test, those that are not drawn."""
        mark, name = group[0].get_closest_marker("sample"), getattr(group[0], "originalname", group[0].name)
        sets = [(item.nodeid, item.callspec.params if hasattr(item, "callspec") else {}) for item in group]
        chosen, always = drawn(mark, name, sets)
        self.always |= always
        return {item.nodeid for item in group} - chosen - always

    def _beyond_pools(self, groups: dict[str, list[pytest.Item]]) -> set[str]:
        """The items of tests of pools that are not drawn, except those that always run."""
        pools: dict[str, list[str]] = {pool: [] for pool in POOLS}
        for test, group in groups.items():
            if pool := group[0].get_closest_marker("sample").kwargs.get("pool"):
                pools[pool].append(test)
        left_out: set[str] = set()
        for pool, tests in pools.items():
            undrawn = random.Random(f"{pool} {run_seed()}").sample(
                sorted(tests), max(0, len(tests) - POOLS[pool])
            )
            left_out |= {item.nodeid for test in undrawn for item in groups[test]}
        return left_out - self.always
