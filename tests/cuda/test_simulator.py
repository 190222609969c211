"""The kernels' arithmetic on a machine without a GPU: numba's simulator against NumPy in float64.

It checks every index, which a GPU does not; it has no intrinsics, so these run through their plain Python twins.
"""

from __future__ import annotations

import pytest
from simulated import outcomes_of


@pytest.mark.sample(1, pool="simulated")
@pytest.mark.spec("F2")
def test_simulated_kernels_agree_with_numpy():
    outcomes = outcomes_of("simulate.py")
    assert len(outcomes) > 20


@pytest.mark.spec("F2")
def test_the_simulator_says_where_an_index_is_out_of_bounds():
    assert len(outcomes_of("simulate_mistakes.py")) == 5
