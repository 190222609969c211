"""tools/torch_coverage.py: which numbers it calls wrong, and that a run that was stopped goes on. The models are of this file: it draws no others."""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
TOOLS = Path(__file__).parents[3] / "tools"
if not TOOLS.is_dir():
    pytest.skip("a source distribution has no tools", allow_module_level=True)
sys.path.insert(0, str(TOOLS))

import torch_coverage as tool  # noqa: E402
from draws.seeds import rng  # noqa: E402
from torch import nn  # noqa: E402
from torch_eager import GRADIENT, Eager, far, inference, training  # noqa: E402
from torch_results import Measured, Results, page  # noqa: E402

HALVES = [torch.bfloat16, torch.float16]
TYPES = [torch.float32, *HALVES]


class Counted(nn.Module):
    """A model with buffers of floats and integers, a BatchNorm, and several outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(width, 9, bias=False), nn.BatchNorm1d(9), nn.Linear(9, 3)

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.first(x)))
        return {"logits": self.last(hidden), "hidden": hidden, "class": self.last(hidden).argmax(-1)}


def eager(draw, dtype, numbers=training):
    torch.manual_seed(int(draw.integers(1 << 30)))
    width = int(draw.integers(4, 40))
    return Eager(
        numbers, Counted(width).to(dtype), [torch.randn(int(draw.integers(8, 50)), width).to(dtype)], {}
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_in_another_order_are_as_good(dtype, request):
    """The same model computed in f64, whose results are rounded, and with its features permuted."""
    draw = rng(request.node.nodeid)
    for _ in range(6):
        of = eager(draw, dtype)
        assert of.difference({k: t if t is None else t.clone() for k, t in of.wanted.items()}) == ""
        rounded = {
            k: None if t is None else t.to(of.wanted[k].dtype) if t.is_floating_point() else t
            for k, t in of.truth.items()
        }
        rounded["output 2"] = of.wanted["output 2"]
        assert of.difference(rounded) == ""
        order = torch.from_numpy(draw.permutation(of.model.first.in_features))
        permuted = copy.deepcopy(of.model)
        permuted.first.weight.data = permuted.first.weight.data[:, order]
        found = training(permuted, permuted, [of.args[0][:, order]], {})
        found[GRADIENT + "first.weight"] = found[GRADIENT + "first.weight"][:, torch.argsort(order)]
        found["output 2"] = of.wanted["output 2"]
        assert of.difference(found) == ""


def faulty(fault, t):
    """A tensor with a fault; a number of it that is moved, by more than the sums of a type explain."""
    floats = t.is_floating_point()
    if fault == "none":
        return None
    if fault == "another shape":
        return t.reshape(-1)[1:] if t.ndim else t.reshape(1)
    if fault == "another type":
        return t.double() if floats else t.int()
    if fault == "NaN":
        return torch.full_like(t, float("nan")) if floats else t + 1
    moved = t.clone()
    moved.reshape(-1)[0] += max(64 * torch.finfo(t.dtype).eps, 1e-3) * t.abs().max() if floats else 1
    return moved


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_any_tensor_that_is_wrong_is_named(dtype, request):
    """A drawn tensor (an output, a gradient or a buffer) with a drawn fault."""
    draw = rng(request.node.nodeid)
    seen, of = Counter(), eager(draw, dtype)
    names = [name for name, t in of.wanted.items() if t is not None and t.any()]
    for _ in range(40):
        name = str(draw.choice(names))
        fault = str(draw.choice(["none", "another shape", "another type", "NaN", "a number"]))
        wrong = of.difference({**of.wanted, name: faulty(fault, of.wanted[name])})
        assert name in wrong, (name, fault)
        seen[fault] += 1
    assert len(seen) == 5, seen


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_in_halves_nobody_may_be_further_off_than_eight_times_eager(dtype, request):
    draw = rng(request.node.nodeid)
    for _ in range(50):
        truth = torch.from_numpy(draw.standard_normal((6, 7)))
        bits = torch.finfo(dtype).eps * truth.abs().max()
        own, times = float(draw.uniform(1, 30)), float(draw.uniform(1, 40))
        want = truth.clone()
        want[0, 0] += own * bits
        got = truth.clone()
        got[3, 3] -= own * times * bits
        found = far("x", got.to(dtype), [want.to(dtype)], truth, 0.0)
        if not 6 < times < 10:  # rounding moves each by an ulp
            assert bool(found) == (times > 8), (own, times, found)


def test_inference_is_compared_too_and_keeps_its_buffers(request):
    of = eager(rng(request.node.nodeid), torch.float32, inference)
    assert of.finite() and of.repeats()
    assert {"output 0", "norm.running_mean", "norm.num_batches_tracked"} <= set(of.wanted)
    moved = {**of.wanted, "norm.running_mean": of.wanted["norm.running_mean"] + 1}
    assert "norm.running_mean is off" in of.difference(moved)


def some(draw, n):
    """A run with drawn figures."""
    ops = [f"aten.op{i}.default" for i in draw.integers(0, 9, 3)]
    return Measured(
        f"timm model{n}", str(draw.choice(["f32", "bf16"])), int(draw.integers(99)), Counter({(op, "PyTorch's own is faster"): 2 for op in ops}),
        3, Counter({"a | reason\nof two lines": 1}), str(draw.choice(["", "output 0 is off"])), None, seconds=1.5,
    )  # fmt: skip


def test_a_run_is_a_line_and_read_again(tmp_path, request):
    draw = rng(request.node.nodeid)
    runs = [some(draw, n) for n in range(20)] + [Measured("timm no", refused="eager PyTorch: no")]
    results = Results(tmp_path / "deep" / "runs.jsonl", again=False)
    for run in runs:
        results.add(run)
    assert list(Results(results.path, again=False).runs.values()) == runs
    assert not any(run.wrong for run in Results(results.path, again=True).runs.values())
    assert results.missing("timm no", ("f32",), 1) == ()
    assert results.missing("timm new", ("f32", "f16"), 1) == ("f32",)
    results.add(Measured("timm new", "f16"))
    assert results.missing("timm new", ("f32", "f16"), 1) == ()
    text = page(runs, "1")
    assert "a \\| reason of two lines" in text and "eager PyTorch (1)" in text
    assert len({line.count("|") for line in text.splitlines() if line.startswith("| timm model")}) == 1


def asked(**more):
    return argparse.Namespace(
        **{
            "seed": "1",
            "types": "f32",
            "alone": "",
            "only": "",
            "count": 3,
            "jobs": 1,
            "each": 9,
            "layers": 9,
            "limit": 100,
            **more,
        }
    )


def a_call(name, types, alone, limit, layers):
    """In a process of its own, in place of a model's run."""
    if name == "dies":
        os._exit(3)
    return [Measured(name, t, taken=1) for t in types]


def test_a_run_that_was_stopped_goes_on_and_a_process_that_dies_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "drawn", lambda seed: iter(["a", "dies", "b", "c"]))
    monkeypatch.setattr(tool, "measured", a_call)
    monkeypatch.setattr(tool, "get_context", lambda _: multiprocessing.get_context("fork"))
    results = Results(tmp_path / "runs.jsonl", again=False)
    done = list(tool.all_measured(asked(), results))
    assert [(m.name, m.error) for m in done] == [("a", ""), ("dies", "its process ended"), ("b", "")]
    before = results.path.read_text()
    more = list(tool.all_measured(asked(count=4, types="f32,f16"), Results(results.path, again=False)))
    assert Counter(m.name for m in more) == {"a": 2, "dies": 2, "b": 2, "c": 2}
    added = results.path.read_text().removeprefix(before).splitlines()
    assert len(added) == 5, "f16 of three, both of the last"


def test_a_model_with_buffers_is_compared_in_each_type():
    torch.manual_seed(0)
    made = Counted(8), (torch.randn(16, 8),), {}
    for dtype in ("f32", random.choice(("bf16", "f16"))):
        found = tool.run("a model", made, dtype, alone=True)
        assert not found.differs and found.taken > 10 and found.dtype == dtype
