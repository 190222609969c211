"""Gradients of convolutions without a GPU: what is taken, numbers in numba's simulator, which kernel is chosen where."""

from __future__ import annotations

import pytest
from gradient_cases import DATA_TILED, OTHERS, WEIGHT_TILED, data_gradient, weight_gradient
from kernel_cases import VARIANTS
from simulated import outcomes_of

from aicf.device.spec import preset
from aicf.types import bf16, f32


@pytest.mark.sample(1, pool="simulated")
@pytest.mark.spec("D13", "F2")
def test_simulated_gradients_agree_with_numpy():
    assert len(outcomes_of("simulate_gradients.py")) >= 2 * 2 * len(OTHERS) // 6


@pytest.mark.spec("D13")
@pytest.mark.parametrize("device", ["t4", "a100", "h200", "b200"])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_every_gradient_has_a_kernel_everywhere(name, dtype, device):
    x, w, attrs = OTHERS[name]
    for variant, make in ((WEIGHT_TILED, weight_gradient), (DATA_TILED, data_gradient)):
        r = make(x, w, dtype, **attrs)
        assert VARIANTS[variant].supported(r, preset(device)) is None
        assert VARIANTS[variant].cost(r, preset(device)).us > 0
