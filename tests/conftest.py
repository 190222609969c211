"""Markers: `spec("A6")` names the row of docs/spec.md that a test proves; `gpu` needs an NVIDIA GPU and skips without one; of
`sample(n)` n sets of parameters run, of `sample(n, each="op")` n for each `op`, of `sample(n, always=which)` those too of which that is
true, of all tests with one `pool=` some; and all with AICF_TEST_ALL=1. docs/testing.md says what is where."""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import pytest

from aicf.device.runtime import cuda_missing

sys.path.append(str(Path(__file__).parents[1]))  # for `benchmarks`, which is not installed
sys.path.append(str(Path(__file__).parent))  # for `draws`, wherever tests begin

from draws.seeds import VARIABLE, run_number, run_seed
from hypothesis import core as hypothesis_core
from untouched import pytest_make_collect_report  # noqa: F401  (a hook)

os.environ[VARIABLE] = run_seed()  # workers and processes that tests start draw the same
hypothesis_core.global_force_seed = run_number()  # unless --hypothesis-seed is another
ROWS_FILE = os.environ.get("AICF_SPEC_REPORT")  # `make spec` collects (row, test, outcome) here

# Processes that test side by side have a core each; a BLAS with as many threads as there are cores makes them wait for each
# other. They inherit this from the first, which imports this file before it starts them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

os.environ.setdefault(
    "AICF_CHECK", "ops"
)  # a new op's reference is held to its scalar function wherever a test uses it

os.environ.setdefault("AICF_VERIFY", "on")  # each pass leaves a graph that the verifier accepts

EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))
CLEAN_KERNELS = "AICF_CLEAN_KERNELS"  # what is compiled is told here: tests/cuda/clean_kernels.py


def pytest_configure(config: pytest.Config) -> None:
    """The processes of a run share a folder of compiled code, found by content as users' is: thousands of launches are of hundreds
    of kernels. It begins empty, unless AICF_TEST_CACHE names one, as `make test` does. Tests of the cache itself have folders of
    their own, and tests of what is compiled compile it."""
    if hasattr(config, "workerinput"):
        return  # it inherits what the first process has set
    config.pluginmanager.register(Failures(config))
    folder = tempfile.TemporaryDirectory(prefix="aicf-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ.update(AICF_CACHE="on", AICF_CACHE_DIR=os.environ.get("AICF_TEST_CACHE", folder.name))
    if os.environ.get("AICF_ACCEPT") == "1":
        found = tempfile.TemporaryDirectory(prefix="aicf-clean-")
        os.environ[CLEAN_KERNELS] = found.name
        config.add_cleanup(functools.partial(_accept, found))


class Failures:
    """Names them at once: a run that is ended by its time has not told of any. The seed of the draws comes before all."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_sessionstart(self) -> None:
        if reporter := self.config.pluginmanager.get_plugin("terminalreporter"):
            reporter.write_line(f"{VARIABLE}={run_seed()} draws the same tests and cases again")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and (reporter := self.config.pluginmanager.get_plugin("terminalreporter")):
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash and crash.message else "see below"
            reporter.write_line(f"failed: {report.nodeid}: {why}", flush=True)


def _accept(found: tempfile.TemporaryDirectory[str]) -> None:
    sys.path.append(str(Path(__file__).with_name("cuda")))
    import clean_kernels

    clean_kernels.accept(found.name)
    found.cleanup()


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for a GPU that will be skipped is there once, not for thousands of sets of parameters."""
    definition, runs = metafunc.definition, metafunc.config.pluginmanager.hasplugin("dry_run")
    if definition.get_closest_marker("gpu") and not runs and cuda_missing():
        definition.own_markers[:] = [
            _first(m) if m.name == "parametrize" else m for m in definition.own_markers
        ]


def _first(mark: pytest.Mark) -> pytest.Mark:
    names, values, *others = mark.args
    kwargs = {k: v[:1] if isinstance(v, list) else v for k, v in mark.kwargs.items()}
    return pytest.mark.parametrize(names, list(values)[:1], *others, **kwargs).mark


@pytest.hookimpl(trylast=True)  # after -k and -m: of what those leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    of_files = any(".py" in arg for arg in config.args)
    left_out = [] if EVERYTHING else _beyond_samples(items, of_files)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]
    reason = None
    for item in items:
        if "gpu" in item.keywords:
            reason = reason or cuda_missing() or "available"
            if reason != "available":
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))


POOLS = {"machine code": 2, "on the model": 5, "on the host": 4, "simulated": 1}  # how many tests of each run


def _beyond_samples(items: list[pytest.Item], of_files: bool) -> list[pytest.Item]:
    """Of a test that is marked `sample(n)`, those sets of parameters that are not among n drawn ones; and all sets of those tests of
    a pool that are not drawn, but for what runs `always`. The draw follows from the seed of the run: the commit, or AICF_TEST_SEED. On a
    GPU all run, but of tests that are marked with `gpu=True`. Where files are named on the command line, pools have no limit."""
    groups: dict[tuple[str, str], dict[int | None, list[pytest.Item]]] = {}
    pools: dict[str, set[tuple[str, str]]] = {pool: set() for pool in POOLS}
    for item in items:
        mark = item.get_closest_marker("sample")
        if mark and (mark.kwargs.get("gpu") or "gpu" not in item.keywords):
            each = mark.kwargs.get("each")
            value = id(item.callspec.params[each]) if each else None
            test = item.location[0], getattr(item, "originalname", item.name)
            groups.setdefault(test, {}).setdefault(value, []).append(item)
            if (pool := mark.kwargs.get("pool")) and not of_files:
                pools[pool].add(test)
    seed, undrawn = run_seed(), set()
    for pool, tests in pools.items():
        undrawn |= set(
            random.Random(f"{pool} {seed}").sample(sorted(tests), max(0, len(tests) - POOLS[pool]))
        )
    left_out = []
    for test, parts in groups.items():
        draw = random.Random(f"{test[1]} {seed}")
        for part in parts.values():
            mark = part[0].get_closest_marker("sample")
            always = mark.kwargs.get("always", lambda **params: False)
            drawn = 0 if test in undrawn else mark.args[0]
            rest = draw.sample(part, max(0, len(part) - drawn))
            left_out += [
                item for item in rest if not always(**getattr(item, "callspec", NO_PARAMETERS).params)
            ]
    return left_out


class NO_PARAMETERS:
    params: dict[str, object] = {}


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end and compilers leave much garbage: looking through all of it was a tenth of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _tell_rows(item: pytest.Item, outcome: str) -> None:
    rows = [row for mark in item.iter_markers("spec") for row in mark.args]
    if rows and ROWS_FILE:
        told = {"rows": rows, "test": item.nodeid, "gpu": "gpu" in item.keywords, "outcome": outcome}
        with Path(ROWS_FILE).open("a") as out:
            out.write(json.dumps(told) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _tell_rows(item, "started")  # a process that dies here has failed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.when == "call" or report.outcome != "passed":
        _tell_rows(item, report.outcome)
    return report


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Name the benchmark results that were measured with other kernels than today's, after a run of all tests; nothing fails of it.
    The digests of all kernels take seconds."""
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if not everything or config.option.keyword or config.option.markexpr:
        return
    try:
        from benchmarks.results import stale
    except ImportError:
        return  # a source distribution has no benchmarks
    if lines := stale():
        terminalreporter.section("benchmark results that are not of today's kernels", blue=True)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def device_pair() -> tuple[str, ...]:
    """The devices of this machine: cpu, and cuda where there is one."""
    return ("cpu",) if cuda_missing() else ("cpu", "cuda")
