"""Markers: `spec("A6")` names the row of docs/spec.md that a test proves; `gpu` needs an NVIDIA GPU and skips without one; of
`sample(n)` n sets of parameters run, of `sample(n, each="op")` n for each `op`, of `sample(n, always=which)` those too of which that is
true, of all tests with one `pool=` some; and all with AICF_TEST_ALL=1. docs/testing.md says what is where."""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from aicf.device.runtime import cuda_missing

sys.path.append(str(Path(__file__).parents[1]))  # for `benchmarks`, which is not installed
sys.path.append(str(Path(__file__).parent))  # for `draws`, wherever tests begin

from costs import Costs, end_at_sigterm
from drawn_sets import SampledSets
from draws.seeds import VARIABLE, run_number, run_seed
from hypothesis import core as hypothesis_core
from untouched import pytest_make_collect_report  # noqa: F401  (a hook)

os.environ[VARIABLE] = run_seed()  # workers and processes that tests start draw the same
hypothesis_core.global_force_seed = run_number()  # unless --hypothesis-seed is another
# A busy machine is slow to draw: that is no fault of a test.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")


def _repeatable(create: Callable[..., np.random.Generator]) -> Callable[..., np.random.Generator]:
    """A generator without a seed of its own takes one from `random`, which is seeded for each test."""

    @functools.wraps(create)
    def default_rng(seed: object = None) -> np.random.Generator:
        return create(random.getrandbits(128) if seed is None else seed)

    return default_rng


np.random.default_rng = _repeatable(np.random.default_rng)
ROWS_FILE = os.environ.get("AICF_SPEC_REPORT")  # `make spec` collects (row, test, outcome) here

# Processes that test side by side have a core each; a BLAS with as many threads as there are cores makes them wait for each
# other. They inherit this from the first, which imports this file before it starts them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

os.environ.setdefault(
    "AICF_CHECK", "ops"
)  # a new op's reference is held to its scalar function wherever a test uses it

os.environ.setdefault("AICF_CALIBRATION", "off")  # choices are the same on every GPU of a kind

os.environ.setdefault("AICF_VERIFY", "on")  # each pass leaves a graph that the verifier accepts

EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))
CLEAN_KERNELS = "AICF_CLEAN_KERNELS"  # what is compiled is told here: tests/cuda/clean_kernels.py


def pytest_configure(config: pytest.Config) -> None:
    """The processes of a run share a folder of compiled code, found by content as users' is: thousands of launches are of hundreds
    of kernels. It begins empty, unless AICF_TEST_CACHE names one, as `make test` does. Tests of the cache itself have folders of
    their own, and tests of what is compiled compile it."""
    if not EVERYTHING:
        config.pluginmanager.register(SampledSets(no_gpu=cuda_missing() is not None))
    config.pluginmanager.register(Costs())
    config.pluginmanager.register(Garbage())
    if hasattr(config, "workerinput"):
        _share_cores(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
        return  # it inherits what the first process has set
    end_at_sigterm()
    if (
        cuda_missing()
    ):  # XLA optimises for a fifth of the time of its tests on the host, which run each function once
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    config.pluginmanager.register(Failures(config))
    folder = tempfile.TemporaryDirectory(prefix="aicf-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ.update(AICF_CACHE="on", AICF_CACHE_DIR=os.environ.get("AICF_TEST_CACHE", folder.name))
    if os.environ.get("AICF_ACCEPT") == "1":
        found = tempfile.TemporaryDirectory(prefix="aicf-clean-")
        os.environ[CLEAN_KERNELS] = found.name
        config.add_cleanup(functools.partial(_accept, found))


def _share_cores(processes: int) -> None:
    """Processes that test side by side have a part of the cores each: where all of them took all, the helpers that compile kernels for
    each would be hundreds."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_getaffinity = lambda pid: set(cores[: max(1, len(cores) // processes)])


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
    return pytest.mark.parametrize(names, list(itertools.islice(values, 1)), *others, **kwargs).mark


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None
    for item in items:
        if "gpu" in item.keywords:
            reason = reason or cuda_missing() or "available"
            if reason != "available":
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Python's collector of garbage would look through all tests again and again while they are created."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end and compilers leave much garbage: looking through all of it was a tenth of a run. The little
    garbage of collection stays, too: to find it takes seconds."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class Garbage:
    """Between modules, objects that stay from the tests so far are frozen: a worker ends with millions of them, and each test that
    collects garbage, for a weak reference or a peak of memory, would look through all of them for seconds."""

    EVERY = 20.0  # CPU seconds

    def __init__(self) -> None:
        self.last = time.process_time()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None):
        done = yield
        between = nextitem is not None and nextitem.path != item.path
        if between and time.process_time() - self.last > self.EVERY:
            gc.collect()
            gc.freeze()
            self.last = time.process_time()
        return done


def _tell_rows(item: pytest.Item, outcome: str) -> None:
    rows = [row for mark in item.iter_markers("spec") for row in mark.args]
    if rows and ROWS_FILE:
        told = {"rows": rows, "test": item.nodeid, "gpu": "gpu" in item.keywords, "outcome": outcome}
        with Path(ROWS_FILE).open("a") as out:
            out.write(json.dumps(told) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _tell_rows(item, "started")  # a process that dies here has failed
    random.seed(f"{run_seed()} {item.nodeid}")  # so that what a test draws is drawn again


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    if report.when == "call" or report.outcome != "passed":
        _tell_rows(item, report.outcome)
    return report


@pytest.fixture
def device_pair() -> tuple[str, ...]:
    """The devices of this machine: cpu, and cuda where there is one."""
    return ("cpu",) if cuda_missing() else ("cpu", "cuda")
