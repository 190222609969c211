"""Heads of a projection on Hopper: attention reads and writes them where they lie, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn

SIZE, HEADS, ROWS = 128, 2, 256


def model():
    return nn.Model({"x": aicf.TensorSpec((2, ROWS, SIZE))}).add(nn.MultiHeadAttention(SIZE, HEADS))


@pytest.mark.spec("D15")
def test_no_copies_stand_beside_attention():
    plan = aicf.explain_for(model(), "h200", "grad", loss=nn.MeanSquaredError(), policy="bf16").plan
    kinds = {op.kind.name for step in plan.steps if step.kernel_id for op in step.region.ops}
    assert not kinds & {"slice", "transpose", "concatenate"}
    ours = [s for s in plan.steps if s.region.kind.name.startswith("attention")]
    forward, backward = (s.kernel_id for s in ours)
    assert forward in ("cuda.attention_wgmma.v1", "cuda.attention_few.v1")  # of few queries
    assert backward == "cuda.attention_grad_wgmma.v1"
    assert all(not t.contiguous for s in ours for t in s.region.tensors if t.rank == 4)


@pytest.mark.gpu
@pytest.mark.spec("D15")
def test_gradients_through_views_are_those_of_copies():
    x, y = np.random.default_rng(4).normal(size=(2, 2, ROWS, SIZE)).astype(np.float32)
    asked = {"loss": nn.MeanSquaredError(), "policy": "bf16"}
    got, want = (
        {
            name: t.numpy()
            for name, t in aicf.compile(model(), "grad", device=device, **asked)({"x": x, "y": y}).items()
        }
        for device in ("cuda", "cpu")
    )
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=0.05, atol=0.02 * np.abs(array).max(), err_msg=name)
