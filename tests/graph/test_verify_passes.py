"""AICF_VERIFY: a graph is verified after each pass, and the error names the pass that broke it."""

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError
from aicf.graph import compile as compiling
from aicf.types import TensorSpec, f16


def model():
    return nn.Model({"x": TensorSpec((4, 6))}).add(nn.Linear(6, 3)).add(nn.ReLU())


@pytest.mark.spec("E3")
def test_the_pass_that_broke_it_is_named(monkeypatch):
    monkeypatch.setenv("AICF_VERIFY", "on")
    recognise = compiling.recognise

    def breaks(ctx, *args):
        found = recognise(ctx, *args)
        op = next(op for op in ctx.builder.graph.ops if op.kind == "relu")
        value = ctx.builder.graph.values[op.outputs[0]]
        value.spec = TensorSpec(value.shape, f16)
        return found

    monkeypatch.setattr(compiling, "recognise", breaks)
    with pytest.raises(VerifyError, match="recognition broke the graph") as refused:
        aicf.compile(model(), device="cpu")
    assert refused.value.expected is not None and refused.value.got is not None


def test_off_verifies_once_and_each_mode_verifies(monkeypatch):
    stages = []
    after = compiling.verify_after
    monkeypatch.setattr(
        compiling, "verify_after", lambda stage, graph: stages.append(stage) or after(stage, graph)
    )
    monkeypatch.setenv("AICF_VERIFY", "on")
    program = aicf.compile(
        model(), "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.1)
    )
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    assert np.isfinite(program({"x": x, "y": np.arange(4) % 3})["loss"])
    assert {stage.split(":")[0] for stage in stages} == {
        "emission",
        "keeping channels last",
        "recognition",
        "what follows emission",
    }
    monkeypatch.setenv("AICF_VERIFY", "off")
    aicf.compile(model(), device="cpu")
