"""Regions of several ops in numba's simulator: against float64, with special values, and bit for bit against one op at a
time. Prints as simulate.py does."""

from __future__ import annotations

import simulate
from fused_map_cases import SMALL, one_by_one, strict
from kernel_cases import Case, assert_close, operands_for, reference, with_specials


def check(case: Case) -> None:
    simulate.check(case)
    special = with_specials(case, operands_for(case))
    assert_close(case, simulate.simulate(case, special), reference(case, special.arrays))
    for got, want in zip(
        simulate.simulate(strict(case), special), one_by_one(case, special, simulate.simulate)
    ):
        assert got.tobytes() == want.tobytes(), f"strict {case}: {got} fused, {want} op by op"


if __name__ == "__main__":
    simulate.main(SMALL, check)
