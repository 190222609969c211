"""Kernels that are right but for one thing, and sessions that tune a few regions of one op."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from registry.synthetic import interpret, kernel, region

from aicf.device.runtime import runtime
from aicf.graph.tune import Question, tune
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selector
from aicf.registry.variant import HostCall
from aicf.rows import RegionSpec

CPU = runtime("cpu")


def spoiled(id: str, spoil, us: float = 1.0, **more):
    """A kernel that is right but for what `spoil(operands, results)` does behind it."""

    def build(region, device):
        right = interpret(region, device).function

        def run(operands, results):
            right(operands, results)
            spoil(operands, results)

        return HostCall(run)

    return replace(kernel(id, us=us, **more), build=build)


def asking(registry: KernelRegistry, *regions: RegionSpec):
    def ask(tuning):
        selector = Selector(registry, CPU.spec, tuning)
        return Question(tuple(selector(r) for r in regions), tuple(selector.asked))

    return ask


def tuned(registry: KernelRegistry, *regions: RegionSpec, seconds: float = 5.0, **more):
    return tune(asking(registry, *regions), CPU, registry, seconds, **more)


def wait(seconds: float):
    return lambda operands, results: time.sleep(seconds)


def nan(operands, results):
    results[0].reshape(-1)[3] = np.nan


def error(operands, results):
    raise ZeroDivisionError("of all things")


RELU = region("relu", (33, 7))
