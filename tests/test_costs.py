"""What a run reports of its costs: sums over its processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from costs import DEAREST, Costs

from aicf.code_cache import ledger


def test_costs_of_workers_are_added_and_the_dearest_are_named():
    first = Costs()
    for n in range(2):
        worker = Costs()
        worker.tests.update({f"tests/test_it.py::test_{i}": float(i) for i in range(20)})
        worker.other.update({"collection": 5.0 + n, "compilers": 7.0, "compiled": 3, "disk": 1})
        output: dict = {}
        worker.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace(workeroutput=output)))
        first.pytest_testnodedown(SimpleNamespace(workeroutput=output))
    first.pytest_testnodedown(SimpleNamespace())  # a worker that crashed
    total, share, *dearest = first.lines()
    assert total.startswith(
        "CPU seconds: 380 of tests, 11 of imports and collection; by the clock 14 in compilers (6 loops"
    )
    assert "2 were read from disk" in total and share.startswith("the dearest, 76%")
    assert len(dearest) == DEAREST and dearest[0] == "   38.0  tests/test_it.py::test_19"


def test_a_short_run_reports_nothing():
    assert Costs().lines() == []


@pytest.mark.parametrize("test", ["test_it.py::test_one[a]", "test_it.py::test_one"])
def test_a_test_costs_its_cpu_time_and_what_was_compiled_in_it(test):
    costs = Costs()
    protocol = costs.pytest_runtest_protocol(SimpleNamespace(nodeid=test))
    next(protocol)
    ledger.note("loop", "compiled", 2.5)
    sum(range(3_000_000))
    with pytest.raises(StopIteration):
        protocol.send(True)
    assert costs.other == {"compiled": 1, "compilers": 2.5}
    assert list(costs.tests) == ["test_it.py::test_one"] and costs.tests["test_it.py::test_one"] > 0.01
