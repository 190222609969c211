"""A plugin: at its end a run says where its CPU time went, also one that its time ends. All processes count: workers, and processes that
tests start and wait for. AICF_TEST_COSTS names a file for the costs of every test, as JSON."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from aicf.code_cache import ledger

DEAREST, MINIMUM = 10, 60.0  # how many tests are named; CPU seconds below which a run reports nothing


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


class Costs:
    """Of this process; of its workers too, where it is the first. They come with the report of each test.

    tests  CPU seconds of each test function, all its sets of parameters together
    code   how many loops and kernels each compiled
    other  CPU seconds of imports and collection, seconds of the clock in compilers, and how many loops and kernels were compiled or read from disk
    """

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.code: Counter[str] = Counter()
        self.other: Counter[str] = Counter()
        self._collection = 0.0  # what no report has said yet
        self._began, self._made = 0.0, []  # of the test that runs

    def pytest_collection_finish(self) -> None:
        self._collection = time.process_time()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self._began = _cpu()
        with ledger.collected() as self._made:
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        if report.when == "teardown":
            other = Counter(made.how for made in self._made)
            other["compilers"] = sum(made.seconds for made in self._made)
            if self._collection:
                other["collection"], self._collection = self._collection, 0.0
            report.costs = [_cpu() - self._began, dict(other)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of a test of this process, or of a worker's, whose attributes come with it."""
        if costs := getattr(report, "costs", None):
            test, (seconds, other) = report.nodeid.partition("[")[0], costs
            self.tests[test] += seconds
            self.code[test] += other.get("compiled", 0)
            self.other.update(other)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for line in self.lines():
            terminalreporter.write_line(line)
        if path := os.environ.get("AICF_TEST_COSTS"):
            costs = {"tests": self.tests, "compiled": self.code, "other": self.other}
            Path(path).write_text(json.dumps(costs, indent=1) + "\n")

    def lines(self) -> list[str]:
        total = sum(self.tests.values())
        if total < MINIMUM:
            return []
        other, dearest = self.other, self.tests.most_common(DEAREST)
        share = sum(seconds for _, seconds in dearest) / total
        return [
            f"CPU seconds: {total:.0f} of tests, {other['collection']:.0f} of imports and collection; "
            f"by the clock {other['compilers']:.0f} in compilers ({other['compiled']:.0f} loops and kernels; "
            f"{other['disk']:.0f} were read from disk)",
            f"the dearest, {share:.0%} of all:",
            *(
                f"  {seconds:5.1f}  {test}" + (f", {self.code[test]} compiled" if self.code[test] else "")
                for test, seconds in dearest
            ),
        ]


def end_at_sigterm() -> None:
    """As at Ctrl-C: a run that its time ends still has its summary."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
