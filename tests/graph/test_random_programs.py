"""Random whole programs: fused, strict and one kernel per op, against float64 with a bound on the error of each element."""

from __future__ import annotations

import numpy as np
import pytest
from draws import balls
from draws.graphs import check, drawn, shrunk, unfused
from draws.programs import wrong
from draws.seeds import rng

import aicf
from examples import EVERYTHING

from .chains import Fn

MANY = 3000 if EVERYTHING else 4  # other ones for each commit, so no loop of theirs is in a cache
MODES = {
    "fused": {},
    "strict": {"numerics": "strict"},
    "unfused": {"numerics": "strict", "registry": unfused("cpu")},
}


@pytest.mark.spec("A6", "A15", "C6")
@pytest.mark.sample(2)
@pytest.mark.parametrize("some", range(4))
def test_random_programs_compute_what_numpy_does(some, request):
    draw = rng(request.node.nodeid)
    for seed in draw.integers(2**31, size=MANY // 4):
        program = drawn(int(seed))
        if said := check(program):
            small = shrunk(program, check)
            pytest.fail(f"{said}\n\nshrunk to: {check(small)}\n{small}")


def test_an_op_that_computes_something_else_is_found_and_shrunk_to_itself(monkeypatch):
    monkeypatch.setitem(balls.ORACLES, "reverse", lambda x, dims: x)
    fails = lambda p: next(filter(None, map(wrong, p.run().values(), map(p.exact().get, p.outputs))), None)  # noqa: E731
    program = next(p for p in map(drawn, range(100)) if fails(p))
    assert [step.kind for step in shrunk(program, fails).steps] == ["reverse"]


# --- the softmax family at its extremes -------------------------------------------------------------------------------


def extreme(dtype: aicf.DType) -> np.ndarray:
    """Numbers that the type has exactly, a multiple of 2 apart so that halving them is exact."""
    x = np.random.default_rng(3).integers(-6, 7, (8, 5)) * 2.0
    x[1] = x[0] + {aicf.bf16: 128.0}.get(dtype, 1024.0)  # shifted: the same softmax
    x[2, 1:4] = -np.inf  # masked
    x[3] = -np.inf  # fully masked: no number
    x[4] = [2.0**14, 2.0**14, -(2.0**14), 0, 2]
    x[5] = -(2.0**14)  # all alike, and far down
    x[6, 2] = np.inf
    x[7, 1] = np.nan
    return x


def family(x: np.ndarray, axis: int) -> dict[str, np.ndarray]:
    """By numbers in float64, of what is halved first and doubled at the end."""
    with np.errstate(all="ignore"):
        half = x * 0.5
        most = half.max(axis, keepdims=True, initial=-np.inf)
        total = np.exp(half - most).sum(axis, keepdims=True)
        return {
            "softmax": 2 * np.exp(half - most) / total,
            "log_softmax": 2 * (half - most - np.log(total)),
            "logsumexp": 2 * np.where(np.isinf(most), most, most + np.log(total)),
        }


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "A15")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [aicf.f32, aicf.f16, aicf.bf16], ids=str)
def test_softmax_and_its_kin_at_their_extremes_with_maps_around_them(dtype, mode):
    def emit(ctx, x):
        for kind in ("softmax", "log_softmax", "logsumexp"):
            ctx.builder.output(kind, getattr(ctx, kind)(x * 0.5) * 2)
        return ctx.copy(x)

    close = {aicf.f32: 2e-6, aicf.f16: 3e-3, aicf.bf16: 2e-2}[dtype]
    for x in (extreme(dtype), np.zeros((3, 0)), np.zeros((0, 3))):
        model = aicf.nn.Model({"x": aicf.TensorSpec(x.shape, dtype)}).add(Fn(emit))
        got = aicf.compile(model, device="cpu", **MODES[mode]).run({"x": x.astype(dtype.numpy)})
        for kind, want in family(x, -1).items():
            made = got[kind].numpy().astype(np.float64)
            np.testing.assert_allclose(made, want, rtol=close, atol=close, err_msg=kind)
        if x.size:
            first, shifted = got["softmax"].numpy()[:2]
            assert first.tobytes() == shifted.tobytes()
            assert np.isnan(got["softmax"].numpy().astype(float)[[3, 6, 7]]).all()
