"""A program that meets many sizes of a batch remembers the last ones: its memory has a bound."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.dispatch import loader
from aicf.registry import select

LAYERS, SIZES = (nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), 60


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["run", "replay"])
def test_kernels_and_choices_of_many_batch_sizes_are_not_all_kept(how, monkeypatch):
    monkeypatch.setattr(loader, "KEPT", 8)
    monkeypatch.setattr(select, "REMEMBERED", 64)
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=4)
    for layer in LAYERS:
        model.add(layer)
    program = aicf.compile(model, device="cpu")
    first, explanation = program.capture({"x": np.ones((4, 5), np.float32)}), program.explain()
    before = str(explanation.verbose())
    weights = {n: program.get(n).astype(float) for n in program.variables.names()}
    w1, b1, w2, b2 = (weights[f"{n}.{part}"] for n in (0, 2) for part in ("weight", "bias"))
    rng = np.random.default_rng(0)
    for batch in [*range(1, SIZES), 4, 1]:
        x = rng.standard_normal((batch, 5), np.float32)
        got = getattr(program, how)({"x": x})["output"].numpy()
        np.testing.assert_allclose(got, np.maximum(x @ w1.T + b1, 0) @ w2.T + b2, rtol=1e-4, atol=1e-5)
        held = program._executor.loader._kernels
        assert len(held) <= 8 and set(held) >= {
            (s.kernel_id, s.region) for s in program.compiled({"batch": batch}).plan.steps
        }
    (selector,) = (
        c.cell_contents
        for c in program._plans._specialise.__closure__
        if isinstance(c.cell_contents, select.Selector)
    )
    assert max(map(len, (selector._best, selector._told, *selector.compositions.values()))) < 400
    assert first.segments
    assert str(explanation.verbose()) == before, "what was chosen once can still be told"


def test_a_plan_of_more_kernels_than_are_kept_is_built_once(monkeypatch):
    monkeypatch.setattr(loader, "KEPT", 2)
    model = nn.Model({"x": aicf.TensorSpec((2, 3))})
    for n in range(4, 9):
        model.add(nn.Linear(n - 1, n))
    program = aicf.compile(model, device="cpu")
    built = []
    real = loader._Kernel
    monkeypatch.setattr(loader, "_Kernel", lambda *args: built.append(args) or real(*args))
    for _ in range(3):
        program.run({"x": np.ones((2, 3), np.float32)})
    assert len(built) == len({(s.kernel_id, s.region) for s in program.plan.steps}) > 4
