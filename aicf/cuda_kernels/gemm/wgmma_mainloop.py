"""How a consumer of a Hopper GEMM accumulates K-tiles, by its tiling and its types."""

from __future__ import annotations

from ...types import DType, f8e4m3, f8e5m2, f32
from ..hopper.accumulators import Mainloop, accumulated, promoted
from .epilogue import Epilogue
from .wgmma_tiling import WgmmaTiling, promotes

KINDS = {f32: "tf32", f8e4m3: "e4m3", f8e5m2: "e5m2"}  # that wgmma multiplies elements as


def mainloop_of(tiling: WgmmaTiling, epilogue: Epilogue, a_k_major: bool, b_k_major: bool) -> Mainloop:
    both = kind(epilogue.dtype), kind(epilogue.b_dtype)
    if tiling.promoted or promotes(epilogue.dtype):
        return promoted(both, tiling.n, tiling.row_blocks, a_k_major, b_k_major)
    return accumulated(both, tiling.n, tiling.row_blocks, a_k_major, b_k_major, tiling.narrow_n)


def kind(dtype: DType) -> str:
    return KINDS.get(dtype, dtype.name)
