"""Views in graphs: transpose, slice, reverse and reshape, beside what reads and writes them. The oracle is NumPy alone."""

from __future__ import annotations

import numpy as np
import pytest
from nn.mlp import on_each_device

import aicf

from .chains import model_of

X = np.arange(16, dtype=np.float32).reshape(4, 4) / 7 - 1


def run(emit, x=X, device="cpu", **more):
    program = aicf.compile(model_of(emit, x.shape[1], x.shape[0]), device=device, **more)
    return program.run({"x": x})["output"].numpy()


# A value of the run's own, of which an op that reads elsewhere is the last reader: its storage must not be taken over.
ELSEWHERE = {
    "transpose": (lambda ctx, y: ctx.transpose(y, perm=(1, 0)), lambda y: y.T),
    "reverse": (lambda ctx, y: ctx.reverse(y, dims=(1,)), lambda y: y[:, ::-1]),
}


@on_each_device
@pytest.mark.spec("C6")
@pytest.mark.parametrize("kind", ELSEWHERE)
@pytest.mark.parametrize("numerics", ["fused", "strict"])
def test_what_is_read_elsewhere_is_not_written_over(kind, numerics, device):
    view, numpy = ELSEWHERE[kind]

    def emit(ctx, x):
        y = ctx.gemm(x, x)  # its own region: what follows reads it from storage
        return ctx.gemm(
            ctx.add(view(ctx, y), y), x
        )  # what is added is a temporary: it might lie where y does

    y = X @ X
    expected = (numpy(y) + y) @ X
    np.testing.assert_allclose(run(emit, device=device, numerics=numerics), expected, rtol=1e-4, atol=1e-4)
