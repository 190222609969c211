"""NVTX ranges around every op, where the package is; nothing where it is not."""

from __future__ import annotations

import sys
import timeit
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.dispatch import annotate


@pytest.fixture
def ranges(monkeypatch):
    """Messages pushed and, as None, popped."""
    log: list = []
    domain = SimpleNamespace(
        get_event_attributes=lambda message: message,
        push_range=log.append,
        pop_range=lambda: log.append(None),
    )
    nvtx = ModuleType("nvtx")
    nvtx.get_domain = lambda name: domain
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    monkeypatch.delenv("AICF_NVTX", raising=False)
    annotate.domain.cache_clear()
    yield log
    annotate.domain.cache_clear()


@pytest.mark.spec("B12")
def test_each_call_is_a_range_with_kind_variant_tensors_and_stream(ranges):
    x = np.ones((3, 5), np.float32)
    for _ in range(2):
        aicf.op_call("relu", [x], [x])
    message = "relu -> cpu.elementwise_loop.v2 f32[3x5] stream=0x0"
    assert ranges == [message, None] * 2


@pytest.mark.parametrize(
    "old", [SimpleNamespace(), SimpleNamespace(get_domain=lambda name: SimpleNamespace())]
)
def test_an_old_nvtx_has_no_ranges_and_breaks_nothing(old, ranges, monkeypatch):
    """Before 0.2.8 it had no domains to ask for, before 0.2.12 none with ranges by attributes."""
    monkeypatch.setitem(sys.modules, "nvtx", old)
    annotate.domain.cache_clear()
    assert annotate.domain() is None
    x = np.ones(3, np.float32)
    aicf.op_call("relu", [x], [x])
    assert ranges == []


@pytest.mark.spec("B12")
def test_each_step_of_a_plan_is_a_range_even_when_it_fails(ranges):
    model = nn.Model({"x": aicf.TensorSpec((4, 3))}).add(nn.Linear(3, 2)).add(nn.ReLU())
    program = aicf.compile(model, device="cpu")
    program.run({"x": np.ones((4, 3), np.float32)})
    assert len([m for m in ranges if m]) == len(program.executed) == ranges.count(None)
    assert ranges[0].startswith(f"gemm + bias_add + relu -> {program.executed[0]} f32[4x3]")
    ranges.clear()
    with pytest.raises(ZeroDivisionError):
        annotate.annotated(lambda: 1 // 0, "broken")()
    assert ranges == ["broken", None]


def test_aicf_nvtx_0_turns_them_off(ranges, monkeypatch):
    monkeypatch.setenv("AICF_NVTX", "0")
    annotate.domain.cache_clear()

    def call():
        pass

    assert annotate.annotated(call, "x") is call
    x = np.ones(3, np.float32)
    aicf.op_call("relu", [x], [x])
    assert not ranges


def test_without_the_package_they_cost_next_to_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    annotate.domain.cache_clear()
    try:
        assert annotate.domain() is None
        best = min(timeit.repeat(annotate.domain, number=1000, repeat=20)) / 1000
        assert best < 2e-6  # 0.05 us where nothing else runs
    finally:
        annotate.domain.cache_clear()
