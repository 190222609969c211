"""A plugin: at its end a run says where its CPU time went. All processes count: workers, and processes that tests start and wait for."""

from __future__ import annotations

import resource
import time
from collections import Counter

import pytest

from aicf.code_cache import ledger

DEAREST, MINIMUM = 10, 60.0  # how many tests are named; CPU seconds below which a run reports nothing


def _cpu() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)


class Costs:
    """Of this process; of its workers too, where it is the first.

    tests  CPU seconds of each test function, all its sets of parameters together
    other  CPU seconds of imports and collection, seconds of the clock in compilers, and how many loops and kernels were compiled or read from disk
    """

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.other: Counter[str] = Counter()

    def pytest_collection_finish(self) -> None:
        self.other["collection"] += time.process_time()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        began = _cpu()
        with ledger.collected() as code:
            done = yield
        self.tests[item.nodeid.partition("[")[0]] += _cpu() - began
        for made in code:
            self.other[made.how] += 1
            self.other["compilers"] += made.seconds
        return done

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self.tests), dict(self.other)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        tests, other = getattr(node, "workeroutput", {}).get("costs", ({}, {}))
        self.tests.update(tests)
        self.other.update(other)

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for line in self.lines():
            terminalreporter.write_line(line)

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
            *(f"  {seconds:5.1f}  {test}" for test, seconds in dearest),
        ]
