"""Products whose k is split in numba's simulator, against float64. Prints as simulate.py does."""

from __future__ import annotations

import simulate
from fused_gemm_cases import simulated, split_cases

if __name__ == "__main__":
    simulate.main(simulated(split_cases("cuda.gemm_tiled.v1[32x32 split]")), simulate.check)
