"""Predictions that are corrected by measured regions: equal on each host, and within what the walk leaves out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from draws.questions import regions
from draws.seeds import run_seed

from aicf import default_registry
from aicf.device.calibration import Calibration
from aicf.device.spec import preset
from aicf.registry.nearby import CAUSES, FEATURES, LARGEST, REACH, SHARE, TERM
from aicf.registry.select import Selection, Selector

H200 = preset("h200")
REGIONS = 60


@pytest.fixture(scope="module")
def products():
    drawn = regions(f"{run_seed()} nearby", REGIONS, ("products",))
    return [r for r in drawn if r.kind.name == "gemm"]


def test_a_correction_has_equal_bits_however_it_is_added_up(products):
    """The oracle has none of NumPy's sums and exponentials, whose last digits depend on the processor."""
    selector, measured, count = Selector(default_registry(), H200), H200.calibration.measured["gemm"], 0
    for region in products:
        said = selector.ask(region)
        ranked = said.ranked[:8] if isinstance(said, Selection) else ()
        here = FEATURES["gemm"](region) if ranked else ()
        near = [math.exp(-math.fsum((x - y) ** 2 for x, y in zip(p, here)) / (2 * REACH**2)) for p in measured["points"]] if ranked else []  # fmt: skip
        for c in ranked:
            if c.variant.id not in measured["kernels"]:
                assert TERM not in c.cost.terms
                continue
            alone = c.variant.cost(region, H200)
            mine = [round(100 * sum(alone.terms.get(t, 0.0) for t in terms) / alone.us) for terms in CAUSES]
            log = math.fsum(
                near[n] * w * math.exp(-sum((x - y) ** 2 for x, y in zip(of, mine)) * (SHARE / 100) ** 2 / (2 * REACH**2))
                for n, w, of in zip(*measured["kernels"][c.variant.id])
            )  # fmt: skip
            want = (round(math.exp(max(-LARGEST, min(LARGEST, log))), 6) - 1) * alone.us
            assert c.cost.terms == {**alone.terms, TERM: want}, (
                f"seed {run_seed()}: {c.variant.id} on {region}"
            )
            count += 1
    assert count > REGIONS


def test_no_correction_hides_the_best_kernel(products):
    """Whatever was measured of kernels: the choice, which leaves out those that can't win, is the first of all."""
    registry, rng = default_registry(), np.random.default_rng(list(run_seed().encode()))
    points = H200.calibration.measured["gemm"]["points"][::20]
    every = list(range(len(points)))
    kernels = {
        v.id: [
            every,
            rng.normal(0, 0.5, len(every)).tolist(),
            rng.integers(0, 30, (len(every), len(CAUSES))).tolist(),
        ]
        for v in registry.variants(products[0].kind)
    }
    measured = Calibration("h200", measured={"gemm": {"points": points, "kernels": kernels}})
    selector = Selector(registry, replace(H200, calibration=measured))
    for region in products:
        said = selector.ask(region)
        if not isinstance(said, Selection):
            continue
        best = said.ranked[0]
        assert (said.kernel_id, said.chosen.us) == (best.variant.id, best.us), f"seed {run_seed()}: {region}"
        assert selector.least(region) <= best.us
        for c in said.ranked:
            assert c.variant.floor(region, selector.device) <= c.us * (1 + 1e-9), c.variant.id
