"""Regions of several ops in numba's simulator: against float64, and bit for bit against one op at a time.

Prints as simulate.py does.
"""

from __future__ import annotations

import os

import simulate
from fused_map_cases import SMALL, one_by_one, strict
from kernel_cases import Case, operands_for, with_specials


def check(case: Case) -> None:
    simulate.check(case)
    if "reduce" not in case.variant:
        return  # what is rounded on the way is tested on the code itself; see on_host.py
    special = with_specials(case, operands_for(case))
    for got, want in zip(
        simulate.simulate(strict(case), special), one_by_one(case, special, simulate.simulate)
    ):
        assert got.tobytes() == want.tobytes(), f"strict {case}: {got} fused, {want} op by op"


# The simulator takes a second for what the host runs at once (on_host.py), so it sees a sample.
SAMPLE = SMALL if os.environ.get("AICF_TEST_ALL") else SMALL[::6]

if __name__ == "__main__":
    simulate.main(SAMPLE, check)
