"""Gradients of convolutions in numba's simulator, against float64. Prints as simulate.py does."""

from __future__ import annotations

import simulate
from fused_gemm_cases import simulated
from gradient_cases import OTHERS, tiled_cases

from aicf.types import f16, f32

if __name__ == "__main__":
    small = 2 * len(OTHERS)
    simulate.main(
        simulated([*tiled_cases(f32, 2e-5)[:small], *tiled_cases(f16, 4e-3)[:small]]), simulate.check
    )
