"""What a run reports of its costs: sums over its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from costs import DEAREST, Costs

from aicf.code_cache import ledger


def report_of(costs: Costs, test: str, begin=lambda: None):
    """The report of a test's last phase, as a worker serialises it."""
    item = SimpleNamespace(nodeid=test)
    protocol = costs.pytest_runtest_protocol(item)
    next(protocol)
    begin()
    making = costs.pytest_runtest_makereport(item, None)
    next(making)
    report = pytest.TestReport(test, ("", None, ""), {}, "passed", None, "teardown")
    with pytest.raises(StopIteration):
        making.send(report)
    with pytest.raises(StopIteration):
        protocol.send(True)
    return pytest.TestReport._from_json(json.loads(json.dumps(report._to_json())))


def test_costs_of_workers_are_added_and_the_dearest_are_named():
    first = Costs()
    for n in range(2):
        worker = Costs()
        worker._collection = 5.0 + n
        for i in range(20):
            report = report_of(
                worker, f"tests/test_it.py::test_{i}[{n}]", lambda: ledger.note("kernel", "disk")
            )
            report.costs[0] = float(i)
            first.pytest_runtest_logreport(report)
    total, share, *dearest = first.lines()
    assert total.startswith(
        "CPU seconds: 380 of tests, 11 of imports and collection; by the clock 0 in compilers (0 loops"
    )
    assert "40 were read from disk" in total and share.startswith("the dearest, 76%")
    assert len(dearest) == DEAREST and dearest[0] == "   38.0  tests/test_it.py::test_19"


def test_a_short_run_reports_nothing():
    assert Costs().lines() == []


@pytest.mark.parametrize("test", ["test_it.py::test_one[a]", "test_it.py::test_one"])
def test_a_test_costs_its_cpu_time_and_what_was_compiled_in_it(test):
    def work():
        ledger.note("loop", "compiled", 2.5)
        sum(range(3_000_000))

    costs = Costs()
    costs.pytest_runtest_logreport(report_of(costs, test, work))
    assert costs.other == {"compiled": 1, "compilers": 2.5} and costs.code == {"test_it.py::test_one": 1}
    assert list(costs.tests) == ["test_it.py::test_one"] and costs.tests["test_it.py::test_one"] > 0.01


def test_a_run_that_its_time_ends_still_says_what_it_cost(tmp_path):
    """SIGTERM while a test waits: the costs of those before it are in the summary and in the file."""
    (tmp_path / "conftest.py").write_text(
        "import costs\ncosts.MINIMUM = 0.0\ndef pytest_configure(config):\n    config.pluginmanager.register(costs.Costs())\n"
        "    hasattr(config, 'workerinput') or costs.end_at_sigterm()\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import time\ndef test_work():\n    sum(range(10**6))\ndef test_work_too():\n    sum(range(10**6))\n"
        "def test_wait():\n    open('waits', 'w').close()\n    time.sleep(600)\ndef test_wait_too():\n    time.sleep(600)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    xdist = "-p", "xdist.plugin", "-n", "1"
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *xdist, "."], cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": path, "AICF_TEST_COSTS": "costs.json", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        give_up = time.monotonic() + 300
        while not (tmp_path / "waits").exists() and time.monotonic() < give_up and run.poll() is None:
            time.sleep(0.1)
        time.sleep(0.5)  # what workers have sent is read
        run.terminate()
        said, _ = run.communicate(timeout=300)
    finally:
        run.kill()
    assert "test_it.py::test_work" in said, said
    assert "test_it.py::test_work" in json.loads((tmp_path / "costs.json").read_text())["tests"]
