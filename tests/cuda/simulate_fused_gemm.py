"""Products with maps fused to them in numba's simulator, against float64. Prints as simulate.py does."""

from __future__ import annotations

import simulate
from fused_gemm_cases import simulated, small

if __name__ == "__main__":
    simulate.main(simulated(small()), simulate.check)
